"""Partial automata: their weights under the prior, their predictions and their new edges. Compiled for `_bayes_filter`.

Numba does not compile a function again when a function that it calls in another file has changed. So remove
`baselines/__pycache__` after an edit here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, njit
from numpy.typing import NDArray

from regbench.data.rng import below
from regbench.utils.arrays import FloatArray

_KNOWN, _SEEN, _NOVEL, FRESH = range(4)
_NEGLIGIBLE = 1e-12
"""Hypotheses of a smaller weight are dropped. They have edges beyond the prior's maximum, and others have none."""


class Tables(NamedTuple):
    """The prior, as the logarithms of the factors of p(prefix, H)."""

    n: NDArray[np.int64]  # (n,) the possible numbers of states
    c: NDArray[np.int64]  # (c,) the possible numbers of symbols
    most: NDArray[np.int64]  # (n, c) which of the M possible maxima of the out-degree holds
    order: NDArray[np.float64]  # (S, n) log p(n) (n-1)_j of j states reached besides the start
    alphabet: NDArray[np.float64]  # (K + 1, c) log p(c) (c)_u / (K)_u
    targets: NDArray[np.float64]  # (S + 1, n) log 1 / (n-1)_k
    symbols: NDArray[np.float64]  # (S + 1, c) log 1 / (c)_k
    degree: NDArray[np.float64]  # (M, S + 1, L + 2) log f(k, N)
    max_edges: int  # the largest of the M maxima


class Hypotheses(NamedTuple):
    """P weighted partial automata with at most S states and K symbols. Row P is used by moves for their proposals."""

    table: NDArray[np.int8]  # (P + 1, S, K) the state that each known edge leads to, or -1
    visits: NDArray[np.int32]  # (P + 1, S) emissions in each state
    edges: NDArray[np.int32]  # (P + 1, S) known edges of each state
    # (P + 1, S) known edges into each state, and one more into the start. A state with an entry is reached.
    entries: NDArray[np.int32]
    reached: NDArray[np.int32]  # (P + 1,) the number of states that are reached
    state: NDArray[np.int32]  # (P + 1,) the state at the end of the prefix
    weight: NDArray[np.float64]  # (P + 1,) the probability among the hypotheses
    # (P + 1,) the probability that the next edge, if it is new, leads to a state that is not reached yet
    fresh: NDArray[np.float64]

    @classmethod
    def empty(cls, count: int, n_states: int, n_symbols: int) -> Hypotheses:
        """Makes room for `count` hypotheses. The first knows nothing and has all the weight."""
        P, S, K = count + 1, n_states, n_symbols
        h = cls(
            table=np.full((P, S, K), -1, np.int8),
            visits=np.zeros((P, S), np.int32),
            edges=np.zeros((P, S), np.int32),
            entries=np.zeros((P, S), np.int32),
            reached=np.ones(P, np.int32),
            state=np.zeros(P, np.int32),
            weight=np.zeros(P),
            fresh=np.zeros(P),
        )
        h.entries[:, 0] = 1
        h.weight[0] = 1.0
        return h


class Scratch(NamedTuple):
    """Work space of the functions below. They tell what they leave in it."""

    of_n: NDArray[np.float64]  # (n,)
    of_c: NDArray[np.float64]  # (c,)
    choices: NDArray[np.float64]  # (c,)
    of_degree: NDArray[np.float64]  # (M,)
    known: NDArray[np.float64]  # (M,)
    new: NDArray[np.float64]  # (M,)
    states: NDArray[np.int64]  # (S + 1,)
    share: NDArray[np.float64]  # (S,)
    copies: NDArray[np.int64]  # (P,)
    used: NDArray[np.bool_]  # (S, K)
    leads: NDArray[np.bool_]  # (S, S)

    @classmethod
    def of(cls, h: Hypotheses, tables: Tables) -> Scratch:
        """Makes the work space for hypotheses and a prior."""
        P, S, K = h.table.shape
        n, c, M = len(tables.n), len(tables.c), len(tables.degree)
        return cls(
            of_n=np.empty(n),
            of_c=np.empty(c),
            choices=np.empty(c),
            of_degree=np.empty(M),
            known=np.empty(M),
            new=np.empty(M),
            states=np.empty(S + 1, np.int64),
            share=np.empty(S),
            copies=np.empty(P - 1, np.int64),
            used=np.empty((S, K), np.bool_),
            leads=np.empty((S, S), np.bool_),
        )


# --- Weights and predictions. Their derivation is in the module of Bayes. ---


@njit(cache=True, nogil=True, error_model="numpy")
def log_weight(h: Hypotheses, i: int, n_seen: int, tables: Tables, scratch: Scratch) -> float:
    """The log of p(prefix, H). Leaves the factors of its terms in of_n, of_c and of_degree, each relative to the largest."""
    states, of_n, of_c, of_degree = scratch.states, scratch.of_n, scratch.of_c, scratch.of_degree
    most = 0
    for k in range(len(states)):
        states[k] = 0
    for j in range(len(of_degree)):
        of_degree[j] = 0.0
    for s in range(h.edges.shape[1]):
        k = h.edges[i, s]
        states[k] += 1
        most = max(most, k)
        for j in range(len(of_degree)):
            of_degree[j] += tables.degree[j, k, h.visits[i, s]]
    for j in range(len(of_n)):
        of_n[j] = tables.order[h.reached[i] - 1, j]
        for k in range(1, most + 1):
            if states[k] > 0:
                of_n[j] += states[k] * tables.targets[k, j]
    for j in range(len(of_c)):
        of_c[j] = tables.alphabet[n_seen, j]
        for k in range(1, most + 1):
            if states[k] > 0:
                of_c[j] += states[k] * tables.symbols[k, j]
    scale = _exponentiate(of_n) + _exponentiate(of_c) + _exponentiate(of_degree)
    total = 0.0
    for a in range(len(of_n)):
        for b in range(len(of_c)):
            total += of_n[a] * of_c[b] * of_degree[tables.most[a, b]]
    return scale + np.log(total)


@njit(cache=True, nogil=True, error_model="numpy")
def _exponentiate(x: FloatArray) -> float:
    """Replaces x by exp(x) over the largest exp(x). Returns the largest x."""
    largest = x[0]
    for j in range(1, len(x)):
        largest = max(largest, x[j])
    for j in range(len(x)):
        x[j] = np.exp(x[j] - largest)
    return largest


@njit(cache=True, nogil=True, error_model="numpy")
def foresee(h: Hypotheses, i: int, n_seen: int, tables: Tables, scratch: Scratch, ahead: FloatArray) -> None:
    """Fills ahead (5,) with the predictions of hypothesis i.

    These are the probability of each symbol with a known edge (_KNOWN), of each other symbol that was seen (_SEEN), and of each
    symbol that was never seen (_NOVEL). Then follow, for a new edge of a symbol that was seen (FRESH) and of one that was not
    (FRESH + 1), the probabilities that it leads to a state that is not reached yet.
    """
    s = h.state[i]
    k, N = h.edges[i, s], h.visits[i, s]
    log_weight(h, i, n_seen, tables, scratch)
    known, new, choices = scratch.known, scratch.new, scratch.choices
    for j in range(len(known)):
        degree = tables.degree[j]
        known[j] = scratch.of_degree[j] * np.exp(degree[k, N + 1] - degree[k, N])
        new[j] = scratch.of_degree[j] * np.exp(degree[k + 1, N + 1] - degree[k, N])
    for b in range(len(choices)):
        choices[b] = scratch.of_c[b] / (tables.c[b] - k) if tables.c[b] > k else 0.0
    for x in range(len(ahead)):
        ahead[x] = 0.0
    for a in range(len(tables.n)):
        p_known, p_seen, p_novel = 0.0, 0.0, 0.0
        for b in range(len(choices)):
            j = tables.most[a, b]
            p_known += scratch.of_c[b] * known[j]
            p_seen += choices[b] * new[j]
            p_novel += choices[b] * new[j] * (tables.c[b] - n_seen)
        p = scratch.of_n[a]
        ahead[_KNOWN] += p * p_known
        others = tables.n[a] - 1 - k
        if others > 0:
            fresh = (tables.n[a] - h.reached[i]) / others
            ahead[_SEEN] += p * p_seen
            ahead[_NOVEL] += p * p_novel
            ahead[FRESH] += p * p_seen * fresh
            ahead[FRESH + 1] += p * p_novel * fresh
    for kind in range(2):
        if ahead[_SEEN + kind] > 0.0:
            ahead[FRESH + kind] /= ahead[_SEEN + kind]
    total = k * ahead[_KNOWN] + (n_seen - k) * ahead[_SEEN] + ahead[_NOVEL]
    unseen = h.table.shape[2] - n_seen
    ahead[_KNOWN] /= total
    ahead[_SEEN] /= total
    ahead[_NOVEL] /= total * max(unseen, 1)


@njit(cache=True, nogil=True, error_model="numpy")
def kind(h: Hypotheses, i: int, a: int, seen: NDArray[np.bool_]) -> int:
    """The kind of the next symbol `a` for hypothesis i: _KNOWN, _SEEN or _NOVEL."""
    if h.table[i, h.state[i], a] >= 0:
        return _KNOWN
    return _SEEN if seen[a] else _NOVEL


# --- New edges: branching, drawing, resampling. ---


@njit(cache=True, nogil=True, error_model="numpy")
def _targets(h: Hypotheses, i: int, share: FloatArray) -> int:
    """Fills share (S,) with the probability that a new edge leads to each state. Returns the number of possible states.

    States that are reached are equally likely. Those that are not reached are all alike, so the first stands for all of them.
    """
    s = h.state[i]
    for d in range(len(share)):
        share[d] = 1.0 if h.entries[i, d] > 0 and d != s else 0.0
    for b in range(h.table.shape[2]):
        if h.table[i, s, b] >= 0:
            share[h.table[i, s, b]] = 0.0
    old = share.sum()
    count, is_first = 0, True
    for d in range(len(share)):
        if share[d] > 0.0:
            share[d] = (1.0 - h.fresh[i]) / old
        elif is_first and h.entries[i, d] == 0:
            share[d] = h.fresh[i]
            is_first = False
        count += share[d] > 0.0
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def branches(h: Hypotheses, n: int, a: int, share: FloatArray) -> int:
    """The number of hypotheses that the first n become with the next symbol `a`."""
    count = 0
    for i in range(n):
        count += _targets(h, i, share) if h.table[i, h.state[i], a] < 0 else 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def branch(h: Hypotheses, n: int, a: int, share: FloatArray) -> int:
    """Gives each of the first n hypotheses an edge with `a`, in every possible way. Returns how many they become."""
    end = n
    for i in range(n):
        if h.table[i, h.state[i], a] < 0:
            left = _targets(h, i, share)
            weight = h.weight[i]
            for d in range(len(share)):
                if share[d] > 0.0:
                    left -= 1
                    at = i if left == 0 else end  # itself last, because the others are copies of it
                    if left > 0:
                        copy(h, i, at)
                        end += 1
                    add_edge(h, at, a, d)
                    h.weight[at] = weight * share[d]
    return end


@njit(cache=True, nogil=True, error_model="numpy")
def draw_target(h: Hypotheses, i: int, share: FloatArray, rng: NDArray[np.uint64]) -> int:
    """Draws the state that a new edge of hypothesis i leads to."""
    _targets(h, i, share)
    x = uniform(rng)
    found = -1
    for d in range(len(share)):
        if share[d] > 0.0:
            found = d
            x -= share[d]
            if x < 0.0:
                break
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def add_edge(h: Hypotheses, i: int, a: int, target: int) -> None:
    """Adds an edge with `a` from the current state of hypothesis i."""
    s = h.state[i]
    h.table[i, s, a] = target
    h.edges[i, s] += 1
    h.reached[i] += h.entries[i, target] == 0
    h.entries[i, target] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def copy(h: Hypotheses, source: int, to: int) -> None:
    """Copies one hypothesis over another."""
    S, K = h.table.shape[1:]
    for s in range(S):
        h.visits[to, s] = h.visits[source, s]
        h.edges[to, s] = h.edges[source, s]
        h.entries[to, s] = h.entries[source, s]
        for a in range(K):
            h.table[to, s, a] = h.table[source, s, a]
    h.reached[to] = h.reached[source]
    h.state[to] = h.state[source]
    h.weight[to] = h.weight[source]
    h.fresh[to] = h.fresh[source]


@njit(cache=True, nogil=True, error_model="numpy")
def without_negligible(h: Hypotheses, n: int) -> int:
    """Drops hypotheses of negligible weight from the first n. Returns how many are left."""
    kept, total = int64(0), 0.0
    for i in range(n):
        if h.weight[i] > _NEGLIGIBLE:
            if kept < i:
                copy(h, i, kept)
            total += h.weight[kept]
            kept += 1
    for i in range(kept):
        h.weight[i] /= total
    return kept


@njit(cache=True, nogil=True, error_model="numpy")
def is_uneven(weight: FloatArray) -> bool:
    """Whether the effective number of hypotheses is less than half of them, or any weight is zero."""
    least, total, squares = np.inf, 0.0, 0.0
    for w in weight:
        least = min(least, w)
        total += w
        squares += w * w
    return not least > 0.0 or len(weight) * squares > 2.0 * total * total


@njit(cache=True, nogil=True, error_model="numpy")
def resample(h: Hypotheses, n: int, copies: NDArray[np.int64], rng: NDArray[np.uint64]) -> None:
    """Makes P hypotheses of equal weight from the first n, by systematic resampling in place."""
    P = len(copies)
    offset, so_far, drawn = uniform(rng), 0.0, 0
    for i in range(P):
        copies[i] = 0
    last = 0
    for i in range(n):
        so_far += h.weight[i]
        if h.weight[i] > 0.0:
            last = i
        while drawn < P and drawn + offset < so_far * P:
            copies[i] += 1
            drawn += 1
    copies[last] += P - drawn  # rounding
    empty = int64(0)
    for i in range(n):
        for _ in range(copies[i] - 1):
            while copies[empty] > 0:
                empty += 1
            copy(h, i, empty)
            copies[empty] = 1
    for i in range(P):
        h.weight[i] = 1.0 / P


@njit(cache=True, nogil=True, error_model="numpy")
def uniform(rng: NDArray[np.uint64]) -> float:
    """A uniform number in [0, 1), a multiple of 2^-30."""
    return below(rng, 1 << 30) / (1 << 30)
