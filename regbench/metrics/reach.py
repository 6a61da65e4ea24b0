"""Reach: the largest size up to which a skill holds, and the training tokens after which it was there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regbench.results import CheckpointRecord, Curve, Reach, Result
from regbench.tasks.base import Task

LEARNED = 0.9
"""The share of its way, from the first validation to the best, that a learned loss has gone."""
_DRAWS = 400


@dataclass(frozen=True)
class Reached:
    """The reach of several seeds: their median, and what holds 68 % of it when seeds and instances are drawn anew."""

    reach: Reach
    low: Reach
    high: Reach

    def __str__(self) -> str:
        return str(self.reach) if self.low == self.high else f"{self.reach} ({self.low} to {self.high})"


def reached(curves: Sequence[Curve]) -> Reached:
    """The reach of the seeds of an entry, from their curves by size.

    Seeds are drawn with replacement. The accuracy at each size is drawn from a normal distribution with its error over
    instances, for each size by itself, also where they are of one instance.
    """
    sizes = curves[0].position
    value = np.array([curve.value for curve in curves])
    error = np.array([curve.stderr or [0.0] * len(sizes) for curve in curves])
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(_DRAWS):
        seeds = rng.integers(len(curves), size=len(curves))
        noisy = value[seeds] + error[seeds] * rng.standard_normal(value.shape)
        drawn.append(_median([Reach.of(sizes, row.tolist()) for row in noisy]))
    drawn.sort(key=lambda reach: reach.rank)
    low, high = drawn[int(0.16 * _DRAWS)], drawn[int(0.84 * _DRAWS)]
    return Reached(_median([Reach.of(sizes, row.tolist()) for row in value]), low, high)


def reach_of(task: Task, curves: Mapping[str, Curve]) -> dict[str, Reach] | None:
    """The reach by score, where the task has an axis of sizes."""
    if not task.sizes:
        return None
    areas = [score for score in task.scores if task.metric_and_group(score)[0] == "area"]
    return {score: Reach.of(curves[score].position, curves[score].value) for score in areas}


def reaches(result: Result) -> dict[str, Reach]:
    """The reach of each group of sizes, the median over seeds; of one without a name where the track has no groups."""
    found = _groups(result).items()
    return {group: _median([Reach.of(one.position, one.value) for one in curves]) for group, curves in found}


def reach_words(result: Result) -> str:
    """The reach for people: "23 pairs", or by group "parity >= 256 steps, s3 14". Empty where there is no axis of sizes."""
    words: list[str] = []
    for group, curves in _groups(result).items():
        words.append(f"{group}{' ' * bool(group)}{reached(curves)}{'' if words else f' {curves[0].axis}'}")
    return ", ".join(words)


def _groups(result: Result) -> dict[str, list[Curve]]:
    """By group the curves of the seeds by size. The groups stand in the place of their mean."""
    scores = list(result.seeds[0].reach or ())
    shown = [one for one in scores if one != "area"] or scores
    names = {score: "" if score == "area" else score.removesuffix("_area").replace("_", "-") for score in shown}
    return {name: [seed.curves[score] for seed in result.seeds] for score, name in names.items()}


def tokens_to_learn(training: Sequence[CheckpointRecord]) -> int:
    """The training tokens at the first validation whose loss had gone `LEARNED` of its way from the first to the best."""
    first, best = training[0].validation_loss, min(row.validation_loss for row in training)
    return next(row.tokens for row in training if row.validation_loss <= first - LEARNED * (first - best))


def _median(reaches: list[Reach]) -> Reach:
    """The middle one; of an even number the lower of two."""
    return sorted(reaches, key=lambda reach: reach.rank)[(len(reaches) - 1) // 2]
