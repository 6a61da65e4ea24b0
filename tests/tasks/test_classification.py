"""The task `classification`: excerpts of two documents, labels drawn anew, halves and splits that share nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from baselines.smoothed_ngram import SmoothedNGram
from regbench.analysis.errors import average, sort_by_repetition
from regbench.data.instances import Instances
from regbench.evaluation.comparison import score_table
from regbench.evaluation.find_predictors import find_predictors
from regbench.metrics.metric import NLL_FLOOR, TokenPrediction
from regbench.metrics.scores import score, score_records
from regbench.tasks.base import Splits
from regbench.tasks.classification import Classification, ClassificationParameters
from regbench.tracks import load_track
from regbench.utils.errors import UserError
from tests.tasks.conftest import write_text_track

SPLITS = Splits(train=60, validation=24, test=48, seed=0)
NAMES = ("train", "validation", "test")
SMALL: dict[str, Any] = {"vocab_size": 400, "n_exemplars": 5, "excerpt": 8, "n_queries": 6, "n_label_tokens": 20}


@pytest.fixture(scope="module")
def task(folder: Path) -> Classification:
    return Classification(ClassificationParameters(source=str(folder), **SMALL))


@pytest.fixture(scope="module")
def made(task: Classification) -> dict[str, Instances]:
    return {split: task.generate(SPLITS, split) for split in NAMES}


def inside(excerpt: np.ndarray, text: np.ndarray) -> bool:
    return bool((np.lib.stride_tricks.sliding_window_view(text, len(excerpt)) == excerpt).all(-1).any())


def test_exemplars_are_of_the_first_half_and_queries_of_the_second(
    folder: Path, task: Classification, made: dict[str, Instances]
) -> None:
    for instances in made.values():
        assert instances.tokens.shape[1] == 6 * 10 == task.io.max_length
        for row in range(0, len(instances), 5):
            names = [task.corpus.index.names[d] for d in instances.truth["document"][row]]
            assert names[0].split("/")[0] != names[1].split("/")[0]
            parts = instances.tokens[row].reshape(6, 10).astype(int)
            for place, (part, which) in enumerate(zip(parts, instances.truth["classes"][row], strict=True)):
                text = task.encode((folder / names[which]).read_text())
                half = text[len(text) // 2 :] if place == 5 else text[: len(text) // 2]
                assert inside(part[:8], half)
                assert part[8] == task.io.separator
                assert part[9] == instances.truth["labels"][row, which]


def test_a_problem_has_one_prompt_and_as_many_queries_of_each_class(made: dict[str, Instances]) -> None:
    test = made["test"]
    assert (np.bincount(test.truth["problem"]) == 6).all()
    for problem in range(8):
        of = test.truth["problem"] == problem
        assert len(np.unique(test.tokens[of, :-10], axis=0)) == 1
        assert len(np.unique(test.tokens[of, -10:-2], axis=0)) > 3
        assert test.truth["classes"][of, -1].sum() == 3
    train = made["train"]
    assert len(np.unique(train.truth["problem"])) == len(np.unique(train.tokens[:, :-10], axis=0)) == 60
    assert 15 < train.truth["classes"][:, -1].sum() < 45
    assert 100 < train.truth["classes"][:, :-1].sum() < 200


def test_labels_are_frequent_tokens_and_drawn_anew(task: Classification, made: dict[str, Instances]) -> None:
    labels = made["train"].truth["labels"]
    assert (labels[:, 0] != labels[:, 1]).all()
    assert set(labels.ravel().tolist()) <= set(task.label_tokens().tolist())
    assert len(np.unique(labels)) > 15
    counts = task.corpus.frequencies
    assert counts[task.label_tokens()].min() >= np.delete(counts, task.label_tokens()).max()


def test_labels_are_scored_and_the_query_gives_the_main_score(task: Classification, made: dict[str, Instances]) -> None:
    test = made["test"]
    assert (np.flatnonzero(test.scored[0]) == [9, 19, 29, 39, 49, 59]).all()
    progress = task.progress(test)
    assert (progress[0][test.scored[0]] == np.arange(6)).all()
    assert (progress[~test.scored] == -1).all()
    probabilities = np.full((*test.tokens.shape, 400), 1e-3)
    np.put_along_axis(probabilities, test.tokens[..., None].astype(int), 0.601, -1)
    wrong = test.truth["classes"][:, -1] == 0
    probabilities[wrong, -1] = 1 / 400
    probabilities[wrong, -1, 399] += 1e-6
    found = score(task, test, (TokenPrediction.of(probabilities, test.tokens),))
    assert found["label_accuracy"].value == pytest.approx(0.5)
    assert found["token_accuracy"].value == pytest.approx(5.5 / 6)


def test_errors_are_over_problems(task: Classification, made: dict[str, Instances]) -> None:
    """The queries of a problem share all labels but their own, so they are no samples of their own."""
    test, rng = made["test"], np.random.default_rng(0)
    given = rng.uniform(0.1, 0.9, (8, 60))[test.truth["problem"]]
    given[:, -1] = rng.uniform(0.1, 0.9, 48)
    predicted = (TokenPrediction(given, np.zeros_like(test.tokens, int)),)
    nll = np.where(test.scored, -np.log(given), 0.0).sum(1)
    found = score(task, test, predicted)
    assert found["nll"].value == pytest.approx(nll.sum() / test.scored.sum())
    assert found["nll"].stderr == pytest.approx(stats.sem(nll.reshape(8, 6).sum(1) / 36))
    records, curves = score_records(found)
    assert records["nll"] == found["nll"]
    first = (test.scored & (task.progress(test) == 0)).argmax(1)
    values = -np.log(given[np.arange(48), first]).reshape(8, 6).mean(1)
    assert curves["nll"].stderr is not None
    assert curves["nll"].stderr[0] == pytest.approx(stats.sem(values), abs=1e-6)
    at = sort_by_repetition(test, task.io)
    assert average(-np.log(given[test.scored]), at).stderr == pytest.approx(found["nll"].stderr)
    np.testing.assert_array_equal(score(task, test, predicted, apart=True).sums["nll"], nll)


def test_predictors_are_compared_over_problems(folder: Path, tmp_path: Path) -> None:
    parameters = {"source": str(folder), **SMALL}
    track = write_text_track(tmp_path / "own-v1.yaml", "classification", parameters, train=60, validation=24, test=48)
    names = ["unigram witten-bell", "3-gram witten-bell"]
    found = find_predictors(names, str(track))
    sums = []
    for one in found.compared:
        assert isinstance(one.source, SmoothedNGram)
        given = TokenPrediction.of(one.source.predict(found.test.tokens), found.test.tokens).probability
        sums.append(np.where(found.test.scored, -np.log(np.maximum(given, NLL_FLOOR)), 0.0).sum(1))
    apart = (sums[1] - sums[0]).reshape(8, 6).sum(1) / 36
    (change,) = (row.change for row in score_table(found) if row.change is not None)
    assert change.noise == pytest.approx(stats.sem(apart), rel=1e-6)
    assert change.freedom == pytest.approx(7)


def test_a_problem_that_does_not_fill_its_queries(task: Classification, made: dict[str, Instances]) -> None:
    few = task.generate(Splits(train=1, validation=24, test=45, seed=0), "test")
    assert (few.tokens == made["test"].tokens[:45]).all()


def test_one_topic_has_two_documents_too(folder: Path) -> None:
    task = Classification(ClassificationParameters(source=str(folder / "garden"), **SMALL))
    documents = task.generate(SPLITS, "train").truth["document"]
    assert (documents[:, 0] != documents[:, 1]).all()


def test_what_does_not_fit(folder: Path) -> None:
    source = {"source": str(folder), "vocab_size": 400}
    with pytest.raises(UserError, match="have 80000 tokens or more, but two are needed: take more text"):
        Classification(ClassificationParameters(**source, excerpt=1024)).documents_of("test", 80_000, 2)
    with pytest.raises(
        UserError, match="n_label_tokens is 399, but the training documents have [0-9]+ different tokens"
    ):
        Classification(ClassificationParameters(**source, excerpt=8, n_label_tokens=399)).generate(SPLITS, "test")
    with pytest.raises(UserError, match="classification: the true distributions are unknown"):
        Classification(ClassificationParameters(**source)).truth(None)  # type: ignore[arg-type]


def test_show_names_both_documents(task: Classification, made: dict[str, Instances]) -> None:
    text = task.show(made["test"], 3)
    assert text.startswith("label ")
    assert text.count("exemplar ") == 5
    assert text.count("query, label ") == 1


def test_its_fingerprint_is_frozen(made: dict[str, Instances]) -> None:
    """Of the tests' own text, which is the same everywhere."""
    assert {split: instances.fingerprint[:16] for split, instances in made.items()} == {
        "train": "54de73fb8a20e996",
        "validation": "488b9b59ef22e9f5",
        "test": "e5f8f646889a3352",
    }


def test_the_built_in_track_has_the_tokens_of_text_small() -> None:
    track, text = load_track("classification-small-v1"), load_track("text-small-v1")
    own, other = track.task.parameters, text.task.parameters
    assert (own.source, own.vocab_size) == (other.source, other.vocab_size)
    assert (own.n_exemplars, own.excerpt, own.n_queries) == (32, 32, 20)
    assert track.definition.splits.test == 200 * own.n_queries
    assert track.definition.splits.train * own.max_length == track.definition.budget.train_tokens
