"""t-SNE: its probabilities, its gradient, and that it keeps neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.analysis.tsne import divergence, gradient, joint_probabilities, tsne
from regbench.utils.errors import UserError


def clusters() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    centres = 10.0 * generator.standard_normal((4, 8))
    topics = np.repeat(np.arange(4), 15)
    return centres[topics] + generator.standard_normal((60, 8)), topics


def test_every_point_has_as_many_neighbours_as_the_perplexity_says() -> None:
    points, _ = clusters()
    joint = joint_probabilities(points, 12.0)
    assert joint.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(joint, joint.T)
    assert (np.diag(joint) == 0).all()
    # a row alone, found again by search: exp(entropy) is the perplexity
    squared = ((points[0] - points[1:]) ** 2).sum(1)
    best = min(
        (abs(np.exp(-(p * np.log(p + 1e-300)).sum()) - 12.0), width)
        for width in np.geomspace(0.01, 100, 4000)
        for p in [np.exp(-(squared - squared.min()) / width) / np.exp(-(squared - squared.min()) / width).sum()]
    )
    assert best[0] < 0.02
    p = np.exp(-(squared - squared.min()) / best[1])
    one_sided = p / p.sum()
    assert (2 * 60 * joint[0, 1:] + 1e-9 >= one_sided * 0.99).all()


def test_the_gradient_is_that_of_the_divergence() -> None:
    generator = np.random.default_rng(1)
    joint, place = joint_probabilities(generator.standard_normal((7, 3)), 2.0), generator.standard_normal((7, 2))
    found, step = gradient(place, joint), 1e-6
    for i in range(7):
        for c in range(2):
            moved = [place.copy(), place.copy()]
            moved[0][i, c] += step
            moved[1][i, c] -= step
            slope = (divergence(moved[0], joint) - divergence(moved[1], joint)) / (2 * step)
            assert found[i, c] == pytest.approx(slope, abs=1e-7)


def test_clusters_stay_together_and_the_picture_is_the_same_again() -> None:
    points, topics = clusters()
    places = tsne(points)
    assert places.shape == (60, 2)
    apart = ((places[:, None] - places) ** 2).sum(-1) + np.diag(np.full(60, np.inf))
    assert (topics[apart.argmin(1)] == topics).all()
    joint = joint_probabilities(points, 15.0)
    assert divergence(places, joint) < 0.5 * divergence(1e-4 * np.random.default_rng(0).standard_normal((60, 2)), joint)
    np.testing.assert_array_equal(places, tsne(points))


def test_few_points_and_points_that_coincide() -> None:
    assert np.isfinite(tsne(np.zeros((6, 3)))).all()
    assert np.isfinite(tsne(np.eye(4))).all()
    with pytest.raises(UserError, match="needs four points or more, not 3"):
        tsne(np.eye(3))
