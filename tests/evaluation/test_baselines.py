"""The cache of baselines: what is kept, what makes it anew, and who shares it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from baselines.ngram import NGram
from regbench.evaluation import baselines
from regbench.evaluation.baselines import (
    baseline_key,
    default_baselines,
    kept_predictions,
    predict_baseline,
    score_baselines,
)
from regbench.evaluation.comparison import distances
from regbench.evaluation.find_predictors import find_predictors
from regbench.evaluation.measured_baselines import measure
from regbench.evaluation.predictions import CompactPredictions, Predictions
from regbench.metrics.scores import score, score_records
from regbench.models.predictor import Baseline, predict_in_batches, rows_at_once
from regbench.results import normalized_scores
from regbench.tracks import Track, load_track
from regbench.utils import registry
from regbench.utils.arrays import FloatArray, IntArray
from tests.conftest import MARKOV, TINY


def packed(baseline: Baseline, track: Track, split: str = "test") -> FloatArray:
    stored = predict_baseline(baseline, track, track.instances(split)).stored
    assert isinstance(stored, Predictions)
    return stored.packed


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How many rows NGram was asked for, call by call, with a cache that is empty at first and keeps everything."""
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(baselines, "WORTH_KEEPING", 0.0)
    found: list[int] = []
    original = NGram.predict

    def predict(self: NGram, tokens: IntArray) -> FloatArray:
        found.append(len(tokens))
        return original(self, tokens)

    monkeypatch.setattr(NGram, "predict", predict)
    return found


def test_predictions_are_made_once(tiny: Track, calls: list[int]) -> None:
    test, told = tiny.instances("test"), []
    model = NGram(2, 5, 4)
    assert kept_predictions(model, tiny, test) is None
    made = predict_baseline(model, tiny, test, lambda done, total: told.append((done, total)))
    assert told[-1] == (24, 24)
    whole = NGram(2, 5, 4).predict(test.tokens)
    calls.clear()
    again = predict_baseline(NGram(2, 5, 4), tiny, test)
    assert calls == []
    assert (again.seconds, again.processor_seconds, again.threads) == (
        made.seconds,
        made.processor_seconds,
        made.threads,
    )
    assert isinstance(made.stored, Predictions)
    assert isinstance(again.stored, Predictions)
    np.testing.assert_array_equal(again.stored.packed, made.stored.packed)
    batches = list(again.stored.batches(10))
    assert [len(batch) for batch in batches] == [10, 10, 4]
    for i in range(24):
        n = test.lengths[i]
        np.testing.assert_array_equal(batches[i // 10][i % 10, :n], whole[i, :n])
    packed(NGram(3, 5, 4), tiny)  # another option
    packed(NGram(2, 5, 4), tiny, "validation")  # other instances
    assert sum(calls) == 24 + 20 + 2  # and one row each beforehand, to compile


def test_a_run_a_comparison_and_the_table_share_what_is_kept(
    tiny: Track, tiny_file: Path, calls: list[int], tmp_path: Path
) -> None:
    score_baselines(tiny, tiny.instances("test"), lambda name: None)
    assert calls
    calls.clear()
    distances(find_predictors(["2-gram", "3-gram"], str(tiny_file)))
    measure(tiny)
    assert calls == []
    for path in (tmp_path / "baselines").glob("*.json"):  # scores follow from the predictions
        path.unlink()
    score_baselines(tiny, tiny.instances("test"), lambda name: None)
    assert calls == []


def test_scores_from_the_cache_are_those_of_the_predictor_to_the_last_bit(
    tiny: Track, text_track: Track, calls: list[int]
) -> None:
    for track in (tiny, text_track):
        test = track.instances("test")
        rows = rows_at_once(track.task.io, test.tokens.shape[1], len(test))
        score_baselines(track, test, lambda name: None)
        kept = score_baselines(track, test, lambda name: pytest.fail(f"{name} is scored again"))
        for baseline in default_baselines(track, test):
            direct = score_records(score(track.task, test, predict_in_batches(baseline, test, rows)))
            assert (kept[baseline.name].scores, kept[baseline.name].curves) == direct


def test_predictions_that_are_made_fast_are_not_kept(tiny: Track, calls: list[int], tmp_path: Path) -> None:
    model, test = NGram(2, 5, 4), tiny.instances("test")
    baselines.WORTH_KEEPING = 3600.0  # the fixture takes it back
    predict_baseline(model, tiny, test)
    assert not (tmp_path / "baselines").exists()
    score_baselines(tiny, test, lambda name: None)
    assert {path.suffix for path in (tmp_path / "baselines").iterdir()} == {".json"}


def test_a_broken_cache_is_made_again(tiny: Track, calls: list[int], tmp_path: Path) -> None:
    made = packed(NGram(2, 5, 4), tiny)
    (path,) = (tmp_path / "baselines").iterdir()
    content = path.read_bytes()
    middle = len(content) // 2
    in_the_stream = content[:middle] + b"\xff" * 8 + content[middle + 8 :]
    for damage in (b"", content[:-50], b"\xff" * 99, in_the_stream):
        path.write_bytes(damage)
        calls.clear()
        np.testing.assert_array_equal(packed(NGram(2, 5, 4), tiny), made)
        assert calls


def test_the_file_of_another_baseline_is_not_taken(tiny: Track, calls: list[int], tmp_path: Path) -> None:
    """Nor that of other scores: each is a whole file, and fits the instances."""
    test = tiny.instances("test")
    made = score_baselines(tiny, test, lambda name: None)
    predicted = {order: packed(NGram(order, 5, 4), tiny) for order in (2, 3)}
    for suffix in ("npz", "json"):
        files = sorted((tmp_path / "baselines").glob(f"*.{suffix}"))
        contents = [path.read_bytes() for path in files]
        for path, content in zip(files, contents[1:] + contents[:1], strict=True):
            path.write_bytes(content)
    for order, rows in predicted.items():
        np.testing.assert_array_equal(packed(NGram(order, 5, 4), tiny), rows)
    assert {n: r.scores for n, r in score_baselines(tiny, test, lambda name: None).items()} == {
        n: r.scores for n, r in made.items()
    }


def test_predictions_without_a_truth_are_kept_in_compact_form(text_track: Track, calls: list[int]) -> None:
    model, test = NGram(2, 300, 299), text_track.instances("test")
    made = predict_baseline(model, text_track, test).stored
    calls.clear()
    again = predict_baseline(model, text_track, test).stored
    assert calls == []
    assert isinstance(made, CompactPredictions)
    assert isinstance(again, CompactPredictions)
    np.testing.assert_array_equal(again.probability, made.probability)
    assert made.probability.dtype == np.float64


# --- What makes it anew. ---


TASK = """
from tests.helpers.markov_text import MarkovText


class Mine(MarkovText):
    version = 1
    scores = ("nll", "token_accuracy")

    def groups(self, instances):
        return super().groups(instances)
"""


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda s: s, True),
        (lambda s: s.replace("super().groups(instances)", "{}"), False),
        (lambda s: s.replace('("nll", "token_accuracy")', '("nll",)'), False),
    ],
)
def test_a_task_of_ones_own_that_is_edited_is_scored_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str], same: bool
) -> None:
    """Its instances may stay as they were, and their fingerprint with them, while its truth or its scores change."""
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(baselines, "WORTH_KEEPING", 0.0)
    (tmp_path / "mine.py").write_text(TASK)
    path = tmp_path / "mine-v1.yaml"
    path.write_text(yaml.safe_dump(MARKOV | {"name": "mine-v1", "task": str(tmp_path / "mine.py")}))
    model, found = NGram(1, 300, 299), []
    for text in (TASK, edit(TASK)):
        (tmp_path / "mine.py").write_text(text)
        track = load_track(str(path))
        test = track.instances("test")
        predict_baseline(model, track, test)
        announced: list[str] = []
        records = score_baselines(track, test, announced.append)
        assert set(records["unigram"].scores) == set(track.task.scores)
        kept = kept_predictions(model, track, test) is not None
        found.append((kept, len(list((tmp_path / "cache" / "baselines").glob("*.npz"))), bool(announced)))
    count = found[0][1]
    assert found == [(True, count, True), (True, count, False) if same else (True, 2 * count, True)]


BASELINE = """
from baselines.ngram import NGram


class Mine(NGram):
    name = "mine"
"""


def test_a_baseline_of_ones_own_that_is_edited_has_another_key(tiny: Track, tmp_path: Path) -> None:
    test, keys = tiny.instances("test"), []
    for text in (BASELINE, BASELINE, BASELINE + "\nx = 1\n"):
        (tmp_path / "mine.py").write_text(text)
        cls = registry.load(registry.BASELINE, str(tmp_path / "mine.py"))
        keys.append(baseline_key(cls(2, 5, 4), tiny, test))
    assert keys[0] == keys[1] != keys[2]


def test_the_key_of_what_is_built_in_has_its_versions(tiny: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of prose does not cost the minutes of the slowest baselines."""
    test = tiny.instances("test")

    def key() -> str:
        return baseline_key(NGram(2, 5, 4), tiny, test)

    first = key()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", None)  # no source is read
        assert key() == first
    for cls in (NGram, type(tiny.task)):
        with monkeypatch.context() as patch:
            patch.setattr(cls, "version", cls.version + 1)
            assert key() != first
    assert baseline_key(NGram(3, 5, 4), tiny, test) != first
    assert baseline_key(NGram(2, 5, 4), tiny, tiny.instances("validation")) != first


def test_scores_of_an_older_way_of_scoring_are_not_used(
    tiny: Track, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The predictions are."""
    test = tiny.instances("test")
    score_baselines(tiny, test, lambda name: None)
    calls.clear()
    monkeypatch.setattr(baselines, "SCORING_VERSION", baselines.SCORING_VERSION + 1)
    announced: list[str] = []
    score_baselines(tiny, test, announced.append)
    assert "scoring the baseline 2-gram" in announced
    assert calls == []


def test_the_oracle_has_no_distance_from_the_truth_where_two_instances_are_equal(tmp_path: Path) -> None:
    """Its row is the upper end of the normalized score."""
    shortest = {"min_strings": 1, "max_strings": 1, "max_length": 3}
    splits = {"train": 10, "validation": 10, "test": 200, "seed": 3}
    path = tmp_path / "short-v1.yaml"
    path.write_text(
        yaml.safe_dump(TINY | {"name": "short-v1", "parameters": TINY["parameters"] | shortest, "splits": splits})
    )
    track = load_track(str(path))
    test = track.instances("test")
    assert len(set(test.as_bytes())) < len(test)
    oracle = score_baselines(track, test, lambda name: None, anchors=True)["oracle"].scores
    assert (oracle["legal_accuracy"].value, oracle["tvd"].value) == (1.0, 0.0)


def test_where_the_task_says_what_chance_is_the_normalized_score_begins_there(tmp_path: Path) -> None:
    """The unigram model has 0 of 3 values: the prompt has had none of them."""
    path = tmp_path / "pairs-v1.yaml"
    path.write_text(
        "name: pairs-v1\ntask: mqar\nparameters: {vocabulary: 21, n_pairs: 4, n_queries: 5, length: 24}\n"
        "splits: {train: 2, validation: 2, test: 40, seed: 0}\nbudget: {train_tokens: 300}\nmain_score: token_accuracy\n"
    )
    track = load_track(str(path))
    records = score_baselines(track, track.instances("test"), lambda _: None, anchors=True)
    assert {name: record.anchor for name, record in records.items()} == {
        "unigram": None, "oracle": "end", "chance": "start",
    }  # fmt: skip
    found = {name: normalized_scores(record.scores, records) for name, record in records.items()}
    assert found["chance"] == dict.fromkeys(track.task.scores, 0.0)
    assert found["oracle"] == dict.fromkeys(track.task.scores, 1.0)
    assert found["unigram"]["token_accuracy"] < 0.0
    assert records["chance"].scores["token_accuracy"].value == pytest.approx(0.25)
    assert records["chance"].curves.keys() == records["oracle"].curves.keys()
