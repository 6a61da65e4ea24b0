"""The best predictor of in-context bigrams: the probability that a symbol is a trigger, given all transitions so far.

A symbol that was followed by two different symbols is no trigger. A symbol that was followed n times, always by j, is a trigger
with output j, or it drew j n times from pi_b. A symbol that was not followed yet tells nothing. There are K triggers among N
symbols, and the probability of a set S of triggers is proportional to the product of its weights w. So

    p(S, prefix)  ~  prod_{i in S} w_i / (N - K)  prod_{i not in S} pi_b(j_i | i)^{n_i}

over the symbols i that were followed. The other symbols of S contribute their w alone. Outputs are not triggers, so S cannot hold
both i and j_i. The probability that a symbol is a trigger is the share of the sets that hold it.

The sets are not summed one by one. Draw an edge from i to j_i for each symbol that was always followed by the same symbol. Then S
is a set of K symbols of which no two are joined by an edge. No symbol has two edges of its own. So each connected part of the
graph is a tree, or a cycle with trees on it. (A symbol that was followed by itself is a cycle of one.) The sums by size of S, for
a symbol in S and for a symbol not in S, are polynomials of degree K. They are multiplied along every tree towards its root, and
around a cycle once for each state of one of its symbols.

After a symbol that may be a trigger, the prediction is its output with that probability, and pi_b with the rest. After the first
occurrence of a symbol it is pi_b alone: if the symbol is a trigger, that position is not scored. So no predictor that does not
know an instance's triggers has less loss on average over scored positions.

With `predict: outputs` a position is scored only after a trigger that has occurred before. So there its output is certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numba import njit

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_tokens
from regbench.tasks.base import Task
from regbench.tasks.bigram import BigramParameters, trigger_weights
from regbench.tasks.bigram_chain import bigrams
from regbench.utils import threads
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

_NEW, _SEVERAL = -1, -2
"""What has followed a symbol: nothing yet, or different symbols."""


@dataclass
class BigramSolver(Baseline):
    """The Bayes-optimal predictor of the task `bigram`; see the module.

    A prompt that the task cannot make is no error: if no K symbols can be its triggers, no symbol counts as a trigger. After a
    separator it predicts the first symbol of an instance.

    Raises:
        UserError: The parameters are of another task.
    """

    parameters: BigramParameters  # the parameters of the task
    in_context: bool = True  # whether it looks for triggers. If not, it predicts from the global table alone.

    only_task = "bigram"
    version = 2  # 1 doubted outputs where nothing else is scored

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, BigramParameters):
            raise UserError(f"the solver takes the parameters of the task bigram, not {type(self.parameters).__name__}")
        self.name = "solver" if self.in_context else "global bigrams"

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """The solver, and the global table alone; [] for other tasks. The solver is left out where it is not the best."""
        p = task.parameters
        if not isinstance(p, BigramParameters):
            return []
        best = p.outputs == "uniform" or p.predict == "outputs"
        return [cls(p, in_context=known) for known in (True, False) if best or not known]

    def predict(self, tokens: IntArray) -> FloatArray:
        """The distribution of every token given those before it: (B, L) -> (B, L, V)."""
        p = self.parameters
        tokens = check_tokens(tokens, p.n_symbols + 1)
        rows = np.vstack(bigrams(p.n_symbols, p.bigrams_seed))
        probs = np.zeros((*tokens.shape, p.n_symbols + 1))
        probs[:, :1, :-1] = rows[-1]
        probs[:, 1:, :-1] = rows[tokens[:, :-1]]
        if self.in_context:
            certain = p.predict == "outputs"
            threads.share(_mix_in, len(tokens), tokens, rows, trigger_weights(p), p.n_triggers, certain, probs)
        return probs


@njit(cache=True, nogil=True)
def _mix_in(begin, end, tokens, rows, weights, k, certain, probs):  # type: ignore[no-untyped-def]
    """Adds the outputs of triggers to probs (B, L, V), which hold the global predictions.

    For each symbol, `followed` (N,) holds the only symbol that has followed it, or _NEW or _SEVERAL. `odds` (N,) is the log odds
    of the prefix if the symbol is a trigger. `given` (N, 2) holds the probabilities that it is none and that it is one, from its
    own transitions alone. Where `certain`, a symbol that may be a trigger is one.
    """
    n = len(weights)
    followed, odds, given = np.empty(n, np.int64), np.empty(n), np.empty((n, 2))
    for row in range(begin, end):
        for i in range(n):
            followed[i], odds[i] = _NEW, np.log(weights[i]) if weights[i] > 0.0 else -np.inf
            _set_given(odds[i], given[i])
        for t in range(1, tokens.shape[1]):
            last, token = tokens[row, t - 1], tokens[row, t]
            if last == n:
                continue
            if followed[last] >= 0 and given[last, 1] > 0.0:
                share = _share(last, followed, given, k)
                if certain and share > 0.0:
                    share = 1.0
                for v in range(n):
                    probs[row, t, v] *= 1.0 - share
                probs[row, t, followed[last]] += share
            if token == n:
                continue
            if followed[last] == _NEW:
                followed[last] = token
                odds[last] -= np.log(n - k) + _log(rows[last, token])
            elif followed[last] == token:
                odds[last] -= _log(rows[last, token])
            else:
                followed[last], odds[last] = _SEVERAL, -np.inf
            _set_given(odds[last], given[last])


@njit(cache=True)
def _log(x):  # type: ignore[no-untyped-def]
    """The logarithm; of zero a large negative number."""
    return np.log(max(x, 1e-300))


@njit(cache=True)
def _set_given(odds, given):  # type: ignore[no-untyped-def]
    """Fills given (2,) with both probabilities from their log odds. The smaller one loses no digits."""
    small = np.exp(-abs(odds))
    less, more = small / (1.0 + small), 1.0 / (1.0 + small)
    given[0], given[1] = (less, more) if odds > 0.0 else (more, less)


@njit(cache=True)
def _share(symbol, followed, given, k):  # type: ignore[no-untyped-def]
    """The probability that `symbol` is a trigger; 0 if no set of k symbols agrees with the prefix."""
    without, with_it = given[symbol, 0], given[symbol, 1]
    given[symbol, 1] = 0.0
    sets_without = _sum_of_sets(followed, given, k)
    given[symbol, 0], given[symbol, 1] = 0.0, with_it
    sets_with = _sum_of_sets(followed, given, k)
    given[symbol, 0] = without
    total = sets_with + sets_without
    return sets_with / total if total > 0.0 else 0.0


@njit(cache=True)
def _sum_of_sets(followed, given, k):  # type: ignore[no-untyped-def]
    """The sum over all sets of k symbols, no two joined by an edge, of the product of what is given for every symbol."""
    n = len(given)
    held = np.zeros((n, 2, k + 1))  # sums by size over a symbol's tree, the symbol itself not in the set, or in it
    edges = np.zeros(n, np.int64)  # edges to a symbol from trees that are not summed yet
    whole, both = np.zeros(k + 1), np.empty(k + 1)
    whole[0] = 1.0
    for i in range(n):
        held[i, 0, 0], held[i, 1, 1] = given[i, 0], given[i, 1]
        if followed[i] >= 0:
            edges[followed[i]] += 1
    waiting, used = np.empty(n, np.int64), 0
    for i in range(n):
        if edges[i] == 0:
            waiting[used] = i
            used += 1
    done = 0
    while done < used:  # from the leaves on
        i = waiting[done]
        done += 1
        both[:] = held[i, 0] + held[i, 1]
        to = followed[i]
        if to < 0:
            _multiply(whole, both)
            continue
        _multiply(held[to, 0], both)
        _multiply(held[to, 1], held[i, 0])
        edges[to] -= 1
        if edges[to] == 0:
            waiting[used] = to
            used += 1
    for i in range(n):
        if edges[i] > 0:  # only cycles are left
            _multiply(whole, _around(i, followed, held, edges))
    return whole[k]


@njit(cache=True)
def _around(first, followed, held, edges):  # type: ignore[no-untyped-def]
    """(k + 1,): the sums by size over the cycle from `first`. Removes the edges of the cycle."""
    total = np.zeros(held.shape[2])
    for state in range(2):
        out, inside = np.zeros(held.shape[2]), np.zeros(held.shape[2])
        (inside if state else out)[:] = held[first, state]
        at = followed[first]
        while at != first:
            both = out + inside
            inside[:] = out
            out[:] = both
            _multiply(out, held[at, 0])
            _multiply(inside, held[at, 1])
            at = followed[at]
        total += out if state else out + inside
    while edges[first] > 0:
        edges[first] = 0
        first = followed[first]
    return total


@njit(cache=True)
def _multiply(polynomial, other):  # type: ignore[no-untyped-def]
    """Multiplies a polynomial by another in place, without terms beyond its degree."""
    for m in range(len(polynomial) - 1, -1, -1):
        value = 0.0
        for j in range(m + 1):
            value += polynomial[m - j] * other[j]
        polynomial[m] = value
