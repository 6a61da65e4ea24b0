"""Stretches of sequences with one context each: a first part that shows it, and a second where it should be known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.tasks.base import Task, TokenIO
from regbench.utils.arrays import IntArray


@dataclass(frozen=True)
class Segments:
    """S stretches, each (S,): `row` of the instances; tokens start..cut show the context, cut..end come after.

    number: which of its row's stretches it is, from 0.
    """

    row: IntArray
    start: IntArray
    cut: IntArray
    end: IntArray
    number: IntArray

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, chosen: slice | NDArray[Any]) -> Segments:
        return Segments(self.row[chosen], self.start[chosen], self.cut[chosen], self.end[chosen], self.number[chosen])

    @property
    def per_row(self) -> int:
        """How many a row has, at the most."""
        return int(self.number.max(initial=-1)) + 1


def segments(task: Task, instances: Instances) -> Segments:
    """The stretches of a split.

    Where the task's `progress` counts examples, one lasts while that does not fall, and is cut where it reaches half of its
    highest: in `arithmetic` a task after two of its four examples, as in CGT Table 1. Else an instance is one stretch, cut behind
    the separator that is nearest to its middle. Stretches with nothing on one side of the cut are left out.

    An instance whose truth says where its own `cut` is, as that of two texts, is one stretch, cut there (CGT section 4.4).
    """
    own_cut = instances.truth.get("cut")
    progress = None if own_cut is not None else examples_before(task, instances)
    found: list[tuple[int, int, int, int, int]] = []
    for row, length in enumerate(instances.lengths.tolist()):
        if own_cut is not None:
            parts = [(0, int(own_cut[row]), length)]
        elif progress is None:
            parts = [(0, _middle(task, instances.tokens[row, :length]), length)]
        else:
            parts = _by_progress(progress[row, :length])
        parts = [part for part in parts if part[0] < part[1] < part[2]]
        found += [(row, *part, number) for number, part in enumerate(parts)]
    columns = np.array(found, dtype=np.int64).reshape(-1, 5).T
    return Segments(*columns)


def stretches_to_read(task: Task, instances: Instances) -> Segments:
    """The stretches behind whose cuts a model is read in several ways: those of `segments`, but for two texts in one instance.

    There each text is a stretch, cut in its middle: what one text's summary says helps with the rest of that text, not with
    another of another topic (CGT section 4.4 splits single texts in two). Texts of a single token are left out.
    """
    own_cut = instances.truth.get("cut")
    if own_cut is None:
        return segments(task, instances)
    rows, cut, length = (
        np.arange(len(instances)),
        np.asarray(own_cut, np.int64),
        np.asarray(instances.lengths, np.int64),
    )
    start, end = np.stack([0 * cut, cut], 1).ravel(), np.stack([cut, length], 1).ravel()
    parts = Segments(np.repeat(rows, 2), start, (start + end) // 2, end, np.tile([0, 1], len(rows)))
    return parts[parts.start < parts.cut]


def examples_before(task: Task, instances: Instances) -> IntArray | None:
    """How many examples stand before the one that each position is in, (N, L); None where the task counts no examples."""
    progress = task.progress(instances) if task.progress_label.startswith("examples") else None
    return None if progress is None else np.asarray(progress, dtype=np.int64)


def _by_progress(progress: IntArray) -> list[tuple[int, int, int]]:
    starts = [0, *(np.flatnonzero(np.diff(progress) < 0) + 1).tolist(), len(progress)]
    parts = []
    for start, end in itertools.pairwise(starts):
        own = progress[start:end]
        late = own >= (int(own.max(initial=0)) + 1) // 2
        parts.append((start, start + int(late.argmax()), end))
    return parts


def _middle(task: Task, tokens: NDArray[Any]) -> int:
    """Where a row is cut: behind a separator, or in its middle where none is near."""
    half = len(tokens) // 2
    if isinstance(task.io, TokenIO):
        behind = np.flatnonzero(tokens[:-1] == task.io.separator) + 1
        if len(behind):
            return int(behind[np.abs(behind - half).argmin()])
    return half


def windows(begin: IntArray, end: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
    """Positions begin..end of each row, padded to the longest: (S, W), and which of them are no padding. Padding is end - 1."""
    width = int((end - begin).max(initial=0))
    index = begin[:, None] + np.arange(width)
    inside = index < end[:, None]
    return np.minimum(index, end[:, None] - 1), inside
