"""In-context regression against numpy's own solutions and the closed form of the posterior; ridge is the best."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.linear_regression import METHODS, InContextRegression
from baselines.oracle import Oracle
from regbench.tasks.base import Splits
from regbench.tasks.linear_regression import LinearRegression, LinearRegressionParameters
from regbench.tasks.pfa import PFA, PFAParameters
from regbench.utils.errors import UserError

TASK = LinearRegression(LinearRegressionParameters(d_x=4, d_y=3, n_examples=11, noise=0.7))


@pytest.fixture(scope="module")
def instances():
    return TASK.generate(Splits(train=1, validation=1, test=400, seed=2), "test")


def pairs(tokens, d_x):
    return tokens[0::2, :d_x].astype(np.float64), tokens[1::2, d_x:].astype(np.float64)


def test_least_squares_is_numpys_of_least_norm_at_every_prefix(instances):
    predicted = InContextRegression("least squares", 4, 3).predict(instances.tokens)
    for n in range(20):
        x, y = pairs(instances.tokens[n], 4)
        for i in range(1, 11):
            fitted = np.linalg.lstsq(x[:i], y[:i], rcond=None)[0]
            np.testing.assert_allclose(predicted[n, 2 * i + 1], x[i] @ fitted, rtol=1e-6, atol=1e-6)


def test_ridge_is_the_mean_of_the_gaussian_posterior(instances):
    """By conditioning the joint Gaussian of all ys of one component: they have the covariance x x' + noise^2 of equals."""
    predicted = InContextRegression("ridge", 4, 3, 0.7).predict(instances.tokens)
    for n in range(20):
        x, y = pairs(instances.tokens[n], 4)
        covariance = x @ x.T + 0.49 * np.eye(11)
        for i in range(11):
            mean = covariance[i, :i] @ np.linalg.inv(covariance[:i, :i]) @ y[:i]
            np.testing.assert_allclose(predicted[n, 2 * i + 1], mean, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e-110])
@pytest.mark.parametrize("method", METHODS)
def test_a_component_whose_inverse_overflows_is_zero(method, size):
    tokens = np.zeros((1, 6, 7))
    tokens[:, 0::2, :4], tokens[:, 1::2, 4:] = size, 1e100
    assert (InContextRegression(method, 4, 3).predict(tokens) == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_the_future_does_not_matter(instances, method):
    baseline = InContextRegression(method, 4, 3, 0.7)
    tokens = instances.tokens[:6]
    whole = baseline.predict(tokens)
    assert whole.shape == (6, 22, 3)
    for cut in (1, 2, 7, 12):
        np.testing.assert_allclose(baseline.predict(tokens[:, :cut]), whole[:, :cut], atol=1e-12)
        changed = tokens.copy()
        changed[:, cut:] = 1.0
        if cut % 2:  # a y is predicted from its x too, so that one must stay
            np.testing.assert_allclose(baseline.predict(changed)[:, : cut + 1], whole[:, : cut + 1], atol=1e-12)
    np.testing.assert_allclose(baseline.predict(tokens[3:4]), whole[3:4], atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_unaligned_arrays_give_the_same_bits(instances, method):
    baseline = InContextRegression(method, 4, 3, 0.7)
    tokens = instances.tokens[:6].astype(np.float64)
    unaligned = np.ndarray(tokens.shape, np.float64, buffer=bytearray(tokens.nbytes + 4), offset=4)
    unaligned[...] = tokens
    assert not unaligned.flags.aligned
    np.testing.assert_array_equal(baseline.predict(unaligned), baseline.predict(tokens))


def test_defaults_and_options(instances):
    found = InContextRegression.defaults(TASK, instances)
    assert [(b.name, b.anchor) for b in found] == [("zero", "start"), ("least squares", None), ("ridge", None)]
    assert [b.options for b in found] == [
        {"method": "zero"},
        {"method": "least squares"},
        {"method": "ridge", "noise": 0.7},
    ]
    assert InContextRegression.takes == ("vectors",)
    assert InContextRegression.defaults(PFA(PFAParameters()), instances) == []


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((2, 4)), r"must have the shape \(B, L, 7\), not \(2, 4\)"),
        (np.zeros((2, 4, 6)), r"must have the shape \(B, L, 7\), not \(2, 4, 6\)"),
        (np.zeros((2, 4, 7), int), "must be floating-point numbers, not int64"),
        (np.full((2, 4, 7), np.nan), "the vectors hold NaN or infinity"),
        (np.full((2, 4, 7), 1e200), "a component beyond 1e\\+100, whose square would overflow"),
        (np.full((2, 4, 7), -1e200), "a component beyond 1e\\+100, whose square would overflow"),
    ],
)
def test_what_are_no_vectors_of_the_task_is_refused(tokens, message):
    with pytest.raises(UserError, match=message):
        InContextRegression("zero", 4, 3).predict(tokens)


class TestOracle:
    def test_is_the_true_mean_in_any_batch_cut_or_padded(self, instances):
        oracle = Oracle(TASK, instances)
        np.testing.assert_array_equal(oracle.predict(instances.tokens), TASK.truth(instances))
        rows = np.array([17, 3, 17])
        padded = np.pad(instances.tokens[rows], ((0, 0), (0, 5), (0, 0)))
        np.testing.assert_array_equal(oracle.predict(padded)[:, :22], TASK.truth(instances)[rows])
        assert (oracle.predict(padded)[:, 22:] == 0).all()

    def test_an_instance_it_does_not_know_is_refused_by_its_row(self, instances):
        tokens = instances.tokens[:4].copy()
        tokens[2, 3, 5] += 1.0
        with pytest.raises(UserError, match="row 2 is none of the 400 instances"):
            Oracle(TASK, instances).predict(tokens)
