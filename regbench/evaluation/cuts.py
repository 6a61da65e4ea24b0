"""Cut prompts: instances that end where their next token is asked for. Nothing that follows a cut is handed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.evaluation.predictions import scored_at_once
from regbench.metrics.scores import by_problem, counted_positions, position_scores
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray


def prompts(
    instances: Instances, which: IntArray, places: IntArray, separator: float, length: int | None = None
) -> Instances:
    """K prompts: the tokens before a place, and a separator where the next token would stand.

    `which` (K,) are the instances that are cut, `places` (K,) the places of the tokens that are asked for. Separators pad them to
    `length`, or to the longest prompt.
    """
    length = length or int(places.max()) + 1
    shown = np.arange(length) < places[:, None]
    tokens = np.full((*shown.shape, *instances.tokens.shape[2:]), separator, instances.tokens.dtype)
    tokens[shown] = instances.tokens[which, :length][shown[:, : instances.tokens.shape[1]]]
    return Instances(tokens, (places + 1).astype(np.int32), np.zeros_like(shown), instances.generator)


@dataclass(frozen=True)
class Cuts:
    """Where each of N instances is cut, once.

    A score over a group of positions would meet few of them by chance. So each instance is cut for one set of positions: all
    that are scored, or a group that a score is over. On a track with an axis of sizes it is one of the instance's sizes of that
    set. What it then counts for makes up for how often that happens, so that the mean over cuts is expected to be the score.
    """

    places: IntArray
    """(N,), the place of the token that is asked for."""
    counts: Mapping[str, NDArray[np.int64]]
    """By score (N,), for how many positions the cut stands, or sizes of an area. 0 where it is cut for another set."""

    @classmethod
    def draw(cls, task: Task, instances: Instances, seed: int) -> Cuts:
        """Draws a set that an instance has positions of, a size if there are sizes, and one of its positions."""
        rng, masks = np.random.default_rng(seed), counted_positions(task, instances)
        group_of = {name: task.metric_and_group(name)[1] for name in task.scores}
        sets = {group_of[name]: mask for name, mask in masks.items()}
        sizes = np.stack([mask.sum(1) for mask in sets.values()])
        chosen = np.where(sizes > 0, rng.random(sizes.shape), -1.0).argmax(0)
        keys, places = rng.random(instances.scored.shape), np.zeros(len(instances), np.int64)
        steps = task.progress(instances) if task.sizes else None
        stands, areas = {}, {}
        for i, (group, mask) in enumerate(sets.items()):
            here, several = sizes[i], np.ones(len(instances), np.int64)
            if steps is not None:
                of_size = np.stack([(mask & (steps == size)).sum(1) for size in task.sizes])
                size = np.where(of_size > 0, rng.random(of_size.shape), -1.0).argmax(0)
                here, several = of_size[size, np.arange(len(size))], (of_size > 0).sum(0)
                mask = mask & (steps == np.array(task.sizes)[size][:, None])
            places = np.where(chosen == i, np.where(mask, keys, -1.0).argmax(1), places)
            areas[group] = np.where(chosen == i, (sizes > 0).sum(0) * several, 0)
            stands[group] = areas[group] * here
        over = {name: areas if task.metric_and_group(name)[0] == "area" else stands for name in task.scores}
        return cls(places, {name: over[name][group_of[name]] for name in task.scores})

    def sums(self, task: Task, instances: Instances, predictions: Iterable[FloatArray]) -> dict[str, FloatArray]:
        """By score what the cuts stand for together, of each instance or of each problem.

        Of the consecutive batches (B, L, V) of predictions the rows at the cuts count.
        """
        found = {name: np.zeros(len(instances)) for name in task.scores}
        start = 0
        for batch in predictions:
            rows = slice(start, start + len(batch))
            part, at = instances[rows], (np.arange(len(batch)), self.places[rows])
            values = position_scores(task, part, batch[:, : part.scored.shape[1]])
            for name in task.scores:
                found[name][rows] = self.counts[name][rows] * values[task.metric_and_group(name)[0]][at]
            start += len(batch)
        return {name: by_problem(values, instances.problem) for name, values in found.items()}

    def batches(self, rows: NDArray[np.floating], instances: Instances) -> Iterator[FloatArray]:
        """Batches (B, L, V) for `sums` from the rows (N, V) of the cuts alone. All else is uniform."""
        width = rows.shape[1]
        at_once = scored_at_once(instances.scored.shape[1], width)
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once].astype(np.float64)
            if rows.dtype == np.float16:  # as stored distributions are unpacked
                some /= some.sum(-1, keepdims=True)
            batch = np.full((len(some), int(instances.lengths[start : start + at_once].max()), width), 1.0 / width)
            batch[np.arange(len(some)), self.places[start : start + at_once]] = some
            yield batch
