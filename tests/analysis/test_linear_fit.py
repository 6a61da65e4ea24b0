"""What a linear map reads from y: on made-up ys whose answers are known, and only of instances it was not fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.analysis.linear_fit import LinearFit, fit_hidden, fitted_rows, hidden_targets, linear_fit
from regbench.analysis.segments import Segments, segments
from regbench.data.instances import Instances
from regbench.tasks.arithmetic import Arithmetic
from regbench.tasks.base import Splits
from regbench.tasks.linear_regression import LinearRegression
from regbench.tracks import Track

SPLITS = Splits(train=1, validation=1, test=40, seed=0)


def stretches(rows: int, start: int = 2, cut: int = 6, end: int = 12) -> Segments:
    return Segments(np.arange(rows), *(np.full(rows, at) for at in (start, cut, end)), np.zeros(rows, dtype=np.int64))


def test_linear_fit_finds_what_is_linear_and_nothing_else() -> None:
    generator = np.random.default_rng(0)
    hidden = generator.uniform(-9, 10, (200, 2))
    y = np.repeat((hidden @ generator.standard_normal((2, 6)) + 3.0)[:, None], 14, axis=1)
    noisy = y + 0.01 * generator.standard_normal(y.shape)
    fit = linear_fit(noisy, stretches(200), ["a", "b"], hidden)
    assert fit.names == ["a", "b"]
    assert len(fit.true) == 200  # every stretch is read once
    assert (fit.explained > 0.999).all()
    assert (fit.error < 0.02).all()
    nothing = linear_fit(generator.standard_normal(y.shape), stretches(200), ["a", "b"], hidden)
    assert (nothing.explained < 0.2).all()
    assert (nothing.error > 0.6).all()


def test_linear_fit_reads_y_behind_the_cut_alone() -> None:
    hidden = np.random.default_rng(0).uniform(0, 1, (60, 1))
    y = np.full((60, 14, 2), np.nan)
    y[:, 6:12] = hidden[:, None]
    assert linear_fit(y, stretches(60), ["a"], hidden).explained[0] == pytest.approx(1.0)


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


def test_every_stretch_is_read_by_a_map_fitted_to_other_instances() -> None:
    """Each of two stretches of an instance has its secret in a component of y of their own: nobody else can read it."""
    instances = 12
    row = np.repeat(np.arange(instances), 2)
    parts = Segments(row, *(np.full(24, at) for at in (0, 1, 5)), np.tile([0, 1], instances))
    hidden = np.random.default_rng(0).standard_normal((instances, 1))[row]
    y = np.zeros((instances, 6, instances))
    y[np.arange(instances), :, np.arange(instances)] = hidden[::2]
    fit = linear_fit(y, parts, ["a"], hidden)
    assert fit.row.tolist() == row.tolist()
    assert fit.explained[0] < 0.2
    assert fit.fitted == fitted_rows(parts) == 20  # two of 12 instances in the largest of ten folds


def regression(count: int, width: int) -> tuple[np.ndarray, Instances, Segments]:
    """A hidden number behind each instance, in the first component of y; the others are noise."""
    generator = np.random.default_rng(1)
    hidden, parts = generator.standard_normal((count, 1)), stretches(count)
    y = np.repeat(generator.standard_normal((count, 1, width)), 14, axis=1)
    y[:, :, :1] = hidden[:, None] + 0.5 * generator.standard_normal((count, 14, 1))
    tokens = np.zeros((count, 14), np.int8)
    scored = np.ones(tokens.shape, np.bool_)
    return y, Instances(tokens, np.full(count, 14, np.int32), scored, "x/1", truth={"w": hidden}), parts


def test_the_error_hardly_depends_on_how_many_stretches_there_are() -> None:
    errors = []
    for count in (60, 200, 2000):
        fit = fit_hidden(*regression(count, 10))
        assert isinstance(fit, LinearFit)
        errors.append(fit.error[0])
    assert max(errors) < 1.3 * min(errors)


def test_of_fewer_than_five_stretches_for_each_component_there_is_no_fit() -> None:
    """Of 55 instances the largest of ten folds has 6, and 49 are left to fit to; of 56, 50."""
    said = fit_hidden(*regression(55, 10))
    assert said == "left out: 49 stretches to fit to are fewer than 5 for each of the 10 components of y (50)"
    assert isinstance(fit_hidden(*regression(56, 10)), LinearFit)
    assert str(fit_hidden(*regression(1, 10))).startswith("left out: 0 stretches")


def test_nothing_hidden_is_no_fit(tiny: Track) -> None:
    test = tiny.instances("test")
    assert fit_hidden(np.zeros((24, 26, 2)), test, segments(tiny.task, test)) is None
