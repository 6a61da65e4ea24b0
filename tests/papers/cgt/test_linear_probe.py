"""Linear probes: on made-up representations whose answers are known, and only of instances that a map was not fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from papers.cgt.linear_probe import LinearProbe, fitted_segments, hidden_targets, linear_probe, probe_hidden
from papers.cgt.segments import Segments, segments
from regbench.data.instances import Instances
from regbench.tasks.arithmetic import Arithmetic
from regbench.tasks.base import Splits
from regbench.tasks.linear_regression import LinearRegression
from regbench.tracks import Track
from tests.papers.cgt.conftest import segments_of

SPLITS = Splits(train=1, validation=1, test=40, seed=0)


def test_a_linear_probe_finds_what_is_linear_and_nothing_else() -> None:
    generator = np.random.default_rng(0)
    hidden = generator.uniform(-9, 10, (200, 2))
    y = np.repeat((hidden @ generator.standard_normal((2, 6)) + 3.0)[:, None], 14, axis=1)
    noisy = y + 0.01 * generator.standard_normal(y.shape)
    probe = linear_probe(noisy, segments_of(200), ["a", "b"], hidden)
    assert probe.names == ["a", "b"]
    assert len(probe.targets) == 200  # every segment is read once
    assert (probe.r_squared > 0.999).all()
    assert (probe.error < 0.02).all()
    nothing = linear_probe(generator.standard_normal(y.shape), segments_of(200), ["a", "b"], hidden)
    assert (nothing.r_squared < 0.2).all()
    assert (nothing.error > 0.6).all()


@pytest.mark.ci
def test_what_is_hidden_in_a_task(tiny: Track) -> None:
    arithmetic = Arithmetic(Arithmetic.Parameters(n_tasks=3, n_digits=1))
    instances = arithmetic.generate(SPLITS, "test")
    parts = segments(arithmetic, instances)
    found = hidden_targets(instances, parts)
    assert found is not None
    names, targets = found
    assert names == ["a", "b"]
    np.testing.assert_array_equal(targets[4], instances.truth["coefficients"][1, 1])
    regression = LinearRegression(LinearRegression.Parameters(d_x=2, d_y=1, n_examples=4))
    instances = regression.generate(SPLITS, "test")
    found = hidden_targets(instances, segments(regression, instances))
    assert found is not None
    assert found[0] == ["weights[0]", "weights[1]"]
    np.testing.assert_array_equal(found[1][7], instances.truth["weights"][7, 0])
    test = tiny.instances("test")
    assert hidden_targets(test, segments(tiny.task, test)) is None


def test_every_segment_is_read_by_a_map_fitted_to_other_instances() -> None:
    """Each of two segments of an instance has its secret in a component of y of their own: nobody else can read it."""
    instances = 12
    row = np.repeat(np.arange(instances), 2)
    parts = Segments(row, *(np.full(24, at) for at in (0, 1, 5)), np.tile([0, 1], instances))
    hidden = np.random.default_rng(0).standard_normal((instances, 1))[row]
    y = np.zeros((instances, 6, instances))
    y[np.arange(instances), :, np.arange(instances)] = hidden[::2]
    probe = linear_probe(y, parts, ["a"], hidden)
    assert probe.row.tolist() == row.tolist()
    assert probe.r_squared[0] < 0.2
    assert probe.fitted == fitted_segments(parts) == 20  # two of 12 instances in the largest of ten folds


def regression(count: int, width: int) -> tuple[np.ndarray, Instances, Segments]:
    """A hidden number behind each instance, in the first component of y; the others are noise."""
    generator = np.random.default_rng(1)
    hidden, parts = generator.standard_normal((count, 1)), segments_of(count)
    y = np.repeat(generator.standard_normal((count, 1, width)), 14, axis=1)
    y[:, :, :1] = hidden[:, None] + 0.5 * generator.standard_normal((count, 14, 1))
    tokens = np.zeros((count, 14), np.int8)
    scored = np.ones(tokens.shape, np.bool_)
    return y, Instances(tokens, np.full(count, 14, np.int32), scored, "x/1", truth={"w": hidden}), parts


def test_of_fewer_than_five_segments_for_each_component_there_is_no_probe() -> None:
    """Of 55 instances the largest of ten folds has 6, and 49 are left to fit to; of 56, 50."""
    message = probe_hidden(*regression(55, 10))
    assert message == "left out: only 49 segments to fit to, and 10 components need 50 (5 each)"
    assert isinstance(probe_hidden(*regression(56, 10)), LinearProbe)
    assert str(probe_hidden(*regression(1, 10))).startswith("left out: only 0 segments")


def test_without_hidden_numbers_there_is_no_probe(tiny: Track) -> None:
    test = tiny.instances("test")
    assert probe_hidden(np.zeros((24, 26, 2)), test, segments(tiny.task, test)) is None


def test_the_error_is_that_of_least_squares_fold_by_fold() -> None:
    """Against NumPy, with one direction of almost no variance, as a layer norm leaves it: nothing of it may be cut off."""
    y, instances, parts = regression(80, 6)
    y -= y.mean(-1, keepdims=True)
    y[..., 0] += 1e-7 * np.random.default_rng(2).standard_normal(y.shape[:2])
    found = probe_hidden(y, instances, parts)
    assert isinstance(found, LinearProbe)
    generator = np.random.default_rng(0)
    fold = generator.permutation(80) % 10
    places = 6 + (generator.random(80) * 3).astype(np.int64)
    features = np.array([[*y[k, place : place + 4].mean(0), 1.0] for k, place in enumerate(places)])
    for number in range(10):
        own = fold == number
        weights = np.linalg.lstsq(features[~own], found.targets[~own], rcond=None)[0]
        np.testing.assert_allclose(found.predictions[own], features[own] @ weights, rtol=1e-9, atol=1e-9)
