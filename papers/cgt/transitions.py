"""How the summary y moves where a new context begins, compared with boundaries inside one context.

A new context begins between two neighbouring segments of an instance, or where two texts are joined: the text before the cut of
one segment, then the start of the next segment. y crosses the middle between any two places sooner or later, even inside one
context. So a change of context counts as having moved y only if y goes farther than at 95 % of boundaries inside one context.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.cgt.modes import ContextModel
from papers.cgt.representation import contexts
from papers.cgt.segments import Segments
from regbench.data.instances import Instances
from regbench.utils.arrays import FloatArray

SMOOTHED = 4
"""Positions over which y is averaged when it crosses the middle between two places."""
SHORTEST = 8
"""Tokens that are needed on each side of a boundary."""
FAR = 0.95
"""y has moved if it goes farther than at this share of the boundaries inside one context."""
PAIRS = 100
"""At most this many pairs of texts are joined."""


@dataclass(frozen=True)
class Move:
    """How y moves at a boundary.

    Attributes:
        distance: Between its places before and after.
        tokens: After this many tokens y is past the middle between them. None: never.
    """

    distance: float
    tokens: int | None


@dataclass(frozen=True)
class Boundary:
    """The tokens begin..at of a sequence, and the tokens at..end after them."""

    begin: int
    at: int
    end: int


@dataclass(frozen=True)
class Transitions:
    """How y moves where the context changes, and where it does not.

    Attributes:
        changes: Moves where a new context begins.
        controls: Moves at boundaries inside one context, with windows of the same length.
        shown: y of one sequence, (L, d).
        boundaries: Where a new context begins in it.
        moved: After how many tokens y has moved at each of these. None: it has not.
        what: What the sequence is.
    """

    changes: list[Move]
    controls: list[Move]
    shown: FloatArray
    boundaries: list[int]
    moved: list[int | None]
    what: str

    @property
    def far(self) -> float:
        """The distance that 5 % of the controls exceed. A change that exceeds it has moved y."""
        return _far(self.controls)

    def tokens(self) -> list[int]:
        """After how many tokens y has moved, for the changes that have moved it."""
        return [tokens for tokens in _moved(self.changes, self.far) if tokens is not None]


def move(y: FloatArray, boundary: Boundary) -> Move:
    """How y moves at a boundary of a sequence.

    The place of y on each side is its mean over the last quarter of that side. y is past the middle when its mean over 4
    positions, projected on the line between the two places, is.

    Args:
        y: (L, d).
        boundary: One of the sequence.
    """
    old = _settled(y[boundary.begin + 1 : boundary.at + 1])
    new = _settled(y[boundary.at + 1 : boundary.end])
    along = (y[boundary.at - SMOOTHED + 2 : boundary.end] - old) @ (new - old)
    smooth = np.convolve(along, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    past = np.flatnonzero(smooth > ((new - old) ** 2).sum() / 2)
    return Move(float(np.linalg.norm(new - old)), int(past[0]) + 1 if len(past) else None)


def transitions(model: ContextModel, y: FloatArray, instances: Instances, segments: Segments) -> Transitions | None:
    """How y moves between neighbouring segments. If each instance has one segment, two instances are joined.

    Distances are divided by the root of the mean squared distance of y from its mean, over the sequences used.

    Args:
        model: The model.
        y: Its summaries of the instances, (N, L, d).
        instances: Instances of the task.
        segments: Segments of these instances.

    Returns:
        None if no boundary has 8 tokens on each side.
    """
    if segments.per_row > 1:
        return _between_neighbours(y, instances, segments)
    return _between_joined(model, instances, segments)


def _between_neighbours(y: FloatArray, instances: Instances, segments: Segments) -> Transitions | None:
    """All windows, at a change and inside the two segments beside it, have the same length: half of the shorter segment."""
    found: list[tuple[int, Boundary, list[Boundary]]] = []
    for row, begin, at, end in _neighbours(segments):
        side = min(at - begin, end - at) // 2
        if side >= SHORTEST:
            inside = [Boundary(at - 2 * side, at - side, at), Boundary(end - 2 * side, end - side, end)]
            found.append((row, Boundary(at - side, at, at + side), inside))
    if not found:
        return None
    scale = _spread([y[row, : instances.lengths[row]] for row in sorted({row for row, *_ in found})])
    changes = [move(y[row] / scale, boundary) for row, boundary, _ in found]
    controls = [move(y[row] / scale, boundary) for row, _, inside in found for boundary in inside]
    first = found[0][0]
    own = [(boundary.at, change) for (row, boundary, _), change in zip(found, changes, strict=True) if row == first]
    moved = _moved([change for _, change in own], _far(controls))
    return Transitions(
        changes, controls, y[first, : instances.lengths[first]], [at for at, _ in own], moved, "one instance"
    )


def _between_joined(model: ContextModel, instances: Instances, segments: Segments) -> Transitions | None:
    """The controls are the first texts with their own continuation, of the same length."""
    joined, alone, boundaries = joined_texts(instances, segments, model.io.max_length)
    if not boundaries:
        return None
    both, same = contexts(model, joined), contexts(model, alone)
    scale = _spread([y[i, : b.end] for y in (both, same) for i, b in enumerate(boundaries)])
    changes, controls = ([move(y[i] / scale, b) for i, b in enumerate(boundaries)] for y in (both, same))
    first = boundaries[0]
    moved = _moved(changes[:1], _far(controls))
    return Transitions(changes, controls, both[0, : first.end], [first.at], moved, "two texts")


def joined_texts(
    instances: Instances, segments: Segments, longest: int
) -> tuple[NDArray[Any], NDArray[Any], list[Boundary]]:
    """Texts of two contexts, and for each a text of one context with the same first part and the same length.

    The part after the boundary is as long as both texts and `longest` allow. Pairs with fewer than 8 tokens on a side are left
    out. Shorter sequences are padded with their last token.

    Args:
        instances: Instances of the task.
        segments: Segments of these instances.
        longest: Tokens that a sequence may have.

    Returns:
        The texts of two contexts, (P, L) for P pairs; those of one context, (P, L); and the boundaries.
    """
    changed, same, boundaries = [], [], []
    for i in range(min(PAIRS, len(segments) - 1)):
        a, b = (
            instances.tokens[s.row[0], s.start[0] : s.end[0]] for s in (segments[i : i + 1], segments[i + 1 : i + 2])
        )
        at = int(segments.cut[i] - segments.start[i])
        rest = min(len(a) - at, len(b), longest - at)
        if min(at, rest) >= SHORTEST:
            changed.append(np.concatenate([a[:at], b[:rest]]))
            same.append(a[: at + rest])
            boundaries.append(Boundary(0, at, at + rest))
    return _padded(changed), _padded(same), boundaries


def _padded(rows: list[NDArray[Any]]) -> NDArray[Any]:
    width = max(map(len, rows), default=0)
    return np.array([np.concatenate([row, np.repeat(row[-1:], width - len(row), axis=0)]) for row in rows])


def _neighbours(segments: Segments) -> Iterator[tuple[int, int, int, int]]:
    """(row, begin, at, end) of each two neighbouring segments of an instance."""
    columns = (segments.row.tolist(), segments.start.tolist(), segments.end.tolist())
    for (row, begin, at), (other, start, end) in itertools.pairwise(zip(*columns, strict=True)):
        if row == other and at == start:
            yield row, begin, at, end


def _moved(changes: Sequence[Move], far: float) -> list[int | None]:
    """After how many tokens y has moved at each change; None where it has not gone far enough."""
    return [change.tokens if change.distance > far else None for change in changes]


def _far(controls: Sequence[Move]) -> float:
    """The distance that 5 % of the controls exceed."""
    return float(np.quantile([control.distance for control in controls], FAR, method="higher"))


def _settled(y: FloatArray) -> FloatArray:
    """The mean over the last quarter of the positions, (L, d) -> (d,)."""
    place: FloatArray = y[-max(1, len(y) // 4) :].mean(0)
    return place


def _spread(ys: Sequence[FloatArray]) -> float:
    """The root of the mean squared distance of y from its mean, over sequences (L, d); 1 for a constant y."""
    y = np.concatenate(ys)
    return float(np.sqrt(((y - y.mean(0)) ** 2).sum(-1).mean())) or 1.0
