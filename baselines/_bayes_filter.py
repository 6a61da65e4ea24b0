"""The filter of the Bayesian predictor: it reads every prefix of an instance in turn. Moves repair its hypotheses."""

from __future__ import annotations

import numpy as np
from numba import int64, njit
from numpy.typing import NDArray

from baselines._bayes_hypotheses import (
    FRESH,
    Hypotheses,
    Scratch,
    Tables,
    add_edge,
    branch,
    branches,
    copy,
    draw_target,
    foresee,
    is_uneven,
    kind,
    log_weight,
    resample,
    uniform,
    without_negligible,
)
from regbench.data.rng import below, stream
from regbench.utils.arrays import FloatArray, IntArray

_DRAWS = 3  # the stream's purpose
_NEW = 0.15
"""The probability that a move proposes a state that is not reached yet, if there is one."""

_BEYOND = 30.0
"""The cost of every edge beyond the prior's maximum, in nats. Such edges are nearly impossible. But a hypothesis with a wrong
decision survives with such an edge until a move repairs it."""


@njit(cache=True, nogil=True, error_model="numpy")
def predict_row(
    symbols: IntArray,
    moves: int,
    seed: int,
    fallback: float,
    tables: Tables,
    h: Hypotheses,
    scratch: Scratch,
    probs: FloatArray,
) -> None:
    """Mixes the predictions of hypotheses into those of a fallback.

    Args:
        symbols: (L,) symbols; -1 is the separator.
        moves: Steps of each hypothesis after every symbol.
        seed: The seed of the draws.
        fallback: The share of the fallback in every prediction.
        tables: The prior.
        h: The hypotheses. The first knows nothing and has all the weight.
        scratch: Work space.
        probs: (L, K) the predictions of the fallback, overwritten.
    """
    P, K = len(h.weight) - 1, h.table.shape[2]
    rng = stream(seed, _DRAWS, 0)
    prefix, length = np.empty(len(symbols), np.int64), 0  # without the ends of strings that all hypotheses rule out
    # What is counted has a type of its own: Numba compiles a function for a literal 0 or 1 anew.
    seen, n_seen = np.zeros(K, np.bool_), int64(0)
    ahead = np.empty((P, 5))
    n, exact, lost = int64(1), True, False
    for t in range(len(symbols)):
        if t > 1 and symbols[t - 1] < 0 and symbols[t - 2] < 0:
            for a in range(K):
                probs[t, a] = probs[t - 1, a]  # padding
        elif not lost:
            for i in range(n):
                foresee(h, i, n_seen, tables, scratch, ahead[i])
            if n_seen > 0:  # before the first symbol all are equal, for the fallback too
                for a in range(K):
                    probs[t, a] *= fallback
                    for i in range(n):
                        probs[t, a] += (1.0 - fallback) * h.weight[i] * ahead[i, kind(h, i, a, seen)]

        a = symbols[t]
        if a < 0:
            lost = False
            prefix[length] = a
            length += 1
            for i in range(n):
                h.state[i] = 0
            continue
        if lost:
            continue
        evidence = 0.0
        for i in range(n):
            evidence += h.weight[i] * ahead[i, kind(h, i, a, seen)]
        if not evidence > 0.0:
            lost = True
            continue
        prefix[length] = a
        length += 1
        for i in range(n):
            h.weight[i] *= ahead[i, kind(h, i, a, seen)] / evidence
            h.fresh[i] = ahead[i, FRESH + (not seen[a])]
        n_seen += not seen[a]
        seen[a] = True

        if exact:
            n = without_negligible(h, n)
            exact = branches(h, n, a, scratch.share) <= P
            if exact:
                n = branch(h, n, a, scratch.share)
            else:
                resample(h, n, scratch.copies, rng)
                n = P
        elif is_uneven(h.weight[:P]):
            resample(h, P, scratch.copies, rng)
        for i in range(n):
            if h.table[i, h.state[i], a] < 0:
                add_edge(h, i, a, draw_target(h, i, scratch.share, rng))
            h.visits[i, h.state[i]] += 1
            h.state[i] = h.table[i, h.state[i], a]
        if not exact:
            for i in range(P):
                _move(h, i, prefix[:length], n_seen, moves, tables, scratch, rng)


# --- Moves: Metropolis-Hastings on where the edges lead. ---


@njit(cache=True, nogil=True, error_model="numpy")
def _move(
    h: Hypotheses,
    i: int,
    prefix: IntArray,
    n_seen: int,
    moves: int,
    tables: Tables,
    scratch: Scratch,
    rng: NDArray[np.uint64],
) -> None:
    """Forgets where one edge leads and draws its target again, `moves` times. Acceptance keeps p(H | prefix).

    A new target changes which edges the strings use. Edges that are needed and that H lacks are drawn on the way, from the same
    distribution q_H. Edges that are no longer needed are dropped, and a move back would have to draw them. With e edges, a move
    is accepted with the probability

        min(1, p(H') / p(H)  e / e'  prod over edges lost q_H' / prod over edges drawn q_H)
    """
    S, K = h.table.shape[1:]
    trial = len(h.weight) - 1
    now = log_weight(h, i, n_seen, tables, scratch)
    for _ in range(moves):
        s, a = below(rng, S), below(rng, K)
        while h.table[i, s, a] < 0:
            s, a = below(rng, S), below(rng, K)
        old, new = h.table[i, s, a], _propose(h, i, rng)
        if new == s:
            continue
        if new == old:
            continue
        copy(h, i, trial)
        h.table[trial, s, a] = new
        log_drawn = _log_proposed(h, i, new) + _replay(h, i, trial, prefix, tables.max_edges, scratch, rng)
        if log_drawn == -np.inf:
            continue
        log_lost = _log_proposed(h, trial, old)
        for y in range(S):
            for b in range(K):
                if h.table[i, y, b] >= 0 and not scratch.used[y, b]:
                    log_lost += _log_proposed(h, trial, h.table[i, y, b])
                    h.table[trial, y, b] = -1
        proposed = log_weight(h, trial, n_seen, tables, scratch)
        ratio = proposed - now + log_lost - log_drawn
        ratio += np.log(h.edges[i].sum() / h.edges[trial].sum())
        if np.log(uniform(rng)) < ratio:
            copy(h, trial, i)
            now = proposed


@njit(cache=True, nogil=True, error_model="numpy")
def _propose(h: Hypotheses, i: int, rng: NDArray[np.uint64]) -> int:
    """Draws from q_H: with probability _NEW a state that is not reached, else one that is. Within each, uniformly."""
    S = h.entries.shape[1]
    is_new = h.reached[i] < S and uniform(rng) < _NEW
    d = below(rng, S)
    while (h.entries[i, d] == 0) != is_new:
        d = below(rng, S)
    return d


@njit(cache=True, nogil=True, error_model="numpy")
def _log_proposed(h: Hypotheses, i: int, target: int) -> float:
    """The log of q_H(target)."""
    unreached = h.entries.shape[1] - h.reached[i]
    if h.entries[i, target] == 0:
        return np.log(_NEW / unreached)
    return np.log((1.0 - _NEW if unreached > 0 else 1.0) / h.reached[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _replay(
    h: Hypotheses,
    i: int,
    trial: int,
    prefix: IntArray,
    max_edges: int,
    scratch: Scratch,
    rng: NDArray[np.uint64],
) -> float:
    """Runs the prefix through the table of `trial`, draws the edges that it lacks, and counts what it uses.

    Returns the log probability of the draws. It is minus infinity if the automaton is ruled out: two edges of a state lead to one
    state, or states have more edges beyond the maximum than in hypothesis i.
    """
    table, visits, edges, entries = h.table[trial], h.visits[trial], h.edges[trial], h.entries[trial]
    used, leads = scratch.used, scratch.leads
    beyond = 0
    for s in range(len(visits)):
        for a in range(used.shape[1]):
            used[s, a] = False
        for target in range(len(visits)):
            leads[s, target] = False
        beyond += max(h.edges[i, s] - max_edges, 0)
        visits[s] = edges[s] = entries[s] = 0
    entries[0] = 1
    reached, log_drawn = 1, 0.0
    s = 0
    for a in prefix:
        if a < 0:
            s = 0
            continue
        if table[s, a] < 0:
            table[s, a] = _propose(h, i, rng)
            log_drawn += _log_proposed(h, i, table[s, a])
        target = table[s, a]
        if not used[s, a]:
            used[s, a] = True
            edges[s] += 1
            beyond -= edges[s] > max_edges
            if target == s or leads[s, target] or beyond < 0:
                return -np.inf
            leads[s, target] = True
            reached += entries[target] == 0
            entries[target] += 1
        visits[s] += 1
        s = target
    h.reached[trial] = reached
    h.state[trial] = s
    return log_drawn


# --- The prior as tables. ---


def tables_of(
    states: tuple[int, int], edges: tuple[int, int], alphabet: tuple[int, int], n_symbols: int, length: int
) -> Tables:
    """The logarithms of the factors of p(prefix, H); see the module `bayes`.

    Args:
        states: The fewest and the most states of the prior.
        edges: The fewest and the most edges of a state.
        alphabet: The fewest and the most symbols of an automaton.
        n_symbols: All symbols.
        length: The most tokens of a prefix.
    """
    S = states[1]
    n = np.arange(states[0], S + 1)
    c = np.arange(alphabet[0], alphabet[1] + 1)
    most = np.minimum(np.minimum.outer(n - 1, c), edges[1])  # (n, c): M of the module `bayes`
    choices = np.unique(most)
    # Hypotheses label their states, so (n-1)_{v-1} is shared by the (S-1)_{v-1} ways to do it.
    order = _log_falling(n - 1, S - 1) - _log_falling(np.array([S - 1]), S - 1) - np.log(len(n))
    drawn = _log_falling(c, n_symbols) - _log_falling(np.array([n_symbols]), n_symbols) - np.log(len(c))
    return Tables(
        n=n,
        c=c,
        most=np.searchsorted(choices, most),
        order=order,
        alphabet=drawn,
        targets=_over(_log_falling(n - 1, S)),
        symbols=_over(_log_falling(c, S)),
        degree=np.stack([_log_degree(edges[0], int(M), S, length) for M in choices]),
        max_edges=int(choices[-1]),
    )


def _log_falling(x: IntArray, most: int) -> NDArray[np.float64]:
    """(most + 1, X): log (x)_k for k = 0 to `most`; minus infinity if k > x."""
    factors = x - np.arange(most)[:, None]
    logs = np.where(factors > 0, np.log(np.maximum(factors, 1)), -np.inf)
    return np.concatenate([np.zeros((1, len(x))), logs.cumsum(0)])


def _over(log: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log of 1/x from the log of x; minus infinity stays."""
    return np.where(np.isfinite(log), -log, -np.inf)


def _log_degree(least: int, most: int, n_states: int, length: int) -> NDArray[np.float64]:
    """(S + 1, L + 2): log f(k, N). The out-degree is uniform over [least, most], with a tail above; see _BEYOND."""
    m = np.arange(1, n_states)
    log_p = np.where(m < least, -np.inf, -_BEYOND * np.maximum(m - most, 0))
    log_p -= np.logaddexp.reduce(log_p)
    known = _log_falling(m, n_states)  # (S + 1, S - 1): log (m)_k
    visits = np.arange(length + 2)[:, None] * np.log(m)
    return np.stack([np.logaddexp.reduce(log_p + row - visits, axis=-1) for row in known])
