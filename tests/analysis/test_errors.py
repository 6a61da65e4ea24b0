"""Errors by state: bins counted by eye, the oracle and the n-grams where they must be right, and that bins partition."""

from __future__ import annotations

import csv
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from baselines.ngram import NGram
from regbench import cli
from regbench.analysis import errors
from regbench.analysis.errors import (
    Positions,
    average,
    binned,
    illegal_kinds,
    scores_of,
    sort_by_repetition,
    sort_positions,
    token_scores,
)
from regbench.cli.commands import errors as command
from regbench.data.instances import Instances
from regbench.evaluation import comparison
from regbench.evaluation.comparison import tokens_at_scored
from regbench.evaluation.predictions import CompactPredictions
from regbench.results import ScoreRecord
from regbench.tasks.base import TokenIO
from regbench.tracks import Track, load_track
from regbench.utils.arrays import FloatArray
from tests.helpers.typed import refused

A, B, C, SEPARATOR = 0, 1, 2, 3
IO = TokenIO(vocab_size=4, separator=SEPARATOR, max_length=20, names=("a", "b", "c", "|"))


def by_hand() -> Instances:
    """One automaton, 0 -a-> 1, 0 -b-> 2, 1 -a-> 0, 2 -a-> 0, 2 -b-> 1, and the strings abb, ba|... of it."""
    table = np.full((1, 3, 3), -1, np.int8)
    for state, token, to in ((0, A, 1), (0, B, 2), (1, A, 0), (2, A, 0), (2, B, 1)):
        table[0, state, token] = to
    tokens = [[A, A, B, B, A, B, SEPARATOR, B, A, A]]
    states = [[0, 1, 0, 2, 1, 0, -1, 0, 2, 0]]
    scored = np.array(states) >= 0
    scored[:, 0] = False
    truth_at = {"state": np.array(states, np.int8)}
    lengths = np.array([10], np.int32)
    return Instances(np.array(tokens, np.uint8), lengths, scored, "hand/1", {"transitions": table}, truth_at)


def test_bins_counted_by_eye() -> None:
    at = sort_positions(by_hand(), IO)
    # positions                   1    2    3    4    5    7    8    9
    assert at.bins["branching"].tolist() == ["1", "2", "2", "1", "2", "2", "2", "2"]
    assert at.bins["visits"].tolist() == ["0", "1", "0", "1", "2", "3-4", "1", "3-4"]
    # b leads to 2 or 1, a to 1 or 0, "aa" to both; "ab" leads to 2, "bb" to 1, "ba" to 0. A separator tells the state.
    assert at.bins["suffix"].tolist() == ["2", "3", "2", "2", "2", "1", "2", "2"]
    assert at.bins["edge"].tolist() == ["new", "new", "new", "seen before"] + ["seen before"] * 2 + [
        "new",
        "seen before",
    ]
    assert at.bins["place"].tolist() == ["1", "2", "3-4", "3-4", "5-8", "0", "1", "2"]
    assert at.fits[1].tolist()[3] == [True, True, False, False]  # after b: state 2 or 1
    assert at.fits[2].tolist()[3] == [True, False, False, False]  # after "bb": state 1


def test_kinds_of_illegal_predictions_sum_to_the_illegal_share() -> None:
    at = sort_positions(by_hand(), IO)
    best = [B, C, C, B, C, SEPARATOR, C, A]
    predicted = np.eye(4)[best]
    kinds = illegal_kinds(predicted, at)
    assert kinds["never seen"].tolist() == [1, 1, 1, 0, 1, 0, 1, 0]  # b has not occurred at position 1
    assert kinds["fits the last two"].tolist() == [0] * 8
    assert kinds["fits the last"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]  # after b the state could be 2, which allows b
    assert kinds["other"].tolist() == [0, 0, 0, 0, 0, 1, 0, 0]  # a separator, after one was seen
    assert sum(kinds.values()).tolist() == (1 - scores_of(predicted, at)["legal_accuracy"]).tolist()


def test_what_followed_before_counted_by_eye() -> None:
    tokens = [[A, B, A, B, C, A, B, A, SEPARATOR] + [A] * 9]
    scored = np.array([[False] + [True] * 17])
    at = sort_by_repetition(Instances(np.array(tokens, np.uint8), np.array([18], np.int32), scored, "hand/1"), IO)
    new, other, this = errors.FOLLOWED
    # positions          1    2    3     4      5      6     7     8      9
    assert at.bins["context-1"].tolist()[:9] == [new, new, this, other, new, this, this, other, new]
    assert at.bins["context-2"].tolist()[:9] == [new, new, new, other, new, new, this, other, new]
    assert at.bins["context-3"].tolist()[:9] == [new, new, new, new, new, new, new, other, new]  # "aba": b, then |
    assert at.bins["position"].tolist() == ["0-15"] * 15 + ["16-31"] * 2


@pytest.mark.parametrize("size", [60, 2**16, 2**20])
def test_contexts_of_large_vocabularies_are_told_apart(size: int) -> None:
    once = np.arange(60) * (size // 60)
    tokens = np.concatenate([once, once])[None].astype(np.int32)
    scored = np.zeros(tokens.shape, bool)
    scored[:, 64:] = True
    io = TokenIO(size, size - 1, 120, ())
    at = sort_by_repetition(Instances(tokens, np.array([120], np.int32), scored, "hand/1"), io)
    assert set(at.bins["context-3"].tolist()) == {errors.FOLLOWED[2]}


def test_probabilities_of_tokens_are_the_same_from_whole_distributions(tiny: Track) -> None:
    """And bins partition: their mean is that of all positions."""
    test = tiny.instances("test")
    (whole,) = tokens_at_scored(NGram(2, tiny.task.io.vocab_size, tiny.task.io.separator), tiny, test, lambda *_: None)
    predicted = NGram(2, tiny.task.io.vocab_size, tiny.task.io.separator).predict(test.tokens.astype(np.int64))
    compact = CompactPredictions.pack([predicted], test, np.float64, tiny.task.io.vocab_size)
    part = comparison._tokens_at_scored(compact, test)
    assert np.allclose(whole.probability, part.probability, rtol=1e-12)
    assert (whole.most_likely == part.most_likely).all()
    at = sort_by_repetition(test, tiny.task.io)
    values = {"2-gram": token_scores(whole, at)}
    bins = binned(values, at, least=(0, 0))
    for feature in at.orders:
        own = [one for one in bins if one.feature == feature]
        mean = sum(one.positions * one.scores["2-gram"]["nll"].value for one in own) / test.scored.sum()
        assert mean == pytest.approx(average(values["2-gram"]["nll"], at).value, abs=1e-12)


def test_errors_are_over_the_instances_that_have_a_position() -> None:
    """And a bin with too few of them, or of positions, is left out."""
    row, labels = np.array([0, 0, 0, 0, 2, 2]), np.array(list("aaabbb"))
    at = Positions(row, np.zeros(6, int), {"place": labels}, {"place": ("a", "b")})
    values = np.array([1.0, 2.0, 3.0, 5.0, 6.0, 10.0])
    assert average(values, at) == ScoreRecord.of(np.array([11.0, 16.0]), np.array([4, 2]))
    for least, kept in (((3, 1), ["a", "b"]), ((3, 2), ["b"]), ((4, 1), [])):
        assert [one.label for one in binned({"mine": {"nll": values}}, at, least)] == kept


@pytest.mark.ci
def test_the_command_without_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    track = tmp_path / "short-v1.yaml"
    track.write_text(
        "name: short-v1\ntask: associative_recall\nparameters: {n_keys: 4, n_values: 4, n_pairs: 12}\n"
        "splits: {train: 2, validation: 2, test: 40, seed: 0}\nbudget: {train_tokens: 100}\nmain_score: nll\n"
    )
    assert cli.main(["errors", "2-gram", "3-gram", "--track", str(track), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "followed the last token" in printed
    assert "illegal" not in printed
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main(["errors", "2-gram", "--track", str(track), "--score", "token_accuracy"]) == 0
    assert "token accuracy" in capsys.readouterr().out, "though the task's own scores have none of that name"
    wrong = ["errors", "2-gram", "--track", str(track), "--score", "tvd"]
    refused(capsys, wrong, "unknown --score 'tvd'; known: nll, token_accuracy")


@pytest.fixture(scope="module")
def pfa() -> Track:
    return load_track("pfa-small-v1")


def at_scored(predicted: FloatArray, instances: Instances) -> FloatArray:
    return predicted[np.nonzero(instances.scored)]


def test_the_oracle_has_no_error_and_bins_partition(pfa: Track) -> None:
    some = pfa.instances("validation")[:60]
    at, io = sort_positions(some, pfa.task.io), pfa.task.io
    two_gram = NGram(2, io.vocab_size, io.separator).predict(some.tokens.astype(np.int64))
    values = {
        "oracle": scores_of(at_scored(pfa.task.truth(some), some), at),
        "2-gram": scores_of(at_scored(two_gram, some), at),
    }
    bins = binned(values, at, least=(0, 0))
    assert {one.feature for one in bins} == set(at.orders)
    assert all(one.scores["oracle"]["tvd"].value == 0.0 for one in bins)
    assert all(one.scores["oracle"]["legal_accuracy"].value == 1.0 for one in bins)
    for feature in at.orders:
        own = [one for one in bins if one.feature == feature]
        assert sum(one.positions for one in own) == some.scored.sum()
        for score in errors.SCORES:
            mean = sum(one.positions * one.scores["2-gram"][score].value for one in own) / some.scored.sum()
            assert mean == pytest.approx(average(values["2-gram"][score], at).value, abs=1e-12)
    # Where the last symbol tells the state, what has followed it is legal. The 2-gram is wrong where its smoothing wins.
    right, sure = values["2-gram"]["legal_accuracy"], []
    for p, (row, place) in enumerate(np.argwhere(some.scored)):
        seen = some.tokens[row, :place].tolist()
        followers = {b for a, b in itertools.pairwise(seen) if a == seen[-1]}
        if at.bins["suffix"][p] == "1":
            assert at.allowed[p, list(followers - {io.separator})].all()
            sure += [right[p]] if len(followers) == 1 else []
    assert len(sure) > 100
    assert np.mean(sure) > 0.95
    assert values["2-gram"]["legal_accuracy"][at.bins["suffix"] == "3"].mean() < 0.9


def test_the_command(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "REFERENCES", ("2-gram",))
    files = ["--track", str(tiny_file), "--out", str(tmp_path), "--score", "legal_accuracy"]
    assert cli.main(["errors", "oracle", "2-gram", *files]) == 0  # the reference, which stands there anyway
    printed = capsys.readouterr().out
    assert max(map(len, printed.partition("bins of")[0].splitlines())) <= 80
    largest = re.search(r"the largest standard error is (0\.\d{3})$", printed, flags=re.MULTILINE)
    assert "earlier visits of it" in printed
    assert "fits the last two" in printed
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "errors.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["predictor"] for row in rows} == {"oracle", "2-gram"}
    assert {row["score"] for row in rows} == set(errors.SCORES)
    assert largest is not None
    shown = [float(row["stderr"]) for row in rows if row["score"] == "legal_accuracy"]
    assert float(largest[1]) == pytest.approx(max(shown), abs=6e-4)
    for arguments, message in (
        (["oracle", "--score", "tv"], "unknown --score 'tv'; did you mean 'tvd'?"),
        (
            ["oracle", "--track", "linear-regression-small-v1"],
            "errors are sorted by tokens, and linear-regression-small-v1 is",
        ),
        (["orakle", "--track", str(tiny_file)], "unknown predictor 'orakle'; did you mean 'oracle'?"),
    ):
        refused(capsys, ["errors", *arguments], message)


def test_many_predictors_with_long_names_lose_no_figure(
    tiny_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "REFERENCES", ())
    names = [f"a_long_name_of_it-{number}" for number in range(6)]
    given = [f"{name}={number % 3 + 1}-gram" if number % 3 else f"{name}=unigram" for number, name in enumerate(names)]
    assert cli.main(["errors", *given, "--track", str(tiny_file)]) == 0
    printed = capsys.readouterr().out.partition("bins of")[0]
    assert max(map(len, printed.splitlines())) <= 80
    assert "…" not in printed
    assert all(printed.count(f"it-{number}") == 2 for number in range(6))


def test_automata_are_known_by_their_truth(tmp_path: Path) -> None:
    """A task of one's own may keep tables of transitions and states, and allow symbols with other probabilities."""
    (tmp_path / "weighted.py").write_text(WEIGHTED)
    (tmp_path / "weighted-v1.yaml").write_text(
        "name: weighted-v1\ntask: ./weighted.py\nsplits: {train: 20, validation: 4, test: 4, seed: 0}\n"
        "budget: {train_tokens: 100}\nmain_score: nll\n"
    )
    assert errors.has_states(load_track("pfa-small-v1"))
    assert not errors.has_states(load_track(tmp_path / "weighted-v1.yaml"))
    assert not errors.has_states(load_track("bigram-small-v1"))


WEIGHTED = """
import numpy as np
from regbench.tasks.pfa import PFA


class Weighted(PFA):
    def truth(self, instances):
        true = super().truth(instances)
        true *= 1 + np.arange(true.shape[-1])
        total = true.sum(-1, keepdims=True)
        return true / (total + (total == 0))
"""
