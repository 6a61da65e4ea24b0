"""The chains of the task `bigram`: the global transitions, the triggers and outputs of an instance, and its symbols.

Everything has the same bytes on any machine. Random numbers come from `regbench.data.rng`, sums run from the first term to the
last, and only + * / and comparisons are used, whose results are the same everywhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from regbench.data.rng import below, stream, unit
from regbench.tasks._drawn import first_distinct
from regbench.utils import threads
from regbench.utils.arrays import FloatArray, IntArray

_TABLE, _CONTEXT, _SYMBOLS = 8, 9, 10  # the streams' purposes
_STEPS = 100  # of the chain from uniform: it is then stationary with 16 symbols or more, and not always with fewer


@lru_cache(maxsize=8)
def bigrams(n_symbols: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """The global table. After symbol i, symbol j has the weight u^7 / (1 + j), with u uniform over [0, 1) for each pair.

    Gives pi_b (N, N), whose row i is the distribution after symbol i, and pi_1 = pi_q (N,): the chain's distribution 100 steps
    after the uniform one. With 16 symbols or more it is the stationary one. Both are read-only.
    """
    matrix, marginal = np.empty((n_symbols, n_symbols)), np.empty(n_symbols)
    _make_bigrams(seed, matrix, marginal)
    matrix.flags.writeable = marginal.flags.writeable = False
    return matrix, marginal


@njit(cache=True)
def _make_bigrams(seed, matrix, marginal):  # type: ignore[no-untyped-def]
    """Fills matrix (N, N) and marginal (N,); see `bigrams`."""
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


def contexts(
    weights: FloatArray, k: int, seed: int, held_out: int, count: int, rows: FloatArray | None = None
) -> tuple[NDArray[Any], ...]:
    """The first `held_out` distinct triggers and outputs of the stream, and the first others that equal none of these.

    The weights (N,) are those of `trigger_weights`. With `rows`, (N, N) or more rows, an output is drawn by its trigger's row,
    without triggers. Without, it is uniform over the symbols that are not triggers.

    Gives their places in the stream (count,), the k triggers of each (count, k), ascending, and their outputs (count, k).
    """
    sums = _symmetric_sums(weights, k)
    cumulative = np.empty((0, 0)) if rows is None else np.cumsum(rows, axis=1)

    def draw(start: int, n: int) -> NDArray[Any]:
        pairs = np.empty((n, 2, k), np.min_scalar_type(len(weights)))
        threads.share(_draw, n, seed, start, weights, sums, cumulative, pairs)
        return pairs

    pairs, places = first_distinct(draw, "triggers and outputs", count, held_out)
    return places, pairs[:, 0].copy(), pairs[:, 1].copy()


@njit(cache=True)
def _symmetric_sums(weights, k):  # type: ignore[no-untyped-def]
    """(N + 1, k + 1): at [i, m] the sum over all sets of m symbols from i on. A set's term is the product of its weights."""
    n = len(weights)
    sums = np.zeros((n + 1, k + 1))
    sums[:, 0] = 1.0
    for i in range(n - 1, -1, -1):
        for m in range(1, k + 1):
            sums[i, m] = sums[i + 1, m] + weights[i] * sums[i + 1, m - 1]
    return sums


@njit(cache=True, nogil=True)
def _draw(begin, end, seed, start, weights, sums, cumulative, drawn):  # type: ignore[no-untyped-def]
    """Fills drawn (M, 2, k) with triggers and their outputs. Row m is number start + m of the seed's stream.

    Symbols are decided in turn. Each is a trigger with the share that the sets with it have of the sum over the sets that are
    left. If all symbols that are left are needed, this is 1.
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
            output = drawn[m, 0, c]
            while len(cumulative) and (drawn[m, 0] == output).any():
                output = _next(rng, cumulative[drawn[m, 0, c]])
            if not len(cumulative):
                output = below(rng, len(weights) - k)
                for trigger in drawn[m, 0]:
                    output += output >= trigger
            drawn[m, 1, c] = output


@njit(cache=True)
def _next(rng, cumulative):  # type: ignore[no-untyped-def]
    """Draws a symbol by its cumulative probabilities (N,)."""
    drawn, symbol = unit(rng), 0
    while symbol < len(cumulative) - 1 and drawn >= cumulative[symbol]:
        symbol += 1
    return symbol


def chains(
    seed: int, places: IntArray, rows: FloatArray, triggers: NDArray[Any], outputs: NDArray[Any], length: int
) -> NDArray[Any]:
    """The symbols of the M instances at these places (M,) of the stream: (M, length) in the smallest unsigned integer type.

    `rows` (N + 1, N) are the global table, and in the last row the distribution of the first symbol. Triggers and outputs are (M,
    k).
    """
    tokens = np.empty((len(places), length), np.min_scalar_type(rows.shape[1]))
    cumulative = np.cumsum(rows, axis=1)  # each from the one before
    threads.share(_walk, len(tokens), seed, places, cumulative, triggers, outputs, tokens)
    return tokens


@njit(cache=True, nogil=True)
def _walk(begin, end, seed, places, cumulative, triggers, outputs, tokens):  # type: ignore[no-untyped-def]
    """Fills tokens (M, L); see `chains`."""
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
                following = _next(rng, cumulative[last])
            tokens[m, t] = last = following
