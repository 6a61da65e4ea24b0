"""In-context arithmetic: answers are a linear combination of two numbers, with hidden coefficients (CGT section 4.1).

An instance is a few tasks. Each task has its own coefficients, real numbers a and b. A task is a few examples: two integers and
their linear combination, written in digits. With two tasks of two examples, (a, b) = (1, 1) and then (0.5, -1.5):

    012*023=+00035|100*007=+00107|#012*023=-00028|100*007=+00039|#

Here 1 * 12 + 1 * 23 = 35, and 0.5 * 12 - 1.5 * 23 = -28.5. The fraction is cut off. A predictor that learns in context improves
from example to example: two answers determine a and b, except for the fractions that were cut off.

The answers are scored, sign and digits. The truth knows a and b, so it is certain of every digit. No predictor knows them:
`baselines/arithmetic_solver.py` computes how much can be known. The task is from *Contextually Guided Transformers via Low-Rank
Adaptation* (Zhmoginov, Lee, Vladymyrov, Sandler 2025, arXiv:2506.05672), here CGT. The paper's text says that answers are
truncated. A footnote of an earlier version says floor, which would give -00029 for the -28.5 of its own example above. Zero is
written with +. The paper does not say whether its generator can make -00000.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, stream, unit
from regbench.tasks import base as task
from regbench.tasks._drawn import CertainTask
from regbench.utils import threads
from regbench.utils.arrays import IntArray

TIMES, EQUALS, PLUS, MINUS, END, SEPARATOR = range(10, 16)
"""The tokens * = + -, the end of an example (|) and the end of a task (#). The token of a digit is its value."""

_EXAMPLES = 3  # the stream's purpose


class ArithmeticParameters(task.Parameters):
    """The parameters of `arithmetic`. The defaults are the paper's."""

    n_tasks: int = pydantic.Field(default=4, ge=1, le=64)  # tasks in an instance
    n_examples: int = pydantic.Field(default=4, ge=2, le=64)  # examples in a task
    n_digits: int = pydantic.Field(default=3, ge=1, le=6)  # digits of each of the two numbers
    min_a: float = 0.0  # coefficient a is uniform over [min_a, max_a)
    max_a: float = 10.0  # see min_a
    min_b: float = -9.0  # coefficient b is uniform over [min_b, max_b)
    max_b: float = 10.0  # see min_b

    @pydantic.model_validator(mode="after")
    def _answers_fit(self) -> Self:
        for name in ("a", "b"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low >= high:
                raise ValueError(f"min_{name} ({low:g}) is not below max_{name} ({high:g})")
        largest = max(abs(self.min_a), abs(self.max_a)) + max(abs(self.min_b), abs(self.max_b))
        if largest > 100.0:
            raise ValueError(f"coefficients that add up to {largest:g} give answers of more than n_digits + 2 digits")
        return self

    @property
    def answer_length(self) -> int:
        """The tokens of an answer: its sign and n_digits + 2 digits."""
        return self.n_digits + 3

    @property
    def answer_start(self) -> int:
        """The place in an example where its answer begins: after two numbers, * and =."""
        return 2 * self.n_digits + 2

    @property
    def example_length(self) -> int:
        """The tokens of an example, with the | at its end."""
        return self.answer_start + self.answer_length + 1

    @property
    def task_length(self) -> int:
        """The tokens of a task, with the # at its end."""
        return self.n_examples * self.example_length + 1


class Arithmetic(CertainTask):
    """Linear combinations of two numbers with hidden coefficients; see the module."""

    Parameters = ArithmeticParameters
    version = 1
    main_score = "last_two_accuracy"
    scores = ("last_two_accuracy", "token_accuracy", "nll")
    group_scores: ClassVar[dict[str, tuple[str, ...]]] = {
        "last_two_accuracy": (
            "token_accuracy",
            "last_two",
            "accuracy, last two",
            "Token accuracy in the answers of the last two examples of each task (CGT Table 1).",
        )
    }
    progress_label = "examples of the task before"
    parameters: ArithmeticParameters

    @property
    def io(self) -> task.TokenIO:
        """Ten digits and * = + - | #. The # is the separator."""
        p = self.parameters
        return task.TokenIO.of("0123456789*=+-|#", p.n_tasks * p.task_length)

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. Each has its own coefficients, so no split shares them with another."""
        p, n = self.parameters, splits.size(split)
        coefficients = np.empty((n, p.n_tasks, 2))
        tokens = np.empty((n, self.io.max_length), np.uint8)
        ranges = np.array([[p.min_a, p.max_a], [p.min_b, p.max_b]])
        threads.share(
            _sample, n, splits.seed, splits.first(split), p.n_examples, p.n_digits, ranges, coefficients, tokens
        )
        scored = np.tile(self._slots()[1], (n, 1))
        return Instances.unpadded(tokens, scored, f"arithmetic/{self.version}", {"coefficients": coefficients})

    def _slots(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """For every position: the number of its example in its task (L,), and whether it is part of an answer (L,)."""
        p = self.parameters
        at = np.arange(self.io.max_length) % p.task_length
        example, place = np.minimum(at // p.example_length, p.n_examples - 1), at % p.example_length
        last = at == p.task_length - 1
        return example, (place >= p.answer_start) & (place < p.answer_start + p.answer_length) & ~last

    def identities(self, instances: Instances) -> list[bytes]:
        """The coefficients of each instance."""
        return [pairs.tobytes() for pairs in instances.truth["coefficients"]]

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`last_two`: the last two examples of each task, as in CGT Table 1."""
        late = self._slots()[0] >= self.parameters.n_examples - 2
        return {"last_two": np.broadcast_to(late[: instances.tokens.shape[1]], instances.tokens.shape)}

    def progress(self, instances: Instances) -> IntArray:
        """The number of examples of the same task before a position's own."""
        return np.broadcast_to(self._slots()[0][: instances.tokens.shape[1]], instances.tokens.shape)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds the mean coefficients and the share of answers that are negative."""
        a, b = np.moveaxis(instances.truth["coefficients"], -1, 0)
        signs = instances.tokens[(instances.tokens == PLUS) | (instances.tokens == MINUS)]
        return super().statistics(instances) | {
            "mean_a": float(a.mean()),
            "mean_b": float(b.mean()),
            "negative_answers": float((signs == MINUS).mean()),
        }

    def show(self, instances: Instances, index: int) -> str:
        """The coefficients of each task, and its examples."""
        text, length = "".join(np.array(self.io.names)[instances.tokens[index]]), self.parameters.task_length
        pairs = instances.truth["coefficients"][index]
        return "\n".join(
            f"a {a:.4f}  b {b:.4f}  {text[i * length : (i + 1) * length]}" for i, (a, b) in enumerate(pairs)
        )


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, start, n_examples, n_digits, ranges, coefficients, tokens):  # type: ignore[no-untyped-def]
    """Fills coefficients (N, tasks, 2) and tokens (N, L). Instance n is number start + n of the seed's stream."""
    below_10_to_the_digits = 10**n_digits
    for n in range(begin, end):
        rng = stream(seed, _EXAMPLES, start + n)
        at = 0
        for i in range(coefficients.shape[1]):
            for c in range(2):
                coefficients[n, i, c] = ranges[c, 0] + unit(rng) * (ranges[c, 1] - ranges[c, 0])
            for _ in range(n_examples):
                first, second = below(rng, below_10_to_the_digits), below(rng, below_10_to_the_digits)
                value = coefficients[n, i, 0] * first + coefficients[n, i, 1] * second
                magnitude = np.int64(np.floor(abs(value)))
                at = _write(first, n_digits, tokens[n], at)
                tokens[n, at] = TIMES
                at = _write(second, n_digits, tokens[n], at + 1)
                tokens[n, at] = EQUALS
                tokens[n, at + 1] = MINUS if value < 0.0 and magnitude > 0 else PLUS
                at = _write(magnitude, n_digits + 2, tokens[n], at + 2)
                tokens[n, at] = END
                at += 1
            tokens[n, at] = SEPARATOR
            at += 1


@njit(cache=True)
def _write(number, digits, row, at):  # type: ignore[no-untyped-def]
    """Writes a number with leading zeros into row[at:]. Returns the place after it."""
    for k in range(digits - 1, -1, -1):
        row[at + k] = number % 10
        number //= 10
    return at + digits
