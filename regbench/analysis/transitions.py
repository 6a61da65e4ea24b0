"""Where y goes when the context changes, beside where it goes inside one context: how far, and after how many tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.analysis.guided import Guided
from regbench.analysis.representation import contexts
from regbench.analysis.segments import Segments
from regbench.data.instances import Instances
from regbench.utils.arrays import FloatArray

SMOOTHED = 4
"""Over so many positions y is averaged to see where it is on its way."""
SHORTEST = 8
"""So many tokens must stand on either side of a boundary for y to be seen going from the one to the other."""
FAR = 0.95
"""y counts as moved where it goes farther than in so many of the cases in which no context changes."""
PAIRS = 100


@dataclass(frozen=True)
class Move:
    """How y goes over a boundary: how far apart its old place and its new are; past the middle after how many tokens."""

    distance: float
    tokens: int | None


@dataclass(frozen=True)
class Boundary:
    """The tokens begin..at of a sequence, and at..end."""

    begin: int
    at: int
    end: int


@dataclass(frozen=True)
class Transitions:
    """The moves of y at changes of context, and at boundaries in the middle of one context, with windows as long.

    far: the distance that only 1 in 20 of the latter exceed; a change that does has moved y.  shown: y of one sequence, (L, d),
    with its boundaries, and after how many tokens of each y has moved (None: it has not).  what: the sequence is.
    """

    changes: list[Move]
    controls: list[Move]
    shown: FloatArray
    boundaries: list[int]
    moved: list[int | None]
    what: str

    @property
    def far(self) -> float:
        return _far(self.controls)

    def tokens(self) -> list[int]:
        """After how many tokens y has moved, of the changes that have moved it."""
        return [tokens for tokens in _moved(self.changes, self.far) if tokens is not None]


def move(y: FloatArray, boundary: Boundary) -> Move:
    """From y of a sequence, (L, d), in which one context ends where the next begins.

    The places are the means of y over the last quarter of either side; y is past the middle between them where its mean over 4
    positions, projected on the line between the places, is. That is so for any two places, near as they may be, so a distance
    must be held against those where nothing changes.
    """
    old = _settled(y[boundary.begin + 1 : boundary.at + 1])
    new = _settled(y[boundary.at + 1 : boundary.end])
    along = (y[boundary.at - SMOOTHED + 2 : boundary.end] - old) @ (new - old)
    smooth = np.convolve(along, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    past = np.flatnonzero(smooth > ((new - old) ** 2).sum() / 2)
    return Move(float(np.linalg.norm(new - old)), int(past[0]) + 1 if len(past) else None)


def transitions(model: Guided, y: FloatArray, instances: Instances, segments: Segments) -> Transitions | None:
    """At the boundaries between neighbouring stretches of an instance; where each is alone in its instance, at joints of two.

    y: of the instances, (N, L, d). Distances are in its spread, the root of its mean squared distance from its mean over the
    sequences looked at. None where no boundary has 8 tokens on either side.
    """
    if segments.per_row > 1:
        return _between_neighbours(y, instances, segments)
    return _between_joined(model, instances, segments)


def _between_neighbours(y: FloatArray, instances: Instances, segments: Segments) -> Transitions | None:
    """Windows at a change and in the middle of the two stretches beside it are as long: half of the shorter one."""
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


def _between_joined(model: Guided, instances: Instances, segments: Segments) -> Transitions | None:
    """The first text of each two also goes on as it did: the same first part, and as many tokens behind it."""
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
    instances: Instances, segments: Segments, longest: int, pairs: int = PAIRS
) -> tuple[NDArray[Any], NDArray[Any], list[Boundary]]:
    """What is before the cut of one stretch with the beginning of the next behind it, (P, L); with its own rest, (P, L).

    Either rest has as many tokens, as many as both texts and a sequence of `longest` have. Where that is fewer than 8, the pair
    is left out. Padded with what stands last.
    """
    changed, same, boundaries = [], [], []
    for i in range(min(pairs, len(segments) - 1)):
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
    """(row, begin, at, end) of every two stretches of one instance that stand side by side."""
    columns = (segments.row.tolist(), segments.start.tolist(), segments.end.tolist())
    for (row, begin, at), (other, start, end) in itertools.pairwise(zip(*columns, strict=True)):
        if row == other and at == start:
            yield row, begin, at, end


def _moved(changes: Sequence[Move], far: float) -> list[int | None]:
    return [change.tokens if change.distance > far else None for change in changes]


def _far(controls: Sequence[Move]) -> float:
    return float(np.quantile([control.distance for control in controls], FAR, method="higher"))


def _settled(y: FloatArray) -> FloatArray:
    """The mean over the last quarter of some positions, (L, d) -> (d,)."""
    place: FloatArray = y[-max(1, len(y) // 4) :].mean(0)
    return place


def _spread(ys: Sequence[FloatArray]) -> float:
    """The root of the mean squared distance of y from its mean, over sequences, (L, d) each; 1 where y stands still."""
    y = np.concatenate(ys)
    return float(np.sqrt(((y - y.mean(0)) ** 2).sum(-1).mean())) or 1.0
