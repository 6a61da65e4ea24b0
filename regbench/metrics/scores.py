"""Metrics with confidence: predictions against the truth, by instance and by position in the context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.metrics.metric import NLL_FLOOR, WITHOUT_TRUTH
from regbench.models.predictor import Predictor
from regbench.tasks.base import IO, Task, VectorIO
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

BATCH_BYTES = 128 << 20
"""The most memory that the predictions for one batch may take: while one is scored the next is made, so there are two."""


@dataclass(frozen=True)
class Brief:
    """Of predictions for tokens (B, L) no more than `WITHOUT_TRUTH` needs.

    given: (B, L), the probability given to each token.  best: (B, L), the most likely token; of equal maxima the first.
    """

    given: FloatArray
    best: IntArray

    def __len__(self) -> int:
        return len(self.given)

    @classmethod
    def of(cls, predicted: FloatArray, tokens: IntArray) -> Brief:
        """From (B, L, V) distributions and the (B, L) tokens."""
        token = tokens.astype(np.int64)[..., None]
        return cls(np.take_along_axis(predicted, token, -1)[..., 0], predicted.argmax(-1))


def score_brief(brief: Brief, tokens: IntArray) -> dict[str, FloatArray]:
    """The metrics `WITHOUT_TRUTH` at every position, each (B, L) float64; see `score_positions`."""
    return {
        "token_accuracy": (brief.best == tokens.astype(np.int64)).astype(np.float64),
        "nll": -np.log(np.maximum(brief.given.astype(np.float64), NLL_FLOOR)),
    }


def score_positions(predicted: FloatArray, truth: FloatArray, tokens: NDArray[np.integer]) -> dict[str, FloatArray]:
    """Every metric at every position: (B, L, V), (B, L, V), (B, L) -> each (B, L) float64.

    legal_accuracy: 1 where the argmax has non-zero true probability (ICLL Eq. 10).  token_accuracy: 1 where the argmax is the
    sampled token.  tvd: half the L1 distance of the two distributions (ICLL Eq. 11).  nll: -log of the probability given to the
    sampled token, in nats, with NLL_FLOOR. Of equal maxima the first counts.
    """
    brief = Brief.of(predicted, tokens)
    alone = score_brief(brief, tokens)
    return {
        "legal_accuracy": (np.take_along_axis(truth, brief.best[..., None], -1)[..., 0] > 0).astype(np.float64),
        "token_accuracy": alone["token_accuracy"],
        "tvd": 0.5 * np.abs(predicted - truth).sum(-1),
        "nll": alone["nll"],
    }


def score_vectors(predicted: FloatArray, truth: FloatArray, targets: FloatArray) -> dict[str, FloatArray]:
    """Every metric of vectors at every position: three times (B, L, D_out) -> each (B, L) float64.

    mse: the mean over components of the squared difference to what was sampled.  truth_mse: the same to its true mean.
    """
    return {"mse": ((predicted - targets) ** 2).mean(-1), "truth_mse": ((predicted - truth) ** 2).mean(-1)}


@dataclass(frozen=True)
class Score:
    """A mean over scored positions and its standard error over instances."""

    value: float
    stderr: float

    @classmethod
    def of(cls, sums: FloatArray, counts: NDArray[np.int64]) -> Score:
        """Of (N,) sums over (N,) numbers of positions: their ratio, with its standard error over instances."""
        value = float(sums.sum() / counts.sum())
        n = len(counts)
        if n < 2:
            return cls(value, 0.0)
        residual = sums - value * counts
        return cls(value, float(np.sqrt((residual**2).sum() / (n * (n - 1))) / counts.mean()))


@dataclass(frozen=True)
class Steps:
    """A metric by progress, of tasks that tell theirs: (N, K) sums and how many positions they are over; what is counted."""

    sums: FloatArray
    counts: NDArray[np.int64]
    label: str

    def curve(self) -> tuple[FloatArray, list[Score], NDArray[np.int64]]:
        """The steps at which something is scored, their scores with standard errors, and over how many positions.

        More than 64 steps are put together, `bin_width` to a bin: the step is then the mean one of the positions in it.
        """
        k = self.counts.shape[1]
        edges = np.arange(0, k, bin_width(k) if k > MOST_BINS else 1)
        sums, counts = np.add.reduceat(self.sums, edges, axis=1), np.add.reduceat(self.counts, edges, axis=1)
        total = counts.sum(0)
        steps = np.add.reduceat(self.counts.sum(0) * np.arange(k), edges)
        some = np.flatnonzero(total)
        return steps[some] / total[some], [Score.of(sums[:, i], counts[:, i]) for i in some], total[some]


@dataclass(frozen=True)
class Scores:
    """The metrics of one predictor on N instances of length L.

    sums: by metric the (N,) sums over an instance's scored positions.  counts: (N,) how many those are.
    by_position: by metric the (L,) sums over instances.  position_counts: (L,).
    group_counts, group_position_counts: the same counts of scores that are over a group of positions only.
    steps: by metric, where the task tells its `progress`.
    """

    sums: Mapping[str, FloatArray]
    counts: NDArray[np.int64]
    by_position: Mapping[str, FloatArray]
    position_counts: NDArray[np.int64]
    group_counts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    group_position_counts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    steps: Mapping[str, Steps] = field(default_factory=dict)

    def __getitem__(self, metric: str) -> Score:
        """The mean over all scored positions (ICLL Eq. 10-11), with the standard error of that ratio over instances."""
        return Score.of(self.sums[metric], self.counts_of(metric))

    def counts_of(self, metric: str) -> NDArray[np.int64]:
        """(N,): over how many positions of each instance a metric is."""
        return self.group_counts.get(metric, self.counts)

    def table(self) -> dict[str, Score]:
        return {metric: self[metric] for metric in self.sums}

    def curve(self, metric: str, width: int) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
        """Over bins of `width` positions: mean position, mean score, and how many positions of all instances they are over.

        A bin in which nothing is scored is left out.
        """
        position_counts = self.group_position_counts.get(metric, self.position_counts)
        edges = np.arange(0, len(position_counts), width)
        sums = np.add.reduceat(self.by_position[metric], edges)
        counts = np.add.reduceat(position_counts, edges)
        position = np.add.reduceat(position_counts * np.arange(len(position_counts)), edges)
        some = counts > 0
        return position[some] / counts[some], sums[some] / counts[some], counts[some]


MOST_BINS = 64
"""Of a curve: more could not be told apart."""


def bin_width(length: int) -> int:
    """The bins of a curve over `length` positions: the power of two, at least 4, that gives at most 64 of them."""
    return max(4, 1 << int(np.ceil(np.log2(max(1, length / MOST_BINS)))))


def score(task: Task, instances: Instances, predictions: Iterable[FloatArray | Brief]) -> Scores:
    """Scores predictions that come as consecutive batches (B, L, V) of the instances, in order; of vectors (B, L, D_out).

    Of a task that does not know its truth they may come as `Brief` too.

    Raises:
        UserError: wrong shape, or rows that are not distributions; of vectors, NaN or infinity.
        TypeError: the task asks for a metric that needs a truth, and knows none.
    """
    _check_metrics(task)
    n, length = instances.scored.shape
    counted = _counted(task, instances)
    steps = task.progress(instances)
    by_step = {} if steps is None else {m: _no_steps(counted[m], steps, task.progress_label) for m in task.scores}
    sums = {m: np.zeros(n) for m in task.scores}
    by_position = {m: np.zeros(length) for m in task.scores}
    start = 0
    for predicted in predictions:
        rows = slice(start, start + len(predicted))
        part = instances[rows]
        wide = part.scored.shape[1]
        if isinstance(predicted, Brief):
            predicted = Brief(predicted.given[:, :wide], predicted.best[:, :wide])
        else:
            predicted = predicted[:, :wide]
        metrics = _position_scores(task, part, predicted)
        for score_name in task.scores:
            metric, _ = task.group_scores.get(score_name, (score_name, None))
            values = np.where(counted[score_name][rows, :wide], metrics[metric], 0.0)
            sums[score_name][rows] = values.sum(1)
            by_position[score_name][:wide] += values.sum(0)
            if steps is not None:
                step = steps[rows, :wide]
                at = np.arange(len(values))[:, None], np.maximum(step, 0)
                np.add.at(by_step[score_name].sums[rows], at, np.where(step >= 0, values, 0.0))
        start += len(predicted)
    if start != n:
        raise UserError(f"{start} predictions for {n} instances")
    groups = {m: counted[m] for m in task.scores if m in task.group_scores}
    return Scores(
        sums,
        instances.scored.sum(1),
        by_position,
        instances.scored.sum(0),
        group_counts={m: mask.sum(1) for m, mask in groups.items()},
        group_position_counts={m: mask.sum(0) for m, mask in groups.items()},
        steps=by_step,
    )


def _check_metrics(task: Task) -> None:
    """Raises:
    TypeError: the task asks for a metric that needs a truth, and knows none.
    """
    asked = [task.group_scores.get(name, (name, None))[0] for name in task.scores]
    unfit = [metric for metric in asked if metric not in WITHOUT_TRUTH]
    if unfit and not task.knows_truth:
        raise TypeError(
            f"{type(task).__name__} asks for '{unfit[0]}', which needs the truth, but its knows_truth is False: "
            f"without one there are {' and '.join(WITHOUT_TRUTH)}"
        )


def _counted(task: Task, instances: Instances) -> dict[str, NDArray[np.bool_]]:
    """By score, the positions that count for it: (N, L)."""
    groups = task.groups(instances)
    masks = {}
    for name in task.scores:
        _, group = task.group_scores.get(name, (name, None))
        masks[name] = instances.scored if group is None else instances.scored & groups[group]
    return masks


def _no_steps(counted: NDArray[np.bool_], steps: NDArray[np.integer[Any]], label: str) -> Steps:
    """Sums of zero, and the counts: (N, K) for the K steps there are. What is below step 0 is not counted."""
    n, k = len(steps), int(steps.max(initial=0)) + 1
    counts = np.zeros((n, k), np.int64)
    np.add.at(counts, (np.arange(n)[:, None], np.maximum(steps, 0)), counted & (steps >= 0))
    return Steps(np.zeros((n, k)), counts, label)


def _position_scores(task: Task, instances: Instances, predicted: FloatArray | Brief) -> dict[str, FloatArray]:
    """Every metric at every position of these instances, each (B, L) float64."""
    io = task.io
    if isinstance(predicted, Brief):
        if task.knows_truth:
            raise TypeError(f"{type(task).__name__} knows its truth: it is scored on whole distributions")
        check_brief(predicted, instances.scored.shape, io.vocab_size)
        return score_brief(predicted, instances.tokens)
    if isinstance(io, VectorIO):
        check_finite(predicted, (*instances.scored.shape, io.d_out))
        return score_vectors(predicted, task.truth(instances), instances.tokens[..., -io.d_out :].astype(np.float64))
    check_distributions(predicted, (*instances.scored.shape, io.vocab_size))
    if not task.knows_truth:
        return score_brief(Brief.of(predicted, instances.tokens), instances.tokens)
    return score_positions(predicted, task.truth(instances), instances.tokens)


def check_finite(predicted: FloatArray, shape: tuple[int, ...]) -> None:
    """Raises:
    UserError: predictions of another shape, or NaN or infinity among them.
    """
    if predicted.shape != shape:
        raise UserError(f"predictions have the shape {predicted.shape}, not {shape}")
    if not np.isfinite(predicted).all():
        raise UserError("predictions hold NaN or infinity")


def check_distributions(predicted: FloatArray, shape: tuple[int, ...]) -> None:
    """Raises:
    UserError: predictions of another shape, or rows that are not finite, not negative and summing to 1 (within 1e-3).
    """
    check_finite(predicted, shape)
    if (predicted < 0).any():
        raise UserError("predictions hold negative probabilities")
    off = np.abs(predicted.sum(-1) - 1.0).max(initial=0.0)
    if off > 1e-3:
        raise UserError(f"predicted rows must sum to 1; one is off by {off:.3g}")


def check_brief(predicted: Brief, shape: tuple[int, ...], vocab_size: int) -> None:
    """Raises:
    UserError: another shape, what is no probability, or a token outside the vocabulary.
    """
    check_finite(predicted.given, shape)
    if predicted.best.shape != shape:
        raise UserError(f"the most likely tokens have the shape {predicted.best.shape}, not {shape}")
    if predicted.given.size and (predicted.given.min() < 0 or predicted.given.max() > 1 + 1e-3):
        raise UserError("predictions hold numbers that are no probabilities")
    if predicted.best.size and (predicted.best.min() < 0 or predicted.best.max() >= vocab_size):
        raise UserError(f"a most likely token is outside the vocabulary [0, {vocab_size})")


def rows_at_once(io: IO, length: int, most: int) -> int:
    """How many instances of `length` tokens are predicted at once: at most `most`, so that a batch stays under BATCH_BYTES.

    That is counted in float64, (B, L, V) or of vectors (B, L, D_out). It is one instance at least.
    """
    width = io.d_out if isinstance(io, VectorIO) else io.vocab_size
    return max(1, min(most, BATCH_BYTES // max(1, 8 * length * width)))


def predict_in_batches(predictor: Predictor, instances: Instances, batch_size: int = 64) -> Iterable[FloatArray]:
    """The predictions for `instances`, a batch at a time, each cut to its longest instance."""
    for start in range(0, len(instances), batch_size):
        yield predictor.predict(instances[start : start + batch_size].tokens)


def share_of_the_way(value: float, start: float, end: float) -> float:
    """How far `value` has come from `start` (the unigram model) to `end` (the truth): 0 at the one, 1 at the other."""
    return (value - start) / (end - start) + 0.0 if end != start else 0.0  # + 0.0 makes a zero of -0.0
