"""The first distinct items of a stream: automata, maps, triggers and outputs that no two instances may share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.utils.errors import UserError


def first_distinct(
    draw: Callable[[int, int], NDArray[Any]], what: str, count: int, held_out: int | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The first `held_out` distinct items of a stream, and after them the first items that equal none of these.

    `draw(start, n)` gives the items (n, ...) from a place of the stream on; `what` they are is for the message. Of `count` in
    all, those behind the first `held_out` may repeat each other. None: all are distinct. Gives the items (count, ...) and
    their places in the stream (count,).
    """
    held_out = count if held_out is None else held_out
    seen: set[bytes] = set()  # asked for membership only, so its order decides nothing
    kept = [draw(0, 0)]
    places: list[int] = []
    start, block = 0, max(64, count + count // 16)
    while len(places) < count:
        if start > 100 * (held_out if len(places) < held_out else count) + 10_000:
            raise UserError(
                f"these parameters give too few distinct {what}: {len(places)} found where {count} are needed"
            )
        drawn, first = draw(start, block), len(places)
        for place, item in enumerate(drawn, start):
            key = item.tobytes()
            if key not in seen and len(places) < count:
                if len(places) < held_out:
                    seen.add(key)
                places.append(place)
        kept.append(drawn[np.array(places[first:], np.int64) - start])
        start, block = start + block, max(64, count // 16)
    return np.concatenate(kept), np.array(places, np.int64)
