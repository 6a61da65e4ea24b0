"""t-SNE, exact, for some hundreds of points: neighbours kept in two dimensions (van der Maaten and Hinton 2008)."""

from __future__ import annotations

import numpy as np

from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError

_STEPS, _EXAGGERATED, _EXAGGERATION = 500, 125, 4.0


def tsne(points: FloatArray, perplexity: float = 15.0, seed: int = 0) -> FloatArray:
    """(N, d) -> (N, 2). Gradient descent with momentum and gains on the divergence of Eq. 2, exaggerated for the first quarter.

    The same points and seed give the same picture. The perplexity is lowered to a third of N - 1 where N is small.

    Raises:
        UserError: fewer than four points.
    """
    n = len(points)
    if n < 4:
        raise UserError(f"t-SNE needs four points or more, not {n}")
    joint = joint_probabilities(points, min(perplexity, (n - 1) / 3))
    generator = np.random.default_rng(seed)
    place, velocity, gain = 1e-4 * generator.standard_normal((n, 2)), np.zeros((n, 2)), np.ones((n, 2))
    rate = max(n / _EXAGGERATION / 4, 10.0)
    for step in range(_STEPS):
        early = step < _EXAGGERATED
        slope = gradient(place, joint * (_EXAGGERATION if early else 1.0))
        gain = np.where(np.sign(slope) != np.sign(velocity), gain + 0.2, np.maximum(0.8 * gain, 0.01))
        velocity = (0.5 if early else 0.8) * velocity - rate * gain * slope
        place = place + velocity
        place -= place.mean(0)
    return place


def joint_probabilities(points: FloatArray, perplexity: float) -> FloatArray:
    """P of Eq. 1: (N, d) -> (N, N), symmetric, summing to 1; each row's width is found so that its entropy is log(perplexity)."""
    squared = _squared_distances(points)
    n = len(points)
    low, high, precision = np.zeros(n), np.full(n, np.inf), 1.0 / np.maximum(squared.mean(1), 1e-12)
    conditional = np.zeros_like(squared)
    apart = squared + np.diag(np.full(n, np.inf))
    nearest = apart.min(1, keepdims=True)
    for _ in range(64):
        weights = np.exp(-(apart - nearest) * precision[:, None])
        conditional = weights / weights.sum(1, keepdims=True)
        entropy = -np.sum(conditional * np.log(np.maximum(conditional, 1e-300)), axis=1)
        broad = entropy > np.log(perplexity)
        low, high = np.where(broad, precision, low), np.where(broad, high, precision)
        precision = np.where(np.isinf(high), 2.0 * precision, (low + np.where(np.isinf(high), 0.0, high)) / 2.0)
    joint: FloatArray = (conditional + conditional.T) / (2.0 * n)
    return joint


def divergence(place: FloatArray, joint: FloatArray) -> float:
    """KL(P || Q) with Q from Student's t in two dimensions, (N, 2), (N, N). Eq. 2."""
    near = _affinities(place)
    q = near / near.sum()
    kept = joint > 0
    return float((joint[kept] * np.log(joint[kept] / np.maximum(q[kept], 1e-300))).sum())


def gradient(place: FloatArray, joint: FloatArray) -> FloatArray:
    """Of `divergence` by the places: (N, 2), (N, N) -> (N, 2). Eq. 5."""
    near = _affinities(place)
    pull = (joint - near / near.sum()) * near
    slope: FloatArray = 4.0 * (pull.sum(1)[:, None] * place - pull @ place)
    return slope


def _affinities(place: FloatArray) -> FloatArray:
    near: FloatArray = 1.0 / (1.0 + _squared_distances(place))
    np.fill_diagonal(near, 0.0)
    return near


def _squared_distances(points: FloatArray) -> FloatArray:
    norms = (points**2).sum(1)
    squared: FloatArray = np.maximum(norms[:, None] + norms - 2.0 * points @ points.T, 0.0)
    return squared
