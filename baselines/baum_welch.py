"""In-context Baum-Welch: a hidden Markov model fitted anew at every position (ICLL section 4.3 and Algorithm 2).

A probabilistic automaton with states S_0..S_{S-1} is a hidden Markov model whose states are the automaton's edges (S_i, S_j),
each of which emits one symbol (Appendix C.2). Two masks hold what is known beforehand: (S_i, S_j) with i != j leads only to
(S_j, S_m) with m != j (C.3), and a string begins in some (S_0, S_j) (C.4). So the transitions are an array (S, S, S), not
(S^2, S^2):

    A[i, j, m]   probability of (S_j, S_m) after (S_i, S_j)
    B[k, i, j]   probability that (S_i, S_j) emits symbol k
    pi[i, j]     probability that a string begins in (S_i, S_j)

Steps of EM multiply, so what a mask sets to zero stays exactly zero. Nothing is smoothed. After one step, a state that a string
can have visited emits no symbol that the prefix lacks. A state that no string can have visited keeps its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_at_least, check_tokens, check_vocabulary, longest_first
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.threads import for_each

_WARM = 0.9


@dataclass(frozen=True)
class Fit:
    """A fitted model; see the module."""

    A: NDArray[np.float64]  # (S, S, S) transitions
    B: NDArray[np.float64]  # (V, S, S) emissions
    pi: NDArray[np.float64]  # (S, S) starts
    # (iterations + 1,) the log likelihood of all strings in nats after each step of EM. It never decreases.
    log_likelihood: NDArray[np.float64]


@dataclass
class BaumWelch(Baseline):
    """Expectation maximisation over the strings of each prefix, then the forward algorithm over the unfinished string.

    Symbols are equally likely if the prefix has none.

    Raises:
        UserError: An argument is out of range.
    """

    n_states: int  # S, the states of the automaton. The hidden Markov model has S (S - 1) states.
    vocab_size: int  # V, the number of tokens
    separator: int  # the token that joins strings
    # steps of EM at every prefix. All prefixes have the same start, so no prediction depends on the one before.
    iterations: int = 10
    # the seed of the random start. All instances share it, so no prediction depends on the rest of the batch.
    seed: int = 0
    restarts: int = 1  # the number of random starts. Every prefix keeps its likeliest fit.
    # start from 9 parts of the previous prefix's fit and 1 part of the random start. The latter lets in symbols that
    # the previous prefix lacked.
    warm_start: bool = False

    name = "Baum-Welch"
    slow = True

    def __post_init__(self) -> None:
        check_vocabulary(self.vocab_size, self.separator)
        for name, least in (("n_states", 2), ("iterations", 1), ("seed", 0), ("restarts", 1)):
            check_at_least(name, getattr(self, name), least)

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """One with the task's most states; [] for tasks without states."""
        n_states = getattr(task.parameters, "max_states", None)
        return [] if n_states is None else [cls(n_states, task.io.vocab_size, task.io.separator)]

    def predict(self, tokens: IntArray) -> FloatArray:
        """The distribution of every token given those before it: (B, L) -> (B, L, V)."""
        tokens = check_tokens(tokens, self.vocab_size)
        probs = np.empty((*tokens.shape, self.vocab_size))
        start = self._start()

        def work(row: int) -> None:
            _predict(tokens[row], self.separator, self.iterations, self.warm_start, *start, probs[row])

        for_each(work, longest_first(tokens, self.separator))
        return probs

    def fit(self, tokens: IntArray) -> Fit:
        """Fits the model to the strings of tokens (L,). Returns the likeliest fit of all restarts."""
        tokens = check_tokens(np.asarray(tokens)[None], self.vocab_size)[0]
        fits = []
        for A, B, pi in zip(*self._start(), strict=True):
            log_likelihood = np.zeros(self.iterations + 1)
            alpha, scale, counts = _buffers(len(tokens), self.vocab_size, self.n_states)
            _em(tokens, len(tokens), self.separator, A, B, pi, alpha, scale, counts, log_likelihood)
            fits.append(Fit(A, B, pi, log_likelihood))
        return max(fits, key=lambda fit: fit.log_likelihood[-1])

    def _start(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Random A (R, S, S, S), B (R, V, S, S) and pi (R, S, S) with masks. The first start is the same for any R."""
        R, S, V = self.restarts, self.n_states, self.vocab_size
        rng = np.random.default_rng(self.seed)
        # In (0, 1], so that only the masks make zeros.
        draws = 1.0 - rng.random((R, S**3 + V * S**2))
        edge = 1.0 - np.eye(S)
        A = draws[:, : S**3].reshape(R, S, S, S) * edge * edge[:, :, None]
        B = draws[:, S**3 :].reshape(R, V, S, S) * edge
        B[:, self.separator] = 0.0
        pi = np.zeros((R, S, S))
        pi[:, 0, 1:] = 1.0
        return _over_sum(A, -1), _over_sum(B, 1), _over_sum(pi, -1)


def _over_sum(array: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Distributions along `axis`; zeros alone stay zeros."""
    total = array.sum(axis, keepdims=True)
    return np.divide(array, total, out=np.zeros_like(array), where=total > 0)


# --- Kernels: S^3 work for a token, over arrays that fit into the first-level cache.


@njit(cache=True, nogil=True, error_model="numpy")
def _predict(
    tokens: IntArray,
    sep: int,
    iterations: int,
    warm: bool,
    A0: FloatArray,
    B0: FloatArray,
    pi0: FloatArray,
    probs: FloatArray,
) -> None:
    """Fills probs (L, V) for tokens (L,), from the starts A0 (R, S, S, S), B0 (R, V, S, S), pi0 (R, S, S)."""
    length = len(tokens)
    n_starts, n_tokens, S = B0.shape[:3]
    A, B, pi = A0.copy(), B0.copy(), pi0.copy()
    alpha, scale, counts = _buffers(length, n_tokens, S)
    log_likelihood = np.empty(iterations + 1)
    begin, best, empty = 0, 0, True
    for t in range(length):
        if t > 0 and tokens[t - 1] == sep:
            begin = t  # no string is longer than at t - 1, so the fit is the same
        elif t > 0:
            empty = False
            highest = -np.inf
            for r in range(n_starts):
                kept = _WARM if warm and t > 1 else 0.0
                _start_from(A[r], A0[r], kept)
                _start_from(B[r], B0[r], kept)
                _start_from(pi[r], pi0[r], kept)
                _em(tokens, t, sep, A[r], B[r], pi[r], alpha, scale, counts, log_likelihood)
                if log_likelihood[-1] > highest:
                    best, highest = r, log_likelihood[-1]
        if not empty:
            _forward(tokens, begin, t, sep, A[best], B[best], pi[best], alpha, scale)
        if empty or not _next_symbol(alpha, begin, t, A[best], B[best], pi[best], probs[t]):
            for k in range(n_tokens):
                probs[t, k] = 0.0 if k == sep else 1.0 / (n_tokens - 1)


@njit(cache=True, nogil=True, error_model="numpy")
def _buffers(length: int, n_tokens: int, S: int) -> tuple[FloatArray, FloatArray, tuple[FloatArray, ...]]:
    """The arrays alpha (L, S, S) and scale (L,) of _forward, and _expect's A_count, B_count, pi_count, beta and ahead."""
    counts = np.zeros((S, S, S)), np.zeros((n_tokens, S, S)), np.zeros((S, S)), np.zeros((S, S)), np.zeros((S, S))
    return np.zeros((length, S, S)), np.zeros(length), counts


@njit(cache=True, nogil=True, error_model="numpy")
def _start_from(now: FloatArray, start: FloatArray, kept: float) -> None:
    """Mixes in place: a share `kept` of the last fit, and the rest of the start."""
    x, x0 = now.reshape(-1), start.reshape(-1)
    for n in range(len(x)):
        x[n] = kept * x[n] + (1.0 - kept) * x0[n]


@njit(cache=True, nogil=True, error_model="numpy")
def _em(
    tokens: IntArray,
    end: int,
    sep: int,
    A: FloatArray,
    B: FloatArray,
    pi: FloatArray,
    alpha: FloatArray,
    scale: FloatArray,
    counts: tuple[FloatArray, ...],
    log_likelihood: FloatArray,
) -> None:
    """Fits A, B and pi in place to the strings of tokens[:end]. The steps fill log_likelihood (steps + 1,)."""
    log_likelihood[0] = _forward(tokens, 0, end, sep, A, B, pi, alpha, scale)
    for step in range(1, len(log_likelihood)):
        _expect(tokens, end, sep, A, B, alpha, scale, counts)
        _maximise(counts, A, B, pi)
        log_likelihood[step] = _forward(tokens, 0, end, sep, A, B, pi, alpha, scale)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _forward(
    tokens: IntArray,
    begin: int,
    end: int,
    sep: int,
    A: FloatArray,
    B: FloatArray,
    pi: FloatArray,
    alpha: FloatArray,
    scale: FloatArray,
) -> float:
    """The scaled forward pass over tokens[begin:end]. Returns the log likelihood of its strings, in nats.

    alpha[t, i, j] is P(q_t = (S_i, S_j) | its string up to t), and scale[t] is P(token t | its string before t).
    """
    S = len(pi)
    log_likelihood = 0.0
    for t in range(begin, end):
        k = tokens[t]
        if k == sep:
            continue
        now, total = alpha[t], 0.0
        if t == begin or tokens[t - 1] == sep:
            for i in range(S):
                for j in range(S):
                    now[i, j] = pi[i, j] * B[k, i, j]
                    total += now[i, j]
        else:
            now[:] = 0.0
            for i in range(S):
                for j in range(S):
                    a = alpha[t - 1, i, j]
                    if a > 0.0:
                        for m in range(S):
                            now[j, m] += a * A[i, j, m]
            for j in range(S):
                for m in range(S):
                    now[j, m] *= B[k, j, m]
                    total += now[j, m]
        scale[t] = total
        for i in range(S):
            for j in range(S):
                now[i, j] /= total
        log_likelihood += np.log(total)
    return log_likelihood


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _expect(
    tokens: IntArray,
    end: int,
    sep: int,
    A: FloatArray,
    B: FloatArray,
    alpha: FloatArray,
    scale: FloatArray,
    counts: tuple[FloatArray, ...],
) -> None:
    """The backward pass and the expected counts. Those of transitions still lack the factor A.

    beta[i, j] is scaled so that alpha * beta is gamma. ahead[j, m] is B * beta / scale of the next token, so beta is A ahead.
    """
    A_count, B_count, pi_count, beta, ahead = counts
    S = len(beta)
    A_count[:] = 0.0
    B_count[:] = 0.0
    pi_count[:] = 0.0
    for t in range(end - 1, -1, -1):
        k = tokens[t]
        if k == sep:
            continue
        if t == end - 1 or tokens[t + 1] == sep:
            beta[:] = 1.0
        else:
            for i in range(S):
                for j in range(S):
                    a, x = alpha[t, i, j], 0.0
                    if a > 0.0:
                        for m in range(S):
                            x += A[i, j, m] * ahead[j, m]
                            A_count[i, j, m] += a * ahead[j, m]
                    beta[i, j] = x  # used only where alpha is above 0
        first = t == 0 or tokens[t - 1] == sep
        for i in range(S):
            for j in range(S):
                gamma = alpha[t, i, j] * beta[i, j]
                B_count[k, i, j] += gamma
                if first:
                    pi_count[i, j] += gamma
                ahead[i, j] = B[k, i, j] * beta[i, j] / scale[t]


@njit(cache=True, nogil=True, error_model="numpy")
def _maximise(counts: tuple[FloatArray, ...], A: FloatArray, B: FloatArray, pi: FloatArray) -> None:
    """Divides each row of counts by its sum. A row without counts changes nothing."""
    A_count, B_count, pi_count, _, _ = counts
    n_tokens, S = B.shape[:2]
    strings = pi_count.sum()
    for i in range(S):
        for j in range(S):
            out = 0.0
            for m in range(S):
                A_count[i, j, m] *= A[i, j, m]
                out += A_count[i, j, m]
            if out > 0.0:
                for m in range(S):
                    A[i, j, m] = A_count[i, j, m] / out
            visits = 0.0
            for k in range(n_tokens):
                visits += B_count[k, i, j]
            if visits > 0.0:
                for k in range(n_tokens):
                    B[k, i, j] = B_count[k, i, j] / visits
            if strings > 0.0:
                pi[i, j] = pi_count[i, j] / strings


@njit(cache=True, nogil=True, error_model="numpy")
def _next_symbol(
    alpha: FloatArray,
    begin: int,
    end: int,
    A: FloatArray,
    B: FloatArray,
    pi: FloatArray,
    p: FloatArray,
) -> bool:
    """Fills p (V,) with the distribution of the next symbol of the unfinished string at [begin, end).

    The last alpha of the string is given. Returns False if p is no distribution, because the string's probability underflowed.
    """
    S = len(pi)
    p[:] = 0.0
    for j in range(S):
        for m in range(S):
            state = pi[j, m]
            if end > begin:
                state = 0.0
                for i in range(S):
                    state += alpha[end - 1, i, j] * A[i, j, m]
            for k in range(len(p)):
                p[k] += state * B[k, j, m]
    total = p.sum()
    if not total > 0.0:
        return False
    for k in range(len(p)):
        p[k] /= total
    return True
