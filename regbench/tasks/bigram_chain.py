"""The chains of the task `bigram`: the global table of transitions, the triggers and outputs of an instance, its symbols.

All of it has the same bytes on any machine: numbers come from `regbench.data.rng`, sums go from the first to the last, and no
function is used but + * / and comparison, whose results are the same everywhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import smallest_integer_type
from regbench.data.rng import below, stream, unit
from regbench.utils import threads
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

_TABLE, _CONTEXT, _SYMBOLS = 8, 9, 10  # the streams' purposes
_STEPS = 100  # of the chain, from uniform: far more than it takes to forget where it began


@lru_cache(maxsize=8)
def bigrams(n_symbols: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """pi_b (N, N), row i what comes behind symbol i, and pi_1 = pi_q (N,), which the chain tends to; not to be written to.

    Behind i symbol j has the weight u^7 / (1 + j) with u uniform over [0, 1), of each pair its own.
    """
    matrix, marginal = np.empty((n_symbols, n_symbols)), np.empty(n_symbols)
    _make_bigrams(seed, matrix, marginal)
    matrix.flags.writeable = marginal.flags.writeable = False
    return matrix, marginal


@njit(cache=True)
def _make_bigrams(seed, matrix, marginal):  # type: ignore[no-untyped-def]
    n = len(marginal)
    for i in range(n):
        rng = stream(seed, _TABLE, i)
        total = 0.0
        for j in range(n):
            u = unit(rng)
            cube = u * u * u
            matrix[i, j] = cube * cube * u / (1.0 + j)
            total += matrix[i, j]
        for j in range(n):
            matrix[i, j] /= total
        marginal[i] = 1.0 / n
    for _ in range(_STEPS):
        before = marginal.copy()
        for j in range(n):
            marginal[j] = 0.0
            for i in range(n):
                marginal[j] += before[i] * matrix[i, j]


def contexts(weights: FloatArray, k: int, seed: int, held_out: int, count: int) -> tuple[NDArray[Any], ...]:
    """The first `held_out` distinct triggers and outputs of the stream, then all that are none of these: `count` together.

    weights: (N,); k of the symbols are the triggers with a probability proportional to the product of theirs. Outputs are
    uniform over the others. Returned are the places in the stream (count,), the triggers (count, k), ascending, and their
    outputs (count, k).

    Raises:
        UserError: there are too few.
    """
    sums = _symmetric_sums(weights, k)
    seen: set[bytes] = set()  # asked for membership only, so its order decides nothing
    kept: list[NDArray[Any]] = []
    places: list[int] = []
    start, block = 0, max(64, count + count // 16)
    while len(kept) < count:
        if start > 100 * (held_out if len(kept) < held_out else count) + 10_000:
            raise UserError(
                f"these parameters give too few distinct triggers and outputs: {len(kept)} found where {count} are needed"
            )
        drawn = np.empty((block, 2, k), smallest_integer_type(len(weights)))
        threads.share(_draw, block, seed, start, weights, sums, drawn)
        for place, pair in enumerate(drawn, start):
            key = pair.tobytes()
            if key not in seen and len(kept) < count:
                if len(kept) < held_out:
                    seen.add(key)
                kept.append(pair)
                places.append(place)
        start, block = start + block, max(64, count // 16)
    pairs = np.array(kept)
    return np.array(places, np.int64), pairs[:, 0].copy(), pairs[:, 1].copy()


@njit(cache=True)
def _symmetric_sums(weights, k):  # type: ignore[no-untyped-def]
    """(N + 1, k + 1): at [i, m] the sum, over all sets of m of the symbols from i on, of the product of their weights."""
    n = len(weights)
    sums = np.zeros((n + 1, k + 1))
    sums[:, 0] = 1.0
    for i in range(n - 1, -1, -1):
        for m in range(1, k + 1):
            sums[i, m] = sums[i + 1, m] + weights[i] * sums[i + 1, m - 1]
    return sums


@njit(cache=True, nogil=True)
def _draw(begin, end, seed, start, weights, sums, drawn):  # type: ignore[no-untyped-def]
    """Fills drawn (M, 2, k) with triggers and their outputs; m is number start + m of the seed's stream.

    Symbol by symbol, one is a trigger with its share of the sum over the sets that are left; where all are needed that is 1.
    """
    k = drawn.shape[2]
    for m in range(begin, end):
        rng = stream(seed, _CONTEXT, start + m)
        chosen = 0
        for i in range(len(weights)):
            left = k - chosen
            if left > 0 and unit(rng) * sums[i, left] < weights[i] * sums[i + 1, left - 1]:
                drawn[m, 0, chosen] = i
                chosen += 1
        for c in range(k):
            output = below(rng, len(weights) - k)
            for trigger in drawn[m, 0]:
                output += output >= trigger
            drawn[m, 1, c] = output


def chains(
    seed: int, places: IntArray, rows: FloatArray, triggers: NDArray[Any], outputs: NDArray[Any], length: int
) -> NDArray[Any]:
    """(M, length): the symbols of instances at the given `places` in the seed's stream.

    rows: (N + 1, N), the global table and, last, what an instance begins with.  triggers, outputs: (M, k).
    """
    tokens = np.empty((len(places), length), smallest_integer_type(rows.shape[1]))
    cumulative = np.cumsum(rows, axis=1)  # each from the one before
    threads.share(_walk, len(tokens), seed, places, cumulative, triggers, outputs, tokens)
    return tokens


@njit(cache=True, nogil=True)
def _walk(begin, end, seed, places, cumulative, triggers, outputs, tokens):  # type: ignore[no-untyped-def]
    n_symbols = cumulative.shape[1]
    output_of = np.empty(n_symbols + 1, np.int64)
    for m in range(begin, end):
        rng = stream(seed, _SYMBOLS, places[m])
        output_of[:] = -1
        for c in range(triggers.shape[1]):
            output_of[triggers[m, c]] = outputs[m, c]
        last = n_symbols
        for t in range(tokens.shape[1]):
            following = output_of[last]
            if following < 0:
                drawn, following = unit(rng), 0
                while following < n_symbols - 1 and drawn >= cumulative[last, following]:
                    following += 1
            tokens[m, t] = last = following


def earlier_occurrences(tokens: NDArray[Any], n_symbols: int) -> IntArray:
    """(M, L): how often the symbol before a position has occurred before; 0 at the first."""
    earlier = np.zeros(tokens.shape, np.int32)
    _count_earlier(tokens, n_symbols, earlier)
    return earlier


@njit(cache=True, nogil=True)
def _count_earlier(tokens, n_symbols, earlier):  # type: ignore[no-untyped-def]
    for m in range(len(tokens)):
        times = np.zeros(n_symbols + 1, np.int32)
        for t in range(1, tokens.shape[1]):
            last = tokens[m, t - 1]
            earlier[m, t] = times[last]
            times[last] += 1
