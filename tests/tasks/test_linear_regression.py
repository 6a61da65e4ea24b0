"""The task `linear_regression`: vectors, truth, splits, and the same bytes everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.metrics.scores import score
from regbench.tasks.base import Splits, VectorIO
from regbench.tasks.linear_regression import LinearRegression, LinearRegressionParameters

TASK = LinearRegression(LinearRegressionParameters(d_x=3, d_y=2, n_examples=6, noise=0.5))
SPLITS = Splits(train=60, validation=10, test=30, seed=0)


def test_the_io_says_what_goes_in_and_out() -> None:
    assert TASK.io == VectorIO(d_in=5, d_out=2, max_length=12)
    assert (TASK.io.kind, TASK.io.separator) == ("vectors", 0.0)


def test_pairs_alternate_and_ys_are_the_noisy_linear_function() -> None:
    instances = TASK.generate(SPLITS, "test")
    assert instances.tokens.shape == (30, 12, 5)
    assert instances.tokens.dtype == np.float32
    assert (instances.tokens[:, 0::2, 3:] == 0).all()
    assert (instances.tokens[:, 1::2, :3] == 0).all()
    np.testing.assert_array_equal(instances.scored, np.tile([False, True], (30, 6)))
    truth = TASK.truth(instances)
    assert truth.shape == (30, 12, 2)
    assert (truth[:, 0::2] == 0).all()
    for n in range(30):
        for i in range(6):
            mean = instances.truth["weights"][n] @ instances.tokens[n, 2 * i, :3].astype(np.float64)
            np.testing.assert_allclose(truth[n, 2 * i + 1], mean, rtol=1e-12)
            assert np.abs(instances.tokens[n, 2 * i + 1, 3:] - mean).max() < 0.5 * 6


def test_everything_is_gaussian_with_the_stated_variance() -> None:
    instances = TASK.generate(Splits(train=4000, validation=1, test=1, seed=1), "train")
    noise = (instances.tokens[..., 3:] - TASK.truth(instances))[instances.scored]
    parts = {"x": instances.tokens[:, 0::2, :3], "W": instances.truth["weights"], "noise": noise / 0.5}
    for name, values in parts.items():
        flat = values.astype(np.float64).ravel()
        for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            assert (flat**power).mean() == pytest.approx(moment, abs=5 * np.sqrt(variance / flat.size)), (name, power)


def test_the_truth_is_off_by_the_noise_and_progress_counts_pairs() -> None:
    instances = TASK.generate(SPLITS, "test")
    np.testing.assert_array_equal(TASK.progress(instances)[0], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    scores = score(TASK, instances, [TASK.truth(instances)])
    assert scores["truth_mse"].value == 0.0
    assert scores["mse"].value == pytest.approx(TASK.statistics(instances)["mean_square_noise"])
    assert scores["mse"].value == pytest.approx(0.25, abs=0.06)
    steps, _, counts = scores.steps["mse"].curve()
    assert steps.tolist() == list(range(6))
    assert counts.tolist() == [30] * 6


def test_show_has_every_pair_and_its_mean() -> None:
    instances = TASK.generate(SPLITS, "test")
    lines, means = TASK.show(instances, 2).splitlines(), TASK.truth(instances[2:3])[0]
    for t, line in enumerate(lines):
        given, _, mean = line.partition("  -> ")
        assert given.split() == [f"{value:.2f}" for value in instances.tokens[2, t]]
        assert mean.split() == ([f"{value:.2f}" for value in means[t]] if instances.scored[2, t] else [])
