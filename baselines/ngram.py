"""In-context n-gram models: counts of the instance's own prefix, with back-off (ICLL section 4.3 and Appendix C.1).

At every position the model knows the prefix alone. The prefix is a list of strings. Each begins with padding, and the last one is
unfinished. So the count of a context includes occurrences that nothing follows: the current one, and the ends of earlier strings.
Their share of the probability is reserved for back-off. For example:

    a b a c | a        order 2: what follows the last a?

Here c(a) is 3, and b and c followed once each, so P(b) = P(c) = 1/3. The remaining 1/3 goes to the symbols of the instance that
never followed a, in the proportions of the shorter context. Here that is a alone.

Counts are kept in a trie of reversed contexts: a child is its parent's context with one older token before it. Every token walks
down its path, reads its prediction from the counts there, and adds itself to them. Nothing is counted twice. A context that
occurred once has no children yet. So a high order, or no bound at all, costs only as much as there are repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numba import njit

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_at_least, check_tokens, check_vocabulary
from regbench.tasks.base import Task
from regbench.utils import threads
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError, nearest

SMOOTHINGS = ("reserved", "add-one", "witten-bell", "kneser-ney")
_RESERVED, _ADD_ONE, _WITTEN_BELL, _KNESER_NEY = range(4)
_DISCOUNT = 0.75
_ROWS_AT_ONCE = 16
_TOTAL, _FIRST = 0, 1


@dataclass
class NGram(Baseline):
    """An n-gram model of the prefix, for every prefix.

    There are four smoothings, for a context h with counts c:

    - "reserved" is the paper's (Algorithm 1, Eq. 95-96): c(h v) / c(h), where c(h) also counts the occurrences of h that nothing
      follows yet. The rest backs off to the shorter context, over the symbols of the instance that have not followed h. New
      symbols get zero. If all symbols of the instance have followed h, nothing is left to back off to. The released code then
      returns a row that sums to less than one. Here the row is divided by its sum.
    - "add-one" (Laplace): (c(h v) + 1) / (sum_u c(h u) + K) over all K symbols, without back-off.
    - "witten-bell" (Witten and Bell 1991, method C; interpolated as in Chen and Goodman 1996): with T(h) distinct continuations,
      (c(h v) + T(h) P(v | shorter h)) / (sum_u c(h u) + T(h)), down to uniform over the symbols.
    - "kneser-ney" (Kneser and Ney 1995; interpolated as in Chen and Goodman 1998): absolute discount 0.75. A shorter context
      counts the distinct tokens before h v, not the occurrences of h v.

    In all of them the start of a string is part of a context once, the separator is never predicted, and symbols are equally
    likely before the first symbol.

    Raises:
        UserError: An argument is out of range, or the smoothing is unknown.
    """

    # symbols of an n-gram, one more than of its context. 1 is the unigram model. None sets no bound: back-off begins at
    # the longest context that has occurred before.
    order: int | None
    vocab_size: int  # V, the number of tokens
    separator: int  # the token that joins strings
    smoothing: str = "reserved"  # one of SMOOTHINGS

    def __post_init__(self) -> None:
        check_vocabulary(self.vocab_size, self.separator)
        if self.order is not None:
            check_at_least("order", self.order, 1)
        if self.smoothing not in SMOOTHINGS:
            raise UserError(f"unknown smoothing '{self.smoothing}'{nearest(self.smoothing, SMOOTHINGS)}")
        if self.order is None and self.smoothing == "add-one":
            raise UserError("add-one smoothing does not back off, so it needs an order")
        plain = "unigram" if self.order == 1 else f"{self.order or '∞'}-gram"
        self.name = plain if self.smoothing == "reserved" else f"{plain} {self.smoothing}"
        self.anchor = "start" if self.name == "unigram" else None

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """Orders 1, 2 and 3 with the paper's smoothing; [] where answers are not shown, as there is nothing to count."""
        if instances.answers is not None:
            return []
        return [cls(order, task.io.vocab_size, task.io.separator) for order in (1, 2, 3)]

    def predict(self, tokens: IntArray) -> FloatArray:
        """The distribution of every token given those before it: (B, L) -> (B, L, V)."""
        tokens = check_tokens(tokens, self.vocab_size)
        probs = np.zeros((*tokens.shape, self.vocab_size))
        longest = tokens.shape[1] if self.order is None else min(self.order - 1, tokens.shape[1])
        smoothing = SMOOTHINGS.index(self.smoothing)

        # Each part sets up a trie, so parts are few and large. But with few rows every thread gets its share.
        step = max(1, min(_ROWS_AT_ONCE, -(-len(tokens) // threads.available())))

        def work(first: int) -> None:
            rows = slice(first, first + step)
            _predict(tokens[rows], self.separator, longest, smoothing, probs[rows])

        threads.for_each(work, range(0, len(tokens), step))
        return probs


# --- The trie. Node 0 is the empty context. Node 1 has no counts, and ends every path. ---


@njit(cache=True, nogil=True)
def _predict(tokens: IntArray, sep: int, longest: int, smoothing: int, probs: FloatArray) -> None:
    """Fills probs (B, L, V), zero before, from contexts of at most `longest` tokens.

    A node of the trie has four arrays. `child` (V,) holds the node with each token before its context, or -1. `follows` (V,) is
    how often each symbol came next. `diverse` (V,) is after how many of its children each symbol came; of a context that is never
    extended it is how often (Kneser-Ney). `times` (2,) holds its occurrences, followed or not, and the position of the first.
    """
    n_rows, length = tokens.shape
    vocab = probs.shape[2]
    size = 2 * length + 4
    child = np.empty((size, vocab), np.int32)
    follows = np.empty((size, vocab), np.int32)
    diverse = np.empty((size, vocab), np.int32)
    times = np.empty((size, 2), np.int32)
    path = np.empty(min(longest, length) + 2, np.int32)
    for row in range(n_rows):
        for node in range(2):
            _make(node, 0, child, follows, diverse, times)
        used = 2
        n_seen = 0
        path[0] = 0
        for t in range(length):
            # Down from the empty context, one older token at a time: to the longest one, the string's start or a new node.
            depth = 0
            while depth < longest:
                node = path[depth]
                if used + 2 > size:
                    size *= 2
                    child, follows, diverse, times = _grown(child), _grown(follows), _grown(diverse), _grown(times)
                if depth > 0 and times[node, _TOTAL] == 2:  # now its first occurrence needs a child of its own
                    past = _token(tokens, row, times[node, _FIRST] - depth - 1, sep)
                    child[node, past] = used
                    _make(used, times[node, _FIRST], child, follows, diverse, times)
                    for v in range(vocab):
                        follows[used, v] = follows[node, v]
                        diverse[used, v] = diverse[node, v]
                    used += 1
                older = _token(tokens, row, t - depth - 1, sep)
                depth += 1
                path[depth] = child[node, older]
                if path[depth] < 0:
                    child[node, older] = path[depth] = used
                    _make(used, t, child, follows, diverse, times)
                    used += 1
                    break
                times[path[depth], _TOTAL] += 1
                if older == sep:
                    break
            path[depth + 1] = 1

            p = probs[row, t]
            if smoothing == _RESERVED and n_seen > 0:
                _back_off(path, depth, follows, times, n_seen, p)
            elif smoothing == _KNESER_NEY:
                _interpolate(path, depth, diverse, _DISCOUNT, sep, p)
            elif smoothing == _WITTEN_BELL:
                _interpolate(path, depth, follows, 0.0, sep, p)
            elif smoothing == _ADD_ONE:
                _add_one(follows[path[depth]], sep, p)
            else:
                _add_one(follows[1], sep, p)

            x = tokens[row, t]
            if x != sep:
                n_seen += follows[0, x] == 0
                for d in range(depth + 1):
                    follows[path[d], x] += 1
                    diverse[path[d], x] += follows[path[d + 1], x] == 0


@njit(cache=True, nogil=True)
def _token(tokens: IntArray, row: int, at: int, sep: int) -> int:
    """The token at a place. Before an instance there is a separator: the separator before a string is its padding."""
    return tokens[row, at] if at >= 0 else sep


@njit(cache=True, nogil=True)
def _make(node: int, t: int, child: IntArray, follows: IntArray, diverse: IntArray, times: IntArray) -> None:
    """Makes the node of a context that occurred once, at t, and was not followed yet."""
    for v in range(child.shape[1]):
        child[node, v] = -1
        follows[node, v] = 0
        diverse[node, v] = 0
    times[node, _TOTAL] = 1
    times[node, _FIRST] = t


@njit(cache=True, nogil=True)
def _grown(array: IntArray) -> IntArray:
    """A copy of twice the length. Its second half is not set."""
    larger = np.empty((2 * array.shape[0], array.shape[1]), array.dtype)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            larger[i, j] = array[i, j]  # a slice assignment would take seconds to compile
    return larger


# --- Smoothing: from the counts on a path to a distribution p (V,). ---


@njit(cache=True, nogil=True)
def _back_off(path: IntArray, depth: int, follows: IntArray, times: IntArray, n_seen: int, p: FloatArray) -> None:
    """Algorithm 1 from the longest context down: each context serves the symbols that followed it but no longer context.

    `mass` is the probability that longer contexts have left (beta of Eq. 95). The symbols that are still to be served have the
    share `whole` out of this context's total, so alpha (Eq. 96) is the mass over that share.
    """
    mass, served = 1.0, 0
    for d in range(depth, -1, -1):
        node, longer = path[d], path[d + 1]
        all_followed, followed, n_new = 0, 0, 0
        for v in range(len(p)):
            c = follows[node, v]
            all_followed += c
            if c > 0 and follows[longer, v] == 0:
                followed += c
                n_new += 1
        if n_new == 0:
            continue
        served += n_new
        left = times[node, _TOTAL] - all_followed if served < n_seen else 0
        whole = followed + left
        for v in range(len(p)):
            c = follows[node, v]
            if c > 0 and follows[longer, v] == 0:
                p[v] = mass * c / whole
        if left == 0:
            break
        mass *= left / whole


@njit(cache=True, nogil=True)
def _interpolate(path: IntArray, depth: int, counts: IntArray, discount: float, sep: int, p: FloatArray) -> None:
    """Interpolates from uniform up to the longest context: absolute discounting, or Witten-Bell if the discount is 0."""
    _add_one(counts[1], sep, p)
    for d in range(depth + 1):
        row = counts[path[d]]
        n, distinct = 0, 0
        for v in range(len(p)):
            n += row[v]
            distinct += row[v] > 0
        if n == 0:
            break  # longer contexts have not occurred either
        given = discount * distinct if discount > 0.0 else float(distinct)
        whole = n if discount > 0.0 else n + distinct
        for v in range(len(p)):
            p[v] = (max(row[v] - discount, 0.0) + given * p[v]) / whole


@njit(cache=True, nogil=True)
def _add_one(counts: IntArray, sep: int, p: FloatArray) -> None:
    """Laplace's rule over the symbols; uniform without counts."""
    n = len(p) - 1
    for v in range(len(p)):
        n += counts[v]
    for v in range(len(p)):
        p[v] = 0.0 if v == sep else (counts[v] + 1) / n
