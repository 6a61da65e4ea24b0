"""A small random generator for Numba code: SplitMix64, one independent stream for each (seed, purpose, index).

Because a stream depends on nothing but its three integers, the k-th automaton or string list has the same bytes in any
process, on any machine, in any order and for any number of threads.
Source: Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


@njit(cache=True)
def _mix(z):  # type: ignore[no-untyped-def]
    z = uint64(z)
    z = uint64((z ^ (z >> uint64(30))) * _MIX1)
    z = uint64((z ^ (z >> uint64(27))) * _MIX2)
    return z ^ (z >> uint64(31))


@njit(cache=True)
def stream(seed, purpose, index):  # type: ignore[no-untyped-def]
    """The state (1,) of a generator of its own for (seed, purpose, index)."""
    state = np.empty(1, np.uint64)
    state[0] = _mix(_mix(_mix(uint64(seed) + _GOLDEN) + uint64(purpose) * _GOLDEN) + uint64(index) * _GOLDEN)
    return state


@njit(cache=True)
def below(state, n):  # type: ignore[no-untyped-def]
    """A uniform integer in [0, n), n < 2^32; the bias of the multiply-shift is below n / 2^32."""
    state[0] += _GOLDEN
    return np.int64(((_mix(state[0]) >> uint64(32)) * uint64(n)) >> uint64(32))


@njit(cache=True)
def between(state, low, high):  # type: ignore[no-untyped-def]
    """A uniform integer in [low, high], both ends included."""
    return low + below(state, high - low + 1)


@njit(cache=True)
def choose(state, pool, size, k):  # type: ignore[no-untyped-def]
    """Puts k of the first `size` entries of `pool`, drawn without replacement, at its front (a partial shuffle)."""
    for i in range(k):
        j = i + below(state, size - i)
        pool[i], pool[j] = pool[j], pool[i]
