"""A small random generator for Numba code: SplitMix64, with an independent stream for each (seed, purpose, index).

A stream depends on nothing but these three integers. So the k-th automaton or list of strings has the same bytes in any process,
on any machine, in any order and for any number of threads. A `state` below is the array (1,) that `stream` returns; each draw
changes it.

Source: Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
# Cumulative probabilities of the whole numbers k with weights exp(-k^2 / 2). Literals are the same on any machine.
_WHOLE = (
    0.5703484474872088,
    0.9162822676077018,
    0.9934705362919455,
    0.9998065352206729,
    0.999997865809687,
    0.999999991300538,
    0.9999999999869333,
    0.9999999999999928,
    1.0,
)


@njit(cache=True)
def _mix(z):  # type: ignore[no-untyped-def]
    z = uint64(z)
    z = uint64((z ^ (z >> uint64(30))) * _MIX1)
    z = uint64((z ^ (z >> uint64(27))) * _MIX2)
    return z ^ (z >> uint64(31))


@njit(cache=True)
def stream(seed, purpose, index):  # type: ignore[no-untyped-def]
    """The state (1,) uint64 of the generator of (seed, purpose, index)."""
    state = np.empty(1, np.uint64)
    state[0] = _mix(_mix(_mix(uint64(seed) + _GOLDEN) + uint64(purpose) * _GOLDEN) + uint64(index) * _GOLDEN)
    return state


@njit(cache=True)
def below(state, n):  # type: ignore[no-untyped-def]
    """A uniform integer in [0, n), for n < 2^32. The bias of the multiply-shift is below n / 2^32."""
    state[0] += _GOLDEN
    return np.int64(((_mix(state[0]) >> uint64(32)) * uint64(n)) >> uint64(32))


@njit(cache=True)
def between(state, low, high):  # type: ignore[no-untyped-def]
    """A uniform integer in [low, high], both ends included."""
    return low + below(state, high - low + 1)


@njit(cache=True)
def choose(state, pool, size, k):  # type: ignore[no-untyped-def]
    """Draws k of the first `size` entries of `pool` without replacement, and puts them first (a partial shuffle)."""
    for i in range(k):
        j = i + below(state, size - i)
        pool[i], pool[j] = pool[j], pool[i]


@njit(cache=True)
def unit(state):  # type: ignore[no-untyped-def]
    """A uniform float64 in [0, 1): a multiple of 2^-53."""
    state[0] += _GOLDEN
    return np.float64(_mix(state[0]) >> uint64(11)) * 2.0**-53


@njit(cache=True)
def _with_exp_minus(state, x):  # type: ignore[no-untyped-def]
    """True with probability exp(-x), for 0 <= x <= 1, by comparisons of uniforms (von Neumann 1951; Forsythe 1972).

    The first k - 1 draws are below x / 1, x / 2, ..., x / (k - 1) with probability x^(k-1) / (k-1)!. So the run ends at an odd k
    with probability exp(-x).
    """
    k = 1
    while unit(state) * k < x:
        k += 1
    return k % 2 == 1


@njit(cache=True)
def gaussian(state):  # type: ignore[no-untyped-def]
    """A standard normal float64, by comparisons of uniforms alone.

    After Algorithm N of Karney (2016), "Sampling exactly from the normal distribution". It uses no logarithm and no sine, whose
    last bits differ from machine to machine.
    """
    while True:
        drawn, whole = unit(state), 0
        while drawn >= _WHOLE[whole]:
            whole += 1
        part = unit(state)  # exp(-(k + x)^2 / 2) over exp(-k^2 / 2) is a product of k + 1 equal factors
        share = part * (2 * whole + part) / (2 * whole + 2)
        trial = 0
        while trial <= whole and _with_exp_minus(state, share):
            trial += 1
        if trial > whole:
            return whole + part if below(state, 2) == 0 else -(whole + part)
