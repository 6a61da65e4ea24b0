"""Where and how often a token stood before: for tasks whose answers stood there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from regbench.utils import threads


def occurrences(tokens: NDArray[Any], vocab_size: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Of the token at each position the last place before at which it stood, -1 if none, and how often; both (N, L)."""
    last, times = np.empty(tokens.shape, np.int32), np.empty(tokens.shape, np.int32)
    threads.share(_find, len(tokens), np.ascontiguousarray(tokens, np.int64), vocab_size, last, times)
    return last, times


@njit(cache=True, nogil=True)
def _find(begin, end, tokens, vocab_size, last, times):  # type: ignore[no-untyped-def]
    """Fills last and times (N, L); see `occurrences`."""
    place, count = np.empty(vocab_size, np.int64), np.empty(vocab_size, np.int64)
    for n in range(begin, end):
        place[:], count[:] = -1, 0
        for t in range(tokens.shape[1]):
            token = tokens[n, t]
            last[n, t], times[n, t] = place[token], count[token]
            place[token] = t
            count[token] += 1
