"""Scores of predictions, with standard errors, by instance and by position in the context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.metrics.metric import WITHOUT_TRUTH, Rows, TokenPrediction, computed, position_metrics
from regbench.results import Curve, ScoreRecord
from regbench.tasks.base import Task, VectorIO
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

SCORING_VERSION = 2
"""Raised whenever the same predictions would get other scores or curves. Kept scores of an older version are not used."""

MOST_BINS = 64
"""The most bins that a curve has."""

Values = TypeVar("Values", bound=NDArray[Any])


@dataclass(frozen=True)
class Steps:
    """A metric by progress in the context, for tasks that have a `progress` of their own."""

    sums: FloatArray  # (N, K), the sum over each instance's positions at each step
    counts: NDArray[np.int64]  # (N, K), the number of those positions
    label: str  # what the steps count
    exact: bool = False  # whether steps are sizes, which are never put into bins

    def once(self) -> Steps:
        """The mean at each step of an instance, which then counts once."""
        some = self.counts > 0
        return replace(self, sums=self.sums / np.maximum(self.counts, 1), counts=some.astype(np.int64))

    def curve(self) -> tuple[FloatArray, list[ScoreRecord], NDArray[np.int64]]:
        """Computes the score at every step at which something is scored.

        More than `MOST_BINS` steps are put into bins of `bin_width`. The step of a bin is the mean over its positions.

        Gives steps, scores with standard errors, and numbers of positions.
        """
        k = self.counts.shape[1]
        edges = np.arange(0, k, bin_width(k) if k > MOST_BINS and not self.exact else 1)
        sums, counts = np.add.reduceat(self.sums, edges, axis=1), np.add.reduceat(self.counts, edges, axis=1)
        total = counts.sum(0)
        steps = np.add.reduceat(self.counts.sum(0) * np.arange(k), edges)
        some = np.flatnonzero(total)
        return steps[some] / total[some], [ScoreRecord.of(sums[:, i], counts[:, i]) for i in some], total[some]


@dataclass(frozen=True)
class Scores:
    """The scores of one predictor on N instances of length L.

    Where instances share problems, N counts problems, and a problem's instances are added up: they do not vary by themselves.
    """

    sums: Mapping[str, FloatArray]  # by score (N,), the sum over an instance's scored positions
    counts: NDArray[np.int64]  # (N,), the number of scored positions of an instance
    by_position: Mapping[str, FloatArray]  # by score (L,), the sum over instances
    position_counts: NDArray[np.int64]  # (L,), the number of instances in which a position is scored
    # as `counts`, by score, where only a group of positions counts
    group_counts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    # as `position_counts`, by score, where only a group of positions counts
    group_position_counts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    steps: Mapping[str, Steps] = field(default_factory=dict)  # by score, where the task has a `progress` of its own

    def __getitem__(self, metric: str) -> ScoreRecord:
        """The mean over all scored positions (ICLL Eq. 10-11), with the standard error of that ratio over instances."""
        counts = self.counts_of(metric)
        if not counts.any():
            raise UserError(
                f"no position of these {len(counts)} instances counts for '{metric}': take more of them, or the test split"
            )
        return ScoreRecord.of(self.sums[metric], counts)

    def counts_of(self, metric: str) -> NDArray[np.int64]:
        """The number of positions of each instance that a score is over, (N,)."""
        return self.group_counts.get(metric, self.counts)

    def table(self) -> dict[str, ScoreRecord]:
        """Every score by name."""
        return {metric: self[metric] for metric in self.sums}

    def curve(self, metric: str, width: int) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
        """Computes the mean score over bins of `width` positions. Bins in which nothing is scored are left out.

        Gives mean positions, mean scores, and numbers of positions.
        """
        position_counts = self.group_position_counts.get(metric, self.position_counts)
        edges = np.arange(0, len(position_counts), width)
        sums = np.add.reduceat(self.by_position[metric], edges)
        counts = np.add.reduceat(position_counts, edges)
        position = np.add.reduceat(position_counts * np.arange(len(position_counts)), edges)
        some = counts > 0
        return position[some] / counts[some], sums[some] / counts[some], counts[some]


def bin_width(length: int) -> int:
    """The width of a curve's bins: the power of two, at least 4, that gives at most `MOST_BINS` bins."""
    return max(4, 1 << int(np.ceil(np.log2(max(1, length / MOST_BINS)))))


def score(
    task: Task, instances: Instances, predictions: Iterable[FloatArray | TokenPrediction], *, apart: bool = False
) -> Scores:
    """Scores predictions for instances.

    Predictions are consecutive batches in the order of the instances, (B, L, V), or (B, L, D_out) for vectors; `TokenPrediction`
    where the task does not know its truth. With `apart`, instances that share a problem stay apart.
    """
    return _add_up(task, instances, _by_batch(task, instances, predictions), apart=apart)


def score_chance(task: Task, instances: Instances) -> Scores | None:
    """Scores chance, as the task says what it is: see `Task.chance`. None where it is the unigram model, or more is asked."""
    probability = task.chance(instances)
    known = {"token_accuracy", "nll", "area"}
    if probability is None or not {task.metric_and_group(score)[0] for score in task.scores} <= known:
        return None
    values = {"token_accuracy": probability, "nll": -np.log(probability), "area": np.zeros_like(probability)}
    return _add_up(task, instances, [values])


def _by_batch(
    task: Task, instances: Instances, predictions: Iterable[FloatArray | TokenPrediction]
) -> Iterator[dict[str, FloatArray]]:
    """Every metric at every position, a batch at a time."""
    start = 0
    for predicted in predictions:
        part = instances[start : start + len(predicted)]
        wide = part.scored.shape[1]
        if isinstance(predicted, TokenPrediction):
            predicted = TokenPrediction(predicted.probability[:, :wide], predicted.most_likely[:, :wide])
        else:
            predicted = predicted[:, :wide]
        yield position_scores(task, part, predicted)
        start += len(predicted)


def _add_up(
    task: Task, instances: Instances, batches: Iterable[Mapping[str, FloatArray]], *, apart: bool = False
) -> Scores:
    """The scores from every metric at every position; see `score`."""
    n, length = instances.scored.shape
    counted = counted_positions(task, instances)
    steps = task.progress(instances)
    by_step = {} if steps is None else {m: _no_steps(counted[m], steps, task) for m in task.scores}
    sums = {m: np.zeros(n) for m in task.scores}
    by_position = {m: np.zeros(length) for m in task.scores}
    start = 0
    for metrics in batches:
        size, wide = next(iter(metrics.values())).shape
        rows = slice(start, start + size)
        for score_name in task.scores:
            metric, _ = task.metric_and_group(score_name)
            values = np.where(counted[score_name][rows, :wide], metrics[metric], 0.0)
            sums[score_name][rows] = values.sum(1)
            by_position[score_name][:wide] += values.sum(0)
            if steps is not None:
                step = steps[rows, :wide]
                at = np.arange(len(values))[:, None], np.maximum(step, 0)
                np.add.at(by_step[score_name].sums[rows], at, np.where(step >= 0, values, 0.0))
        start += size
    if start != n:
        raise UserError(f"{start} predictions for {n} instances")
    groups = {m: counted[m] for m in task.scores if m in task.group_scores}
    group_counts = {m: mask.sum(1) for m, mask in groups.items()}
    for m in task.scores:
        if task.metric_and_group(m)[0] == "area":  # of an instance each size counts once
            by_step[m] = by_step[m].once()
            sums[m], group_counts[m] = by_step[m].sums.sum(1), by_step[m].counts.sum(1)
    problem = None if apart else instances.problem
    return Scores(
        {m: by_problem(each, problem) for m, each in sums.items()},
        by_problem(instances.scored.sum(1), problem),
        by_position,
        instances.scored.sum(0),
        group_counts={m: by_problem(count, problem) for m, count in group_counts.items()},
        group_position_counts={m: mask.sum(0) for m, mask in groups.items()},
        steps={
            m: replace(step, sums=by_problem(step.sums, problem), counts=by_problem(step.counts, problem))
            for m, step in by_step.items()
        },
    )


def by_problem(values: Values, problem: IntArray | None) -> Values:
    """Adds up the values (N, ...) of the instances of each problem: (P, ...). Without problems they stay as they are."""
    if problem is None:
        return values
    sums: Any = np.zeros((int(problem.max(initial=-1)) + 1, *values.shape[1:]), values.dtype)
    np.add.at(sums, problem, values)
    added: Values = sums
    return added


def mean_over(sums: FloatArray, counts: IntArray, unit: IntArray | None) -> ScoreRecord:
    """The mean over positions, with its standard error over the units that have any.

    `sums` and `counts` (K,) are over K sets of positions. `unit` (K,) numbers the instance, or the problem, that each set is of;
    None: each is one by itself.
    """
    added, counted = by_problem(sums.astype(np.float64), unit), by_problem(counts.astype(np.int64), unit)
    some = counted > 0
    return ScoreRecord.of(added[some], counted[some])


def counted_positions(task: Task, instances: Instances) -> dict[str, NDArray[np.bool_]]:
    """By score the positions that count for it, (N, L)."""
    groups, known = task.groups(instances), position_metrics(task)
    masks = {}
    for name in task.scores:
        metric, group = task.metric_and_group(name)
        if known[metric].needs_truth and not task.knows_truth:
            raise TypeError(
                f"{type(task).__name__} asks for '{metric}', which needs the truth, but its knows_truth is False: "
                f"without one there are {' and '.join(WITHOUT_TRUTH)}"
            )
        masks[name] = instances.scored if group is None else instances.scored & groups[group]
    return masks


def counts_over(task: Task, instances: Instances, name: str) -> NDArray[np.int64]:
    """How many positions of each instance, or problem, a score is over; of an area how many sizes. (N,)."""
    mask, steps = counted_positions(task, instances)[name], task.progress(instances)
    if task.metric_and_group(name)[0] == "area" and steps is not None:
        return by_problem(_no_steps(mask, steps, task).once().counts.sum(1), instances.problem)
    return by_problem(mask.sum(1), instances.problem)


def _no_steps(counted: NDArray[np.bool_], steps: NDArray[np.integer[Any]], task: Task) -> Steps:
    """Sums of zero and the counts, (N, K) for K steps. Positions below step 0 are not counted."""
    n, k = len(steps), int(steps.max(initial=0)) + 1
    counts = np.zeros((n, k), np.int64)
    np.add.at(counts, (np.arange(n)[:, None], np.maximum(steps, 0)), counted & (steps >= 0))
    return Steps(np.zeros((n, k)), counts, task.progress_label, exact=bool(task.sizes))


def position_scores(task: Task, instances: Instances, predicted: FloatArray | TokenPrediction) -> dict[str, FloatArray]:
    """By metric that the task's scores are over its value at every position of these instances, each (B, L) float64."""
    io, targets, known = task.io, instances.targets, position_metrics(task)
    wanted = [known[name] for name in dict.fromkeys(task.metric_and_group(score)[0] for score in task.scores)]
    if isinstance(predicted, TokenPrediction):
        if task.knows_truth:
            raise TypeError(f"{type(task).__name__} knows its truth: it is scored on whole distributions")
        return computed(Rows(targets, token=predicted), wanted)
    if isinstance(io, VectorIO):
        check_finite(predicted, (*instances.scored.shape, io.d_out))
        rows = Rows(targets[..., -io.d_out :].astype(np.float64), predicted, truth=task.truth(instances))
        return computed(rows, wanted)
    check_distributions(predicted, (*instances.scored.shape, io.vocab_size))
    truth = task.truth(instances) if task.knows_truth else None
    chance, best = (task.chance(instances), task.best(instances)) if task.sizes else (None, None)
    # Choosing rows copies them: worth it where few are scored, as at the queries of a recall task.
    few = 2 * np.count_nonzero(instances.scored) <= instances.scored.size
    at = instances.scored if few else ...
    chosen = predicted[at]
    rows = Rows(
        targets[at],
        chosen,
        TokenPrediction.of(chosen, targets[at]),
        *(None if one is None else one[at] for one in (truth, chance, best)),
    )
    values = computed(rows, wanted)
    return {name: _spread(row, instances.scored) for name, row in values.items()} if few else values


def _spread(values: FloatArray, at: NDArray[np.bool_]) -> FloatArray:
    """The values of the positions `at` (B, L), with zeros between them."""
    spread = np.zeros(at.shape)
    spread[at] = values
    return spread


# --- Checks of predictions. ---


def check_finite(predicted: FloatArray, shape: tuple[int, ...]) -> None:
    """Checks that predictions have the shape and are finite."""
    if predicted.shape != shape:
        raise UserError(f"predictions have the shape {predicted.shape}, not {shape}")
    if not np.isfinite(predicted).all():
        raise UserError("predictions hold NaN or infinity")


def check_distributions(predicted: FloatArray, shape: tuple[int, ...]) -> None:
    """Checks that predictions have the shape, and that every row is a distribution: not negative, with the sum 1 within 1e-3."""
    check_finite(predicted, shape)
    if (predicted < 0).any():
        raise UserError("predictions hold negative probabilities")
    off = np.abs(predicted.sum(-1) - 1.0).max(initial=0.0)
    if off > 1e-3:
        raise UserError(f"predicted rows must sum to 1; one is off by {off:.3g}")


# --- Scores as a result keeps them. ---


def score_records(scores: Scores) -> tuple[dict[str, ScoreRecord], dict[str, Curve]]:
    """Turns scores into what a result keeps: by score its value and error, and its curve.

    Curves are by position in the context, or by the task's own `progress`.
    """
    width = bin_width(len(scores.position_counts))
    curves = {}
    for metric in scores.sums:
        if metric in scores.steps:
            step, at_step, count = scores.steps[metric].curve()
            curves[metric] = Curve(
                position=step.round(2).tolist(),
                value=[round(s.value, 6) for s in at_step],
                count=count.tolist(),
                stderr=[round(s.stderr, 6) for s in at_step],
                axis=scores.steps[metric].label,
            )
            continue
        position, value, count = scores.curve(metric, width)
        curves[metric] = Curve(position=position.round(2).tolist(), value=value.round(6).tolist(), count=count.tolist())
    return scores.table(), curves
