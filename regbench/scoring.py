"""Metrics with confidence: predictions against the truth, by instance and by position in the context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbench.data import Instances
from regbench.errors import UserError
from regbench.predictor import FloatArray, Predictor
from regbench.tasks.task import Task

NLL_FLOOR = 1e-7
"""Probabilities are raised to this before the logarithm, so that a zero costs 16.1 nats and not infinity."""

HIGHER_IS_BETTER = {"legal_accuracy": True, "token_accuracy": True, "tvd": False, "nll": False}


def score_positions(predicted: FloatArray, truth: FloatArray, tokens: NDArray[np.integer]) -> dict[str, FloatArray]:
    """Every metric at every position: (B, L, V), (B, L, V), (B, L) -> each (B, L) float64.

    legal_accuracy: 1 where the argmax has non-zero true probability (ICLL Eq. 10).  token_accuracy: 1 where the argmax is the
    sampled token.  tvd: half the L1 distance of the two distributions (ICLL Eq. 11).  nll: -log of the probability given to the
    sampled token, in nats, with NLL_FLOOR. Of equal maxima the first counts.
    """
    best = predicted.argmax(-1)
    token = tokens.astype(np.int64)[..., None]
    given = np.take_along_axis(predicted, token, -1)[..., 0]
    return {
        "legal_accuracy": (np.take_along_axis(truth, best[..., None], -1)[..., 0] > 0).astype(np.float64),
        "token_accuracy": (best == token[..., 0]).astype(np.float64),
        "tvd": 0.5 * np.abs(predicted - truth).sum(-1),
        "nll": -np.log(np.maximum(given, NLL_FLOOR)),
    }


@dataclass(frozen=True)
class Score:
    """A mean over scored positions and its standard error over instances."""

    value: float
    stderr: float


@dataclass(frozen=True)
class Scores:
    """The metrics of one predictor on N instances of length L.

    sums: by metric the (N,) sums over an instance's scored positions.  counts: (N,) how many those are.
    by_position: by metric the (L,) sums over instances.  position_counts: (L,).
    """

    sums: Mapping[str, FloatArray]
    counts: NDArray[np.int64]
    by_position: Mapping[str, FloatArray]
    position_counts: NDArray[np.int64]

    def __getitem__(self, metric: str) -> Score:
        """The mean over all scored positions (ICLL Eq. 10-11), with the standard error of that ratio over instances."""
        sums, counts = self.sums[metric], self.counts
        value = float(sums.sum() / counts.sum())
        n = len(counts)
        if n < 2:
            return Score(value, 0.0)
        residual = sums - value * counts
        return Score(value, float(np.sqrt((residual**2).sum() / (n * (n - 1))) / counts.mean()))

    def table(self) -> dict[str, Score]:
        return {metric: self[metric] for metric in self.sums}

    def curve(self, metric: str, width: int) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
        """Over bins of `width` positions: mean position, mean score, and how many positions of all instances they are over.

        A bin in which nothing is scored is left out.
        """
        edges = np.arange(0, len(self.position_counts), width)
        sums = np.add.reduceat(self.by_position[metric], edges)
        counts = np.add.reduceat(self.position_counts, edges)
        position = np.add.reduceat(self.position_counts * np.arange(len(self.position_counts)), edges)
        some = counts > 0
        return position[some] / counts[some], sums[some] / counts[some], counts[some]


def bin_width(length: int) -> int:
    """The bins of a curve over `length` positions: the power of two, at least 4, that gives at most 64 of them."""
    return max(4, 1 << int(np.ceil(np.log2(max(1, length / 64)))))


def score(task: Task, instances: Instances, predictions: Iterable[FloatArray]) -> Scores:
    """Scores predictions that come as consecutive batches (B, L, V) of the instances, in order.

    Raises:
        UserError: wrong shape, or rows that are not distributions.
    """
    n, length = instances.tokens.shape
    sums = {m: np.zeros(n) for m in task.scores}
    by_position = {m: np.zeros(length) for m in task.scores}
    start = 0
    for predicted in predictions:
        rows = slice(start, start + len(predicted))
        part = instances[rows]
        wide = part.tokens.shape[1]
        check_distributions(predicted[:, :wide], (*part.tokens.shape, task.io.vocab_size))
        for metric, values in score_positions(predicted[:, :wide], task.truth(part), part.tokens).items():
            values = np.where(part.scored, values, 0.0)
            sums[metric][rows] = values.sum(1)
            by_position[metric][:wide] += values.sum(0)
        start += len(predicted)
    if start != n:
        raise UserError(f"{start} predictions for {n} instances")
    counts, position_counts = instances.scored.sum(1), instances.scored.sum(0)
    return Scores(sums, counts, by_position, position_counts)


def check_distributions(predicted: FloatArray, shape: tuple[int, ...]) -> None:
    """Raises:
    UserError: predictions of another shape, or rows that are not finite, not negative and summing to 1 (within 1e-3).
    """
    if predicted.shape != shape:
        raise UserError(f"predictions have the shape {predicted.shape}, not {shape}")
    if not np.isfinite(predicted).all():
        raise UserError("predictions hold NaN or infinity")
    if (predicted < 0).any():
        raise UserError("predictions hold negative probabilities")
    off = np.abs(predicted.sum(-1) - 1.0).max(initial=0.0)
    if off > 1e-3:
        raise UserError(f"predicted rows must sum to 1; one is off by {off:.3g}")


def predict_in_batches(predictor: Predictor, instances: Instances, batch_size: int = 64) -> Iterable[FloatArray]:
    """The predictions for `instances`, a batch at a time, each cut to its longest instance."""
    for start in range(0, len(instances), batch_size):
        yield predictor.predict(instances[start : start + batch_size].tokens)


def share_of_the_way(value: float, start: float, end: float) -> float:
    """How far `value` has come from `start` (the unigram model) to `end` (the truth): 0 at the one, 1 at the other."""
    return (value - start) / (end - start) if end != start else 0.0
