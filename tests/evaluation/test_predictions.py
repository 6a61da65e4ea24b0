"""What is kept of predictions: compact ones here, others in tests/runner/test_train.py and tests/test_vectors.py."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baselines.ngram import NGram
from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines, predict_baseline
from regbench.evaluation.predictions import CompactPredictions, Predictions, predict, read_predictions
from regbench.metrics.metric import TokenPrediction
from regbench.metrics.scores import score, score_records
from regbench.models.predictor import BATCH_BYTES, predict_in_batches, rows_at_once
from regbench.results import read_result
from regbench.tasks.base import TokenIO, VectorIO
from regbench.tracks import Track
from regbench.utils.errors import UserError


class Varied:
    """A distribution for each token, that of the token itself: what it says of a position does not depend on the batch."""

    def __init__(self, vocab_size: int) -> None:
        self.table = np.random.default_rng(5).dirichlet(np.ones(vocab_size), vocab_size)

    def predict(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.table[np.asarray(tokens, int)]


@pytest.fixture(scope="module")
def ragged(text_track: Track) -> Instances:
    """Test instances of different lengths."""
    test = text_track.instances("test")
    lengths = np.arange(30, 30 + len(test)).clip(max=48).astype(np.int32)
    inside = np.arange(48) < lengths[:, None]
    return replace(test, tokens=np.where(inside, test.tokens, 299), lengths=lengths, scored=inside)


def test_compact_predictions_have_what_the_distributions_say(text_track: Track, ragged: Instances) -> None:
    whole = Varied(300).predict(ragged.tokens)
    kept = CompactPredictions.pack(predict_in_batches(Varied(300), ragged, 7), ragged, np.float32, 300)
    assert (kept.probability.dtype, kept.most_likely.dtype) == (np.float32, np.int32)
    row, at = np.nonzero(ragged.scored)
    np.testing.assert_array_equal(kept.probability, whole[row, at, ragged.tokens[row, at]].astype(np.float32))
    np.testing.assert_array_equal(kept.most_likely, whole[row, at].argmax(-1))
    compact, full = (score(text_track.task, ragged, p) for p in (kept.batches(6), [whole]))
    for metric, one in full.table().items():
        assert compact[metric].value == pytest.approx(one.value, rel=1e-6)
        assert compact[metric].stderr == pytest.approx(one.stderr, rel=1e-4)
    assert compact["token_accuracy"] == full["token_accuracy"]


def test_a_file_gives_the_scores_back_to_the_last_bit(text_track: Track, ragged: Instances, tmp_path: Path) -> None:
    kept = predict(text_track.task, Varied(300), ragged)
    assert isinstance(kept, CompactPredictions)
    digest = kept.save(tmp_path / "seed-0" / "predictions.npz")
    again = read_predictions(tmp_path, 0, text_track.task, ragged)
    assert again.digest == digest
    before, after = (score(text_track.task, ragged, p.batches()) for p in (kept, again))
    assert before.table() == after.table()
    assert again.fits(ragged, 300)
    assert not again.fits(ragged, int(kept.most_likely.max()))
    assert not again.fits(text_track.instances("test"), 300)
    swapped = replace(kept, most_likely=kept.most_likely[::-1].copy())
    assert swapped.digest != digest


def test_the_scores_of_a_run_come_out_of_its_file(text_track: Track, text_run: Path) -> None:
    (seed,) = read_result(text_run).seeds
    kept = read_predictions(text_run, 0, text_track.task, text_track.instances("test"))
    assert kept.digest == seed.predictions_sha256
    assert (text_run / "seed-0" / "predictions.npz").stat().st_size < 20 * 48 * 8 + 2000  # 8 bytes a token, not 2 V
    found = score_records(score(text_track.task, text_track.instances("test"), kept.batches()))
    assert found == (seed.scores, seed.curves)


def test_one_form_is_not_read_as_the_other(tiny: Track, text_track: Track, ragged: Instances, tmp_path: Path) -> None:
    compact, whole = (tmp_path / f"seed-{seed}" / "predictions.npz" for seed in (0, 1))
    test = tiny.instances("test")
    predict(text_track.task, Varied(300), ragged).save(compact)
    kept = predict(tiny.task, Varied(tiny.task.io.vocab_size), test)
    assert isinstance(kept, Predictions)
    kept.save(whole)
    with pytest.raises(UserError, match="it must hold packed and lengths, and nothing else"):
        read_predictions(tmp_path, 0, tiny.task, test)
    with pytest.raises(UserError, match="cannot read predictions from .*predictions.npz: it must hold given and best"):
        read_predictions(tmp_path, 1, text_track.task, ragged)
    whole.write_bytes(b"no")
    for track, instances in ((tiny, test), (text_track, ragged)):
        with pytest.raises(UserError, match="cannot read predictions from"):
            read_predictions(tmp_path, 1, track.task, instances)


def test_a_damaged_file_is_refused_in_one_line(text_track: Track, tmp_path: Path) -> None:
    """Every seventh byte of it in turn: it is refused, or what is read is what was kept."""
    path, task, some = tmp_path / "seed-0" / "predictions.npz", text_track.task, text_track.instances("test")[:3]
    kept = predict(task, Varied(300), some)
    digest = kept.save(path)
    content, refused = path.read_bytes(), list[str]()
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            assert read_predictions(tmp_path, 0, task, some).digest == digest
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > len(content) / 7 / 2
    assert all(re.fullmatch(f"cannot read predictions from {path}: .+", line) for line in refused)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda p: p * 1.01, "must sum to 1; one is off by 0.01"),
        (lambda p: p * np.nan, "NaN"),
        (lambda p: p - 0.01, "negative"),
        (lambda p: p[..., :-1], r"have the shape \(20, 48, 299\), not \(20, 48, 300\)"),
        (lambda p: p[:, :-1], r"have the shape \(20, 47, 300\), not \(20, 48, 300\)"),
    ],
)
def test_only_distributions_become_compact_predictions(text_track: Track, fault: Any, message: str) -> None:
    """Afterwards nobody could tell: a probability of the token and the largest say nothing of the others."""

    class Wrong(NGram):
        def predict(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            said: np.ndarray[Any, Any] = fault(super().predict(tokens))
            return said

    test = text_track.instances("test")
    with pytest.raises(UserError, match=message):
        predict(text_track.task, Wrong(1, 300, 299), test)
    with pytest.raises(UserError, match=message):
        predict_baseline(Wrong(1, 300, 299), text_track, test)


def test_a_certain_prediction_of_tokens_costs_nothing(text_track: Track) -> None:
    test = text_track.instances("test")
    sure = TokenPrediction(np.ones(test.tokens.shape), np.zeros(test.tokens.shape, np.int32))
    assert score(text_track.task, test, [sure])["nll"].value == 0.0


@pytest.mark.parametrize("share", [0.1, 0.9], ids=["few are scored", "most are scored"])
def test_scored_positions_alone_are_unpacked_and_their_scores_are_the_same_to_the_bit(
    tiny: Track, share: float
) -> None:
    test = tiny.instances("test")
    real = np.arange(test.tokens.shape[1]) < test.lengths[:, None]
    some = replace(test, scored=real & (np.random.default_rng(0).random(real.shape) < share))
    stored = predict(tiny.task, Varied(tiny.task.io.vocab_size), some)
    assert isinstance(stored, Predictions)
    start = 0
    for whole, part in zip(stored.batches(7), stored.batches(7, at=some.scored), strict=True):
        scored = some.scored[start : start + len(whole), : whole.shape[1]]
        np.testing.assert_array_equal(part[scored], whole[scored])
        assert (part[~scored] == 1 / whole.shape[-1]).all()
        start += len(whole)
    everywhere = score(tiny.task, replace(test, scored=real), stored.batches()).sums
    whole, part = score(tiny.task, some, stored.batches()), score(tiny.task, some, stored.batches(at=some.scored))
    for metric in tiny.task.scores:
        np.testing.assert_array_equal(part.sums[metric], whole.sums[metric])
        np.testing.assert_array_equal(part.by_position[metric], whole.by_position[metric])
        assert (part.sums[metric] != everywhere[metric]).any()


def test_compact_predictions_are_unpacked_at_scored_positions(text_track: Track, ragged: Instances) -> None:
    stored = predict(text_track.task, Varied(300), ragged)
    assert isinstance(stored, CompactPredictions)
    scored, start = ragged.scored & (np.random.default_rng(0).random(ragged.scored.shape) < 0.5), 0
    for whole, part in zip(stored.batches(7), stored.batches(7, at=scored), strict=True):
        here = scored[start : start + len(whole.probability), : whole.probability.shape[1]]
        np.testing.assert_array_equal(part.probability, np.where(here, whole.probability, 1.0))
        np.testing.assert_array_equal(part.most_likely, np.where(here, whole.most_likely, 0))
        start += len(whole.probability)


def test_the_digest_is_of_all_that_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at a time, in the order of the file."""
    monkeypatch.setattr("regbench.evaluation.predictions._PART_BYTES", 64)
    rng, lengths = np.random.default_rng(0), np.array([30, 20])
    packed, best = rng.random((50, 5)).astype(np.float16), rng.integers(0, 9, 50).astype(np.int32)
    whole = hashlib.sha256(packed.tobytes()).hexdigest()
    assert Predictions(packed, lengths).digest == Predictions(packed, lengths[::-1]).digest == whole
    both = hashlib.sha256(packed[:, 0].tobytes() + best.tobytes()).hexdigest()
    assert CompactPredictions(packed[:, 0], best, lengths).digest == both


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (np.nan, "NaN or infinity among the predictions"),
        (np.inf, "NaN or infinity among the predictions"),
        (-0.5, "negative probabilities"),
        (0.99, "a row of probabilities is off 1 by "),
    ],
)
def test_a_row_that_is_no_distribution_is_refused_where_nothing_is_scored_too(
    number: float, message: str, tiny: Track, tmp_path: Path
) -> None:
    test = tiny.instances("test")
    unscored = np.flatnonzero(~test.scored[0, : test.lengths[0]])
    assert unscored.size
    kept = predict(tiny.task, Varied(tiny.task.io.width), test)
    assert isinstance(kept, Predictions)
    kept.packed[unscored[0], 0] = number
    kept.save(tmp_path / "seed-0" / "predictions.npz")
    with pytest.raises(UserError, match=f"cannot read predictions from .*npz: {message}"):
        read_predictions(tmp_path, 0, tiny.task, test)


@pytest.mark.parametrize(
    ("field", "number", "message"),
    [
        ("probability", np.nan, "numbers that are no probabilities"),
        ("probability", 1.5, "numbers that are no probabilities"),
        ("most_likely", 300, "a most likely token is outside the vocabulary"),
        ("most_likely", -1, "a most likely token is outside the vocabulary"),
    ],
)
def test_a_number_that_is_no_compact_prediction_is_refused(
    field: str, number: float, message: str, text_track: Track, ragged: Instances, tmp_path: Path
) -> None:
    kept = predict(text_track.task, Varied(300), ragged)
    getattr(kept, field)[3] = number
    kept.save(tmp_path / "seed-0" / "predictions.npz")
    with pytest.raises(UserError, match=f"cannot read predictions from .*npz: {message}"):
        read_predictions(tmp_path, 0, text_track.task, ragged)


def test_a_batch_has_a_bound(text_track: Track) -> None:
    names = ("",) * 8000
    assert rows_at_once(TokenIO(8000, 7999, 512, names), 512, 64) * 512 * 8000 * 8 <= BATCH_BYTES
    assert rows_at_once(TokenIO(8000, 7999, 512, names), 10**6, 64) == 1
    assert rows_at_once(TokenIO(19, 18, 1020, names[:19]), 1020, 500) == 500  # as before there was a bound
    assert rows_at_once(VectorIO(9, 2, 64), 64, 64) == 64
    shapes = []

    class Watched(Varied):
        def predict(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            shapes.append(tokens.shape)
            return super().predict(tokens)

    predict(text_track.task, Watched(300), text_track.instances("test"))
    assert shapes == [(20, 48)]


def test_the_default_baselines_without_truth(text_track: Track) -> None:
    names = [baseline.name for baseline in default_baselines(text_track, text_track.instances("test"))]
    plain = ["unigram", "2-gram", "3-gram"]
    assert sorted(names) == sorted([*plain, *(f"{name} witten-bell" for name in plain), "uniform"])


def test_a_model_is_asked_the_shortest_first_and_its_rows_are_in_order(tiny: Track, ragged: Instances) -> None:
    asked: list[int] = []

    class Model(Varied):
        def predict(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            asked.append(tokens.shape[1])
            return super().predict(tokens)

    many = ragged[np.random.default_rng(0).permutation(np.arange(200) % len(ragged))]
    stored = predict(tiny.task, Model(300), many)
    assert asked == sorted(asked)
    assert asked[0] < asked[-1]
    assert isinstance(stored, Predictions)
    whole = Predictions.pack(predict_in_batches(Varied(300), many), many, np.float16)
    np.testing.assert_array_equal(stored.packed, whole.packed)
