"""What a gradient step on its own prompt gives a trained model: scores behind the step, with the weights before and after it.

The first part of each instance is the segment. The weights take N steps of gradient descent on the summed cross entropy of the
segment, for each instance by itself, and predict the rest. This is dynamic evaluation. There are three ways:

full: The true gradient of all parameters, of any model.
values: No gradient flows through attention scores, and only the parameters that TinT changes do change.
tint: As values, with layer norm and activation differentiated by finite differences: what TinT computes.

The last two are for the models that TinT simulates. Learning rates are chosen on the validation split, by the mean gain. A
baseline can stand beside, on the same positions. Steps on exemplars are in `few_shot.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papers.tint.gradient_steps import logits_after, refusal_of
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.evaluation.baselines import predict_baseline
from regbench.evaluation.predictions import Predictions
from regbench.metrics.metric import score_positions
from regbench.metrics.scores import by_problem, mean_over
from regbench.models.model import token_tensor
from regbench.models.predictor import Baseline, rows_at_once
from regbench.results import ScoreRecord
from regbench.tasks.base import Task
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

BATCH = 25
"""Instances that are adapted at once: each has weights of its own."""


@dataclass(frozen=True)
class Plan:
    """What is asked."""

    ways: tuple[str, ...]  # of "full", "values" and "tint"
    rates: tuple[float, ...]  # learning rates to choose from
    steps: int = 1  # steps of gradient descent
    # only so many blocks at the top change, and the last norm. None: all parameters of a way
    layers: int | None = None
    limit: int = 200  # the most instances of a split

    def chooses(self, split: str) -> bool:
        """Whether the validation split is to be measured: to choose a rate there, or because it is the split asked for."""
        return len(self.rates) > 1 or split == "validation"


@dataclass(frozen=True)
class Place:
    """Where the segment ends: after a share of each instance's length, rounded down, or after a number of tokens."""

    share: float | None = None
    tokens: int | None = None

    def __str__(self) -> str:
        """For people: "50 %" or "128 tokens"."""
        return f"{self.tokens} tokens" if self.share is None else f"{100 * self.share:g} %"

    def cuts(self, lengths: NDArray[np.integer]) -> NDArray[np.int64]:
        """The first position behind the segment of each instance, (N,). Instances that are too short have their length."""
        if self.share is not None:
            cuts = np.maximum(1, np.floor(self.share * lengths + 1e-9)).astype(np.int64)  # 0.7 * 90 is below 63
        else:
            assert self.tokens is not None
            cuts = np.full(len(lengths), min(self.tokens, int(lengths.max())), np.int64)
        if (cuts >= lengths).all():
            raise UserError(
                f"a segment of {self} leaves nothing behind it: the longest instance has {int(lengths.max())} tokens"
            )
        return np.minimum(cuts, lengths)


@dataclass(frozen=True)
class Outcome:
    """Metrics behind the segment, before and after the step, a mean over seeds."""

    before: Mapping[str, FloatArray]  # by metric (N, L)
    after: Mapping[str, FloatArray]  # by metric (N, L)
    behind: NDArray[np.bool_]  # scored positions behind the segment, (N, L) bool
    distance: NDArray[np.int64]  # positions since the segment's end, (N, L)
    problem: IntArray | None = None  # the problem of each instance, (N,), as in `Instances`
    # of a baseline beside it, by metric (N, L). Empty if there is none
    reference: Mapping[str, FloatArray] = field(default_factory=dict)

    def score(self, which: str, metric: str) -> ScoreRecord:
        """The mean with its standard error over instances, or over problems that they share."""
        return self._mean(self._values(which, metric), self.behind)

    def share_of_gap(self, metric: str) -> float:
        """The change as a share of the distance from before to the reference. NaN where there is no distance."""
        gap = self.score("reference", metric).value - self.score("before", metric).value
        return self.score("difference", metric).value / gap if gap else float("nan")

    def by_distance(self, metric: str, width: int, which: str = "difference") -> tuple[FloatArray, list[ScoreRecord]]:
        """A score in bins of `width` positions behind the segment.

        Bins of fewer than 20 positions, or of fewer than 4 instances or problems, are left out: their errors say little.

        Returns:
            The mean distance of each bin, and the scores.
        """
        values, places, scores = self._values(which, metric), [], []
        for begin in range(0, int(self.distance.max(initial=0)) + 1, width):
            counted = self.behind & (self.distance >= begin) & (self.distance < begin + width)
            units = np.count_nonzero(by_problem(counted.sum(1), self.problem))
            if counted.sum() >= 20 and units >= 4:
                places.append(float(self.distance[counted].mean()))
                scores.append(self._mean(values, counted))
        return np.array(places), scores

    def _values(self, which: str, metric: str) -> FloatArray:
        """(N, L)."""
        if which == "difference":
            return self.after[metric] - self.before[metric]
        return {"before": self.before, "after": self.after, "reference": self.reference}[which][metric]

    def _mean(self, values: FloatArray, counted: NDArray[np.bool_]) -> ScoreRecord:
        return mean_over(np.where(counted, values, 0.0).sum(1), counted.sum(1), self.problem)


@dataclass(frozen=True)
class Row:
    """One run, place and way."""

    run: str  # the name of the run
    place: Place  # where the segment ends
    way: str  # "full", "values" or "tint"
    # by rate, the mean gain in NLL (nats) on validation. NaN where the weights diverge. Empty for a single rate
    gains: Mapping[float, float]
    rate: float  # the rate that was chosen
    outcome: Outcome  # on the split that was asked for, with this rate
    # the gain, as a share of the gain of `full`. None if `full` was not asked for or has no gain
    share_of_full: float | None = None


def adapt_run(models: Sequence[Trained], name: str, place: Place, plan: Plan, split: str) -> list[Row]:
    """All ways of one run at one place. Rates are chosen on validation, over all seeds. A single rate is taken as it is."""
    check_ways(models[0], plan)
    rows: list[Row] = []
    for way in plan.ways:
        tried = _outcomes(models, "validation", place, plan, way, plan.rates) if plan.chooses(split) else {}
        gains = {rate: _gain(outcome) if outcome else float("nan") for rate, outcome in tried.items()}
        rate = best_rate(gains, f"{name}: every rate diverges for {way} at {place}") if tried else plan.rates[0]
        outcome = tried[rate] if split == "validation" else _outcomes(models, split, place, plan, way, (rate,))[rate]
        if outcome is None:
            raise UserError(f"{name}: the rate {rate:g} diverges on {split} for {way} at {place}: give smaller --rates")
        rows.append(Row(name, place, way, gains, rate, outcome))
    full = next((_gain(row.outcome) for row in rows if row.way == "full"), 0.0)
    return [replace(row, share_of_full=_gain(row.outcome) / full) for row in rows] if full > 0.0 else rows


def _gain(outcome: Outcome) -> float:
    """By how much the NLL (nats) falls, on average over positions. Below 0 the step harms."""
    return -outcome.score("difference", "nll").value


def best_rate(gains: Mapping[float, float], otherwise: str) -> float:
    """The rate with the largest gain, and the smaller of two that are equal. Where a gain is not finite, weights diverge."""
    known = {rate: gain for rate, gain in sorted(gains.items()) if np.isfinite(gain)}
    if not known:
        raise UserError(f"{otherwise}: give smaller --rates")
    return max(known, key=lambda rate: known[rate])


def beside(rows: Sequence[Row], baseline: Baseline, track: Track, split: str) -> list[Row]:
    """The rows with a baseline as their reference. It predicts the whole split, so that the cache of baselines serves."""
    instances = track.instances(split)
    length, begin = instances.tokens.shape[1], 0
    found: dict[str, FloatArray] = {}
    stored = predict_baseline(baseline, track, instances).stored
    assert isinstance(stored, Predictions)  # the task knows its truth
    for batch in stored.batches():
        part = instances[begin : begin + len(batch)]
        for metric, each in position_scores(track.task, part, batch).items():
            whole = found.setdefault(metric, np.zeros((len(instances), length)))
            whole[begin : begin + len(batch), : each.shape[1]] = each
        begin += len(batch)
    n, width = rows[0].outcome.behind.shape
    reference = {metric: values[:n, :width] for metric, values in found.items()}
    return [replace(row, outcome=replace(row.outcome, reference=reference)) for row in rows]


def check_ways(trained: Trained, plan: Plan) -> None:
    """Whether a model can be adapted in these ways."""
    why = refusal_of(trained.model)
    other = [way for way in plan.ways if way != "full"]
    if why is not None and other:
        raise UserError(f"{other[0]} is not for {trained.folder}: {why}. Give --how full")
    if why is not None and plan.layers is not None:
        raise UserError(f"--layers is not for {trained.folder}: {why}")


def _outcomes(
    models: Sequence[Trained], split: str, place: Place, plan: Plan, way: str, rates: Sequence[float]
) -> dict[float, Outcome | None]:
    """By rate the outcome on a split, a mean over the models. None where the weights of one model diverge."""
    track = models[0].track
    instances = track.instances(split)[: plan.limit]
    cuts, behind = behind_segment(track, split, instances, place)
    sums: dict[float, dict[str, FloatArray]] = {rate: {} for rate in (0.0, *rates)}
    for trained in models:
        for rate, begin, found in _metrics(trained, instances, cuts, plan, way, (0.0, *rates)):
            for metric, each in found.items():
                whole = sums[rate].setdefault(metric, np.zeros(behind.shape))
                whole[begin : begin + len(each), : each.shape[1]] += each / len(models)
    distance = np.arange(behind.shape[1]) - cuts[:, None]
    return {
        rate: Outcome(sums[0.0], sums[rate], behind, distance, instances.problem)
        if np.isfinite(sums[rate]["nll"][behind]).all()
        else None
        for rate in rates
    }


def behind_segment(
    track: Track, split: str, instances: Instances, place: Place
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The first position behind the segment of each instance, (N,), and the scored positions behind it, (N, L) bool."""
    cuts = place.cuts(instances.lengths)
    position = np.arange(instances.tokens.shape[1])
    behind = instances.scored & (position >= cuts[:, None]) & (position < instances.lengths[:, None])
    if not behind.any():
        raise UserError(f"no position behind a segment of {place} is scored on the {split} split of {track.name}")
    return cuts, behind


def _metrics(
    trained: Trained,
    instances: Instances,
    cuts: NDArray[np.int64],
    plan: Plan,
    way: str,
    rates: Sequence[float],
) -> Iterator[tuple[float, int, dict[str, FloatArray]]]:
    """Every metric (B, L), by rate and by the first instance of a batch."""
    task, model = trained.track.task, trained.model.eval()
    size = rows_at_once(task.io, instances.tokens.shape[1], BATCH if refusal_of(model) is None else 1)
    for begin in range(0, len(instances), size):
        part = instances[begin : begin + size]  # as long as its longest
        tokens = token_tensor(part.tokens)
        counted = torch.arange(tokens.shape[1]) < torch.from_numpy(cuts[begin : begin + size, None])
        with torch.no_grad():
            outputs = logits_after(model, tokens, counted, rates, way, plan.steps, plan.layers)
            for rate, logits in zip(rates, outputs, strict=True):
                yield rate, begin, position_scores(task, part, probabilities(logits))


def probabilities(logits: Tensor) -> FloatArray:
    """(B, L, V) float64."""
    found: FloatArray = logits.detach().double().softmax(-1).numpy()
    return found


def position_scores(task: Task, instances: Instances, predicted: FloatArray) -> dict[str, FloatArray]:
    """The NLL and the task's own metrics at every position, (B, L) each. NaN where the probabilities are not finite."""
    truth = task.truth(instances) if task.knows_truth else None
    with np.errstate(invalid="ignore"):
        found = score_positions(predicted, truth, instances.tokens)
    return {metric: each for metric, each in found.items() if metric == "nll" or metric in task.scores}
