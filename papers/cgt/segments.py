"""Segments of sequences. A segment has one context and a cut: the part before it is the prompt, the part after it the text."""

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
    """S segments."""

    row: IntArray  # the instance of each segment, (S,)
    start: IntArray  # its first position, (S,)
    cut: IntArray  # the first position of its second part, (S,)
    end: IntArray  # the position after its last, (S,)
    number: IntArray  # its number among the segments of its instance, from 0, (S,)

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, chosen: slice | NDArray[Any]) -> Segments:
        return Segments(self.row[chosen], self.start[chosen], self.cut[chosen], self.end[chosen], self.number[chosen])

    @property
    def per_row(self) -> int:
        """The largest number of segments in one instance."""
        return int(self.number.max(initial=-1)) + 1


def segments(task: Task, instances: Instances) -> Segments:
    """The segments of a split. Segments with nothing on one side of the cut are left out.

    If the truth has a `cut`, as for two texts, an instance is one segment with this cut (CGT section 4.4). With a `second_cut`
    too, as for three texts, it is two segments, of two neighbouring texts each. If the task's `progress` counts examples, a
    segment ends where the count falls, and its cut is at half of the examples: in `arithmetic` a task, cut after two of four
    examples (CGT Table 1). Otherwise an instance is one segment, and its cut is after the separator nearest to its middle.
    """
    cuts = switches(instances)
    progress = None if cuts is not None else examples_before(task, instances)
    found: list[tuple[int, int, int, int, int]] = []
    for row, length in enumerate(instances.lengths.tolist()):
        if cuts is not None:
            edges = [0, *cuts[row].tolist(), length]
            parts = list(zip(edges, edges[1:], edges[2:], strict=False))
        elif progress is None:
            parts = [(0, _middle(task, instances.tokens[row, :length]), length)]
        else:
            parts = _by_progress(progress[row, :length])
        found += [(row, *part, number) for number, part in enumerate(parts) if part[0] < part[1] < part[2]]
    columns = np.array(found, dtype=np.int64).reshape(-1, 5).T
    return Segments(*columns)


def single_context_segments(task: Task, instances: Instances) -> Segments:
    """As `segments`, but each of two or three texts in an instance is a segment of its own, with the cut in its middle.

    A summary of the first half of a text helps with the second half of the same text, not with a text of another topic (CGT
    section 4.4 splits single texts in two). Texts of one token are left out.
    """
    cuts = switches(instances)
    if cuts is None:
        return segments(task, instances)
    rows, texts = len(instances), cuts.shape[1] + 1
    edges = np.concatenate([np.zeros((rows, 1), np.int64), cuts, np.asarray(instances.lengths, np.int64)[:, None]], 1)
    start, end = edges[:, :-1].ravel(), edges[:, 1:].ravel()
    number = np.tile(np.arange(texts), rows)
    parts = Segments(np.repeat(np.arange(rows), texts), start, (start + end) // 2, end, number)
    return parts[parts.start < parts.cut]


def switches(instances: Instances) -> NDArray[np.int64] | None:
    """The positions at which a new text begins, (N, K), from `cut` and `second_cut` of the truth; None if there is none."""
    found = [instances.truth[name] for name in ("cut", "second_cut") if name in instances.truth]
    return np.stack(found, 1).astype(np.int64) if found else None


def examples_before(task: Task, instances: Instances) -> IntArray | None:
    """The number of examples before the one that each position is in, (N, L); None if the task counts no examples."""
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
    """The cut of a row: after the separator nearest to its middle, or in the middle if there is none."""
    half = len(tokens) // 2
    if isinstance(task.io, TokenIO):
        after = np.flatnonzero(tokens[:-1] == task.io.separator) + 1
        if len(after):
            return int(after[np.abs(after - half).argmin()])
    return half


def windows(begin: IntArray, end: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
    """The positions begin..end of each segment, padded to the longest with end - 1.

    Returns:
        The positions, (S, W), and which of them are no padding, (S, W) bool.
    """
    width = int((end - begin).max(initial=0))
    index = begin[:, None] + np.arange(width)
    inside = index < end[:, None]
    return np.minimum(index, end[:, None] - 1), inside
