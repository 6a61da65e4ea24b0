"""How the summary y moves where a new context begins, compared with boundaries inside one context.

A new context begins between two neighbouring segments of an instance. y crosses the middle between any two places sooner or
later, even inside one context. So a change of context counts as having moved y only if y goes farther than at 95 % of boundaries
inside one context.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from papers.cgt.segments import Segments
from regbench.data.instances import Instances
from regbench.utils.arrays import FloatArray

SMOOTHED = 4
"""Positions over which y is averaged when it crosses the middle between two places."""
SHORTEST = 8
"""Tokens that are needed on each side of a boundary."""
FAR = 0.95
"""y has moved if it goes farther than at this share of the boundaries inside one context."""


@dataclass(frozen=True)
class Move:
    """How y moves at a boundary."""

    distance: float  # between its places before and after
    tokens: int | None  # after this many tokens y is past the middle between them. None: never


@dataclass(frozen=True)
class Transitions:
    """How y moves where the context changes, and where it does not."""

    changes: list[Move]  # moves where a new context begins
    controls: list[Move]  # moves at boundaries inside one context, with windows of the same length
    shown: FloatArray  # y of the first sequence, (L, d)
    boundaries: list[int]  # where a new context begins in it: the first of the changes

    @property
    def far(self) -> float:
        """The distance that 5 % of the controls exceed. A change that exceeds it has moved y."""
        return float(np.quantile([control.distance for control in self.controls], FAR, method="higher"))

    @property
    def moved(self) -> list[int | None]:
        """After how many tokens y has moved at each change. None: it has not gone far enough."""
        far = self.far
        return [change.tokens if change.distance > far else None for change in self.changes]

    def tokens(self) -> list[int]:
        """After how many tokens y has moved, for the changes that have moved it."""
        return [tokens for tokens in self.moved if tokens is not None]


def move(y: FloatArray, begin: int, at: int, end: int) -> Move:
    """How y moves between the tokens begin..at of a sequence and the tokens at..end after them.

    The place of y on each side is its mean over the last quarter of that side. y is past the middle when its mean over 4
    positions, projected on the line between the two places, is.
    """
    old, new = _settled(y[begin + 1 : at + 1]), _settled(y[at + 1 : end])
    along = (y[at - SMOOTHED + 2 : end] - old) @ (new - old)
    smooth = np.convolve(along, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    past = np.flatnonzero(smooth > ((new - old) ** 2).sum() / 2)
    return Move(float(np.linalg.norm(new - old)), int(past[0]) + 1 if len(past) else None)


def transitions(y: FloatArray, instances: Instances, segments: Segments) -> Transitions | None:
    """How y moves between neighbouring segments. None if no boundary between two has 8 tokens on each side.

    Distances are divided by the root of the mean squared distance of y from its mean, over the sequences used. All windows, at a
    change and inside the two segments beside it, have the same length: half of the shorter segment.
    """
    found = []
    for row, begin, at, end in _neighbours(segments):
        side = min(at - begin, end - at) // 2
        if side >= SHORTEST:
            found.append((row, at, [(middle - side, middle, middle + side) for middle in (at, at - side, end - side)]))
    if not found:
        return None
    used = np.concatenate([y[row, : instances.lengths[row]] for row in sorted({row for row, *_ in found})])
    scale = float(np.sqrt(((used - used.mean(0)) ** 2).sum(-1).mean())) or 1.0  # 1 for a constant y
    changes = [move(y[row] / scale, *change) for row, _, (change, *_) in found]
    controls = [move(y[row] / scale, *control) for row, _, (_, *inside) in found for control in inside]
    first = found[0][0]
    shown = y[first, : instances.lengths[first]]
    return Transitions(changes, controls, shown, [at for row, at, _ in found if row == first])


def _neighbours(segments: Segments) -> Iterator[tuple[int, int, int, int]]:
    """(row, begin, at, end) of each two neighbouring segments of an instance."""
    columns = (segments.row.tolist(), segments.start.tolist(), segments.end.tolist())
    for (row, begin, at), (other, start, end) in itertools.pairwise(zip(*columns, strict=True)):
        if row == other and at == start:
            yield row, begin, at, end


def _settled(y: FloatArray) -> FloatArray:
    """The mean over the last quarter of the positions, (L, d) -> (d,)."""
    place: FloatArray = y[-max(1, len(y) // 4) :].mean(0)
    return place
