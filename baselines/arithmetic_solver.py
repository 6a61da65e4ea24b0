"""The best predictor of in-context arithmetic: the next digit under all coefficients that agree with the prompt.

A task has hidden coefficients (a, b). Each example of numbers A and B tells between which integers a A + b B lies: the answer
+00035 tells 35 <= a A + b B < 36, -00028 tells -29 < a A + b B <= -28, and +00000 tells -1 < a A + b B < 1. So the pairs (a, b)
that agree with the prompt fill a convex polygon: the rectangle from which they are drawn, cut by two parallel lines for each
example. Coefficients are uniform over the rectangle, so they are uniform over the polygon. Each next digit cuts a strip from the
polygon, and its probability is the strip's share of the area. The same holds for a sign. When the digit is known, its strip is
the new polygon. Areas are exact up to rounding. No predictor that knows the rectangle, but not a and b, is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numba import njit

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_tokens
from regbench.tasks.arithmetic import END, EQUALS, MINUS, PLUS, SEPARATOR, TIMES, ArithmeticParameters
from regbench.tasks.base import Task
from regbench.utils import threads
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

_VOCAB = SEPARATOR + 1


@dataclass
class ArithmeticSolver(Baseline):
    """The Bayes-optimal predictor of the task `arithmetic`; see the module.

    The digits of A and B cannot be predicted: all are equally likely. All other tokens follow from their place. A prompt that the
    task cannot make is no error: an example that agrees with no (a, b) that is left is ignored.

    Raises:
        UserError: They are of another task.
    """

    parameters: ArithmeticParameters  # the parameters of the task

    only_task = "arithmetic"
    name = "solver"

    def __post_init__(self) -> None:
        given: object = self.parameters
        if not isinstance(given, ArithmeticParameters):
            raise UserError(f"the solver takes the parameters of the task arithmetic, not {type(given).__name__}")

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """The solver with the task's parameters; [] for other tasks."""
        return [cls(task.parameters)] if isinstance(task.parameters, ArithmeticParameters) else []

    def predict(self, tokens: IntArray) -> FloatArray:
        """The distribution of every token given those before it: (B, L) -> (B, L, V)."""
        tokens = check_tokens(tokens, _VOCAB)
        p = self.parameters
        probs = np.zeros((*tokens.shape, _VOCAB))
        corners = np.array([[p.min_a, p.min_b], [p.max_a, p.min_b], [p.max_a, p.max_b], [p.min_a, p.max_b]])
        threads.share(_predict, len(tokens), tokens, corners, p.n_examples, p.n_digits, probs)
        return probs


@njit(cache=True, nogil=True)
def _predict(begin, end, tokens, corners, n_examples, n_digits, probs):  # type: ignore[no-untyped-def]
    """Fills probs (B, L, V), zero before.

    There are four polygons (vertices, 2), each with its size: `task` agrees with the examples so far, `answer` with the answer so
    far, `piece` with one continuation of it, and `work` is scratch.
    """
    room = len(corners) + 2 * n_examples * (n_digits + 3) + 2  # a cut adds at most one vertex
    task, answer = np.empty((room, 2)), np.empty((room, 2))
    piece, work = np.empty((room, 2)), np.empty((room, 2))
    n_answer = n_digits + 2
    example_length = 2 * n_digits + n_answer + 4
    task_length = n_examples * example_length + 1
    for row in range(begin, end):
        size_task = size_answer = 0
        first = second = magnitude = 0
        negative, agrees = False, True
        for t in range(tokens.shape[1]):
            at, token = t % task_length, tokens[row, t]
            place = at % example_length
            p = probs[row, t]
            if at == 0:
                size_task = _copy(corners, len(corners), task)
            if at == task_length - 1:
                p[SEPARATOR] = 1.0
                continue
            if place == 0:
                first = second = magnitude = 0
                agrees = True
                size_answer = _copy(task, size_task, answer)
            if place < n_digits:
                p[:10] = 0.1
                first = 10 * first + token
                agrees = agrees and token < 10
            elif place == n_digits:
                p[TIMES] = 1.0
            elif place <= 2 * n_digits:
                p[:10] = 0.1
                second = 10 * second + token
                agrees = agrees and token < 10
            elif place == 2 * n_digits + 1:
                p[EQUALS] = 1.0
            elif place == example_length - 1:
                p[END] = 1.0
                if agrees:
                    size_task = _copy(answer, size_answer, task)
            else:
                left = example_length - 2 - place  # digits after this token
                is_sign = left == n_answer
                unit = 10**left
                total, chosen = 0.0, 0.0
                for v in range(PLUS, MINUS + 1) if is_sign else range(10):
                    if not agrees:
                        break
                    minus = v == MINUS if is_sign else negative
                    low = 0 if is_sign else (10 * magnitude + v) * unit
                    size = _strip(answer, size_answer, first, second, minus, low, low + unit, piece, work)
                    p[v] = _area(piece, size)
                    total += p[v]
                    if v == token:
                        chosen = p[v]
                if total > 0.0:
                    p /= total
                elif is_sign:
                    p[PLUS] = p[MINUS] = 0.5
                else:
                    p[:10] = 0.1
                agrees = agrees and chosen > 0.0
                if is_sign:
                    negative = token == MINUS
                else:
                    magnitude = 10 * magnitude + token
                if agrees:
                    low = magnitude * unit
                    size = _strip(answer, size_answer, first, second, negative, low, low + unit, piece, work)
                    size_answer = _copy(piece, size, answer)


@njit(cache=True)
def _strip(polygon, size, first, second, minus, low, high, out, work):  # type: ignore[no-untyped-def]
    """Writes to `out` the part of a polygon where the answer has this sign and a magnitude in [low, high). Returns its size."""
    if minus:
        size = _cut(polygon, size, -first, -second, float(max(low, 1)), work)
        return _cut(work, size, first, second, -float(high), out)
    size = _cut(polygon, size, first, second, float(low) if low > 0 else -1.0, work)
    return _cut(work, size, -first, -second, -float(high), out)


@njit(cache=True)
def _cut(polygon, size, u, v, bound, out):  # type: ignore[no-untyped-def]
    """Writes to `out` the part of a convex polygon (size, 2) where u a + v b >= bound. Returns its size."""
    kept = 0
    for k in range(size):
        m = k + 1 if k + 1 < size else 0
        here = u * polygon[k, 0] + v * polygon[k, 1] - bound
        there = u * polygon[m, 0] + v * polygon[m, 1] - bound
        if here >= 0.0:
            out[kept, 0], out[kept, 1] = polygon[k, 0], polygon[k, 1]
            kept += 1
        if (here > 0.0 and there < 0.0) or (here < 0.0 and there > 0.0):
            share = here / (here - there)
            for c in range(2):
                out[kept, c] = polygon[k, c] + share * (polygon[m, c] - polygon[k, c])
            kept += 1
    return kept


@njit(cache=True)
def _area(polygon, size):  # type: ignore[no-untyped-def]
    """The area of a convex polygon (size, 2), counter-clockwise.

    Coordinates are relative to its first vertex, so that small polygons lose no digits.
    """
    twice = 0.0
    for k in range(1, size - 1):
        x, y = polygon[k, 0] - polygon[0, 0], polygon[k, 1] - polygon[0, 1]
        twice += x * (polygon[k + 1, 1] - polygon[0, 1]) - y * (polygon[k + 1, 0] - polygon[0, 0])
    return 0.5 * max(twice, 0.0)


@njit(cache=True)
def _copy(polygon, size, out):  # type: ignore[no-untyped-def]
    """Copies a polygon to `out`. Returns its size."""
    for k in range(size):
        out[k, 0], out[k, 1] = polygon[k, 0], polygon[k, 1]
    return size
