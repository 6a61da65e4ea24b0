"""Metrics against hand-worked examples, errors against a bootstrap."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.data import Instances
from regbench.errors import UserError
from regbench.scoring import (
    NLL_FLOOR,
    Scores,
    bin_width,
    check_distributions,
    predict_in_batches,
    score,
    score_positions,
    share_of_the_way,
)
from regbench.tracks import Track


def test_metrics_of_one_position_by_hand() -> None:
    truth = np.array([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    predicted = np.array([[[0.2, 0.7, 0.1], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]]])
    tokens = np.array([[0, 0, 2]])
    got = score_positions(predicted, truth, tokens)
    np.testing.assert_array_equal(got["legal_accuracy"], [[1, 0, 0]])  # argmax 1 is legal; 2 is not; 0 is not
    np.testing.assert_array_equal(got["token_accuracy"], [[0, 0, 0]])
    np.testing.assert_allclose(got["tvd"], [[0.3, 0.7, 1.0]])
    np.testing.assert_allclose(got["nll"], [[-np.log(0.2), -np.log(0.3), -np.log(NLL_FLOOR)]])


def test_the_first_of_equal_maxima_counts() -> None:
    got = score_positions(np.array([[[0.5, 0.5]]]), np.array([[[1.0, 0.0]]]), np.array([[1]]))
    assert got["legal_accuracy"].item() == 1
    assert got["token_accuracy"].item() == 0


def test_the_truth_scores_exactly_one_and_zero(tiny: Track) -> None:
    test = tiny.instances("test")
    truth = tiny.task.truth(test)
    truth[~test.scored] = 1 / truth.shape[-1]
    scores = score(tiny.task, test, [truth])
    assert scores["legal_accuracy"].value == 1.0
    assert scores["tvd"].value == 0.0
    assert scores["legal_accuracy"].stderr == 0.0


def test_only_scored_positions_count(tiny: Track) -> None:
    """Any change elsewhere leaves every score as it is; one at a scored position does not."""
    test = tiny.instances("test")
    rng = np.random.default_rng(0)
    predicted = rng.dirichlet(np.ones(tiny.task.io.vocab_size), test.tokens.shape)
    base = score(tiny.task, test, [predicted]).table()
    changed = predicted.copy()
    changed[~test.scored] = np.eye(tiny.task.io.vocab_size)[0]
    assert score(tiny.task, test, [changed]).table() == base
    changed[test.scored] = np.eye(tiny.task.io.vocab_size)[0]
    assert score(tiny.task, test, [changed]).table() != base


def test_batches_do_not_matter(tiny: Track) -> None:
    test = tiny.instances("test")

    class Fixed:
        def predict(self, tokens: np.ndarray) -> np.ndarray:
            rng = np.random.default_rng(5)
            table = rng.dirichlet(np.ones(tiny.task.io.vocab_size), tiny.task.io.vocab_size)
            return table[np.asarray(tokens, int)]

    one = score(tiny.task, test, predict_in_batches(Fixed(), test, 1))
    many = score(tiny.task, test, predict_in_batches(Fixed(), test, 7))
    for metric in tiny.task.scores:
        assert one[metric].value == pytest.approx(many[metric].value, abs=1e-12)
        np.testing.assert_allclose(one.by_position[metric], many.by_position[metric])


def test_standard_error_agrees_with_a_bootstrap_over_instances() -> None:
    rng = np.random.default_rng(1)
    counts = rng.integers(50, 200, 400)
    quality = rng.normal(0.7, 0.1, 400)
    sums = quality * counts
    scores = Scores({"m": sums}, counts, {"m": np.zeros(1)}, np.zeros(1, int))
    draws = rng.integers(0, 400, (4000, 400))
    bootstrap = (sums[draws].sum(1) / counts[draws].sum(1)).std()
    assert scores["m"].stderr == pytest.approx(bootstrap, rel=0.08)


def test_curve_averages_over_what_is_scored() -> None:
    by_position = np.array([0.0, 2.0, 1.0, 0.0, 3.0, 0.0, 0.0, 0.0])
    counts = np.array([0, 4, 2, 0, 4, 0, 0, 0])
    scores = Scores({"m": np.array([6.0])}, np.array([10]), {"m": by_position}, counts)
    position, value, count = scores.curve("m", 4)
    np.testing.assert_allclose(position, [(4 * 1 + 2 * 2) / 6, 4.0])
    np.testing.assert_allclose(value, [0.5, 0.75])
    np.testing.assert_array_equal(count, [6, 4])


@pytest.mark.parametrize(("length", "width"), [(1, 4), (195, 4), (256, 4), (257, 8), (700, 16), (1024, 16)])
def test_bin_width(length: int, width: int) -> None:
    assert bin_width(length) == width


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda p: p[:, :, :-1], r"have the shape \(2, 3, 3\), not \(2, 3, 4\)"),
        (lambda p: np.where(p > 0.24, np.nan, p), "NaN"),
        (lambda p: p * 1.01, "must sum to 1; one is off by 0.01"),
        (lambda p: p + np.array([0.5, -0.5, 0, 0]), "negative"),
    ],
)
def test_what_is_no_distribution_is_refused(fault: object, message: str) -> None:
    good = np.full((2, 3, 4), 0.25)
    check_distributions(good, (2, 3, 4))
    with pytest.raises(UserError, match=message):
        check_distributions(fault(good), (2, 3, 4))  # type: ignore[operator]


def test_too_few_predictions_are_refused(tiny: Track) -> None:
    test = tiny.instances("test")
    with pytest.raises(UserError, match="0 predictions for 24 instances"):
        score(tiny.task, test, iter(list[Instances]()))  # type: ignore[arg-type]


def test_share_of_the_way() -> None:
    assert share_of_the_way(0.6, 0.5, 1.0) == pytest.approx(0.2)
    assert share_of_the_way(0.3, 0.6, 0.0) == pytest.approx(0.5)
