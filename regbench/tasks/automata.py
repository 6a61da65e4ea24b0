"""Probabilistic finite automata: sampling, minimisation and canonical form (ICLL section 3.1).

An automaton is a table `transitions (S, V)` of int8: the state that symbol v leads to from state i, or -1 if v is not allowed.
It starts in state 0. All allowed symbols of a state have the same probability, so the table is the whole automaton. (The paper
also draws a reject state, the target of every symbol that is not allowed: here that is -1. The paper says that strings may start
in the reject state, which can emit nothing. Its released code starts in the first ordinary state, as we do.)

Minimisation merges states that have the same future. Merged states allow the same symbols, with the same probabilities, so the
distribution of strings does not change. But two symbols of a state may then lead to one state, and a state may lead to itself.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from regbench.data.rng import between, choose, stream
from regbench.utils import threads

_AUTOMATON = 1  # the stream's purpose; strings have another


@njit(cache=True)
def _draw(state, n_symbols, n_states, alphabet_size, min_edges, max_edges, table):  # type: ignore[no-untyped-def]
    """Fills `table` by ICLL section 3.1, steps 2 and 3: an alphabet, then edges from each state to distinct other states.

    The number of edges is uniform over what is possible: of 4 states, each can lead to 3 others at most.
    """
    table[:] = -1
    alphabet = np.arange(n_symbols)
    choose(state, alphabet, n_symbols, alphabet_size)
    symbols, targets = np.empty(alphabet_size, np.int64), np.empty(n_states, np.int64)
    for i in range(n_states):
        edges = between(state, min_edges, min(max_edges, n_states - 1, alphabet_size))
        for a in range(alphabet_size):  # to assign a slice takes Numba seconds to compile
            symbols[a] = alphabet[a]
        choose(state, symbols, alphabet_size, edges)
        others = 0
        for j in range(n_states):
            if j != i:
                targets[others] = j
                others += 1
        choose(state, targets, others, edges)
        for e in range(edges):
            table[i, symbols[e]] = targets[e]


@njit(cache=True)
def _canonical(table, n_states, out):  # type: ignore[no-untyped-def]
    """Writes the minimal automaton of `table`, its states in breadth-first order by symbol. Returns its number of states.

    Moore's refinement: all states begin in one class. A class is split while its states differ in their allowed symbols or in
    the classes of their successors. It takes quadratic time, but for a dozen states it is faster than Hopcroft's lists.
    """
    n_symbols = table.shape[1]
    group, refined = np.zeros(n_states, np.int64), np.empty(n_states, np.int64)
    first = np.empty(n_states, np.int64)
    count = 1
    while True:
        found = 0
        for i in range(n_states):
            refined[i] = -1
            for g in range(found):
                j = first[g]
                same = group[i] == group[j]
                for v in range(n_symbols):
                    if not same:
                        break
                    a, b = table[i, v], table[j, v]
                    same = (a < 0) == (b < 0) and (a < 0 or group[a] == group[b])
                if same:
                    refined[i] = g
                    break
            if refined[i] < 0:
                first[found] = i
                refined[i] = found
                found += 1
        for i in range(n_states):
            group[i] = refined[i]
        if found == count:
            break
        count = found
    number = np.full(count, -1, np.int64)
    queue = np.empty(count, np.int64)
    out[:] = -1
    number[group[0]] = 0
    queue[0] = group[0]
    size, head = 1, 0
    while head < size:
        member = first[queue[head]]
        for v in range(n_symbols):
            target = table[member, v]
            if target >= 0:
                g = group[target]
                if number[g] < 0:
                    number[g] = size
                    queue[size] = g
                    size += 1
                out[head, v] = number[g]
        head += 1
    return size


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, start, n_symbols, states, alphabet, edges, out):  # type: ignore[no-untyped-def]
    """Fills out (N, S, V) with candidates. Row k is number start + k of the seed's stream."""
    for k in range(begin, end):
        state = stream(seed, _AUTOMATON, start + k)
        table = np.empty((states[1], n_symbols), np.int8)
        n_states = between(state, states[0], states[1])
        alphabet_size = between(state, alphabet[0], alphabet[1])
        _draw(state, n_symbols, n_states, alphabet_size, edges[0], edges[1], table)
        _canonical(table, n_states, out[k])


Range = tuple[int, int]
"""The least and the most."""


def sample_automata(
    seed: int, start: int, count: int, *, n_symbols: int, states: Range, alphabet: Range, edges: Range
) -> NDArray[np.int8]:
    """Draws automata by ICLL section 3.1, and makes them minimal and canonical.

    A candidate does not depend on how many others are drawn. They begin at place `start` of the seed's stream. The ranges are of
    states, symbols of an automaton, and edges of a state. Gives (count, S, V) int8, with S the most states and V `n_symbols`.
    Unused states have no edges.
    """
    out = np.empty((count, states[1], n_symbols), np.int8)
    threads.share(_sample, count, seed, start, n_symbols, states, alphabet, edges, out)
    return out
