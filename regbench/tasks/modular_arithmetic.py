"""Modular arithmetic by the number of terms: expressions whose value is asked for again and again, and never shown.

Numbers are 0 to m - 1, m being the modulus, and are added, subtracted and multiplied. A blank stands in the place of each answer,
so a predictor has to keep what it has computed. Without brackets the value of all so far is asked for behind each number;
multiplication comes first. With brackets the value of each bracket is asked for behind its end. With a modulus of 5:

    3 ? * 4 ? + 1 ? - 2 ?            the answers are 3, 2, 3, 1
    ( 3 - ( 4 * 4 ) ? ) ?            the answers are 1, 2

A size is a number of numbers: all so far, or those of the bracket. The tasks are those of *Neural Networks and the Chomsky
Hierarchy* (Delétang et al. 2022, arXiv:2207.02098, Table 1), which ask for the last value alone. Without brackets a finite
automaton suffices; with brackets a stack is needed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, stream
from regbench.tasks import base as task
from regbench.tasks._reach import DrawnReachTask, ReachParameters, Size, Sizes
from regbench.utils import threads
from regbench.utils.arrays import FloatArray, IntArray

_TERMS = 25  # the stream's purpose
_OPERATORS = 3  # plus, minus, times
# On the stack of what is still to be written. A positive number is an expression of so many numbers.
_END, _OPERATOR = -1, 0


class ModularArithmeticParameters(ReachParameters):
    """The parameters of `modular_arithmetic`; a size is a number of numbers."""

    sizes: Sizes = (2, 4, 8, 16)
    beyond: tuple[Size, ...] = (32, 64)
    modulus: int = pydantic.Field(default=5, ge=2, le=100)  # the numbers are 0 to this, without it
    brackets: bool = False  # whether every operation of two parts stands in brackets

    @pydantic.model_validator(mode="after")
    def _sizes_can_be_had(self) -> Self:
        if self.brackets and self.sizes[0] < 2:
            raise ValueError("a bracket has at least 2 numbers, so the smallest size is 2")
        if self.shares and not self.brackets:
            raise ValueError("an expression without brackets has every size up to its length, so there are no shares")
        return self


class ModularArithmetic(DrawnReachTask):
    """Expressions whose values are asked for; see the module."""

    Parameters = ModularArithmeticParameters
    version = 1
    progress_label = "numbers"
    hides = True
    parameters: ModularArithmeticParameters

    @cached_property
    def io(self) -> task.TokenIO:
        """The numbers, the operators + - *, the brackets, the blank and the separator."""
        p = self.parameters
        names = (*map(str, range(p.modulus)), *"+-*()?|")
        longest = p.tested[-1]
        return task.TokenIO.of(names, 6 * longest - 5 if p.brackets else 3 * longest - 1)

    def _kinds(self, split: str) -> list[tuple[int, int]]:
        """With brackets sizes. Without, the largest size of the split: each expression has every smaller size in it."""
        p = self.parameters
        if p.brackets:
            return super()._kinds(split)
        return [((p.tested if split == "test" else p.sizes)[-1], 1)]

    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        p = self.parameters
        length = 6 * kind - 5 if p.brackets else 3 * kind - 1
        return self._filled(n, length, _fill_brackets if p.brackets else _fill_line, seed, start, kind, p.modulus)

    def _count(self, instances: Instances) -> IntArray:
        """The number of numbers that each answer is of, (N, L); 0 where nothing is scored."""
        counts = np.zeros(instances.tokens.shape, np.int64)
        tokens = np.ascontiguousarray(instances.tokens, np.int64)
        threads.share(_count, len(tokens), tokens, instances.scored, self.parameters.modulus, counts)
        return counts

    def progress(self, instances: Instances) -> IntArray:
        """The smallest size that is not below the number of numbers; -1 where nothing is scored."""
        return self._smallest_size(self._count(instances), instances)

    @cached_property
    def _most_likely(self) -> FloatArray:
        """How likely the most likely value of so many numbers is, if none of them was read; by the number, from 0."""
        p = self.parameters
        return (_likely_brackets if p.brackets else _likely_line)(p.tested[-1], p.modulus).max(1)

    def chance(self, instances: Instances) -> FloatArray:
        """The most likely value of so many numbers. Products make 0 more likely than others."""
        return self._most_likely[self._count(instances)]


def _likely_line(longest: int, m: int) -> FloatArray:
    """(longest + 1, m): how likely each value of n numbers without brackets is."""
    found = np.full((longest + 1, m), 1.0 / m)
    state = np.zeros((m, m))  # the sum before the last product, and this product
    state[0] = 1.0 / m
    total = (np.arange(m)[:, None] + np.arange(m)) % m
    for n in range(2, longest + 1):
        after = np.zeros((m, m))
        for product in range(m):
            for number in range(m):
                share = state[:, product] / m / _OPERATORS
                after[:, product * number % m] += share
                for term in (number, -number % m):
                    after[total[:, product], term] += share  # a sum has one place for each sum before
        state = after
        found[n] = np.bincount(total.ravel(), state.ravel(), m)
    return found


def _likely_brackets(longest: int, m: int) -> FloatArray:
    """(longest + 1, m): how likely each value of a bracket with n numbers is."""
    found = np.full((longest + 1, m), 1.0 / m)
    left, right = np.arange(m)[:, None], np.arange(m)
    values = np.stack([(left + right) % m, (left - right) % m, left * right % m])
    for n in range(2, longest + 1):
        pairs = sum(np.outer(found[k], found[n - k]) for k in range(1, n)) / (n - 1)
        found[n] = np.bincount(values.ravel(), np.broadcast_to(pairs, values.shape).ravel(), m) / _OPERATORS
    return found


@njit(cache=True)
def _apply(operator, left, right, m):  # type: ignore[no-untyped-def]
    """The value of `left operator right`; 0 is plus, 1 minus, 2 times."""
    return (left + right if operator == 0 else left - right if operator == 1 else left * right) % m


@njit(cache=True, nogil=True)
def _fill_line(begin, end, seed, start, size, m, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L) without brackets; see `DrawnReachTask._draw`."""
    for n in range(begin, end):
        rng = stream(seed, _TERMS, (size << 32) + start + n)
        total, product = 0, 0
        for i in range(size):
            operator = below(rng, _OPERATORS) if i > 0 else 0
            number = below(rng, m)
            if operator == 2:
                product = product * number % m
            else:
                total, product = (total + product) % m, _apply(operator, 0, number, m)
            at = 3 * i
            if i > 0:
                rows[n, 0, at - 1] = m + operator
            rows[n, 0, at], rows[n, 0, at + 1] = number, m + 5
            rows[n, 1, at + 1] = 1 + (total + product) % m


@njit(cache=True, nogil=True)
def _fill_brackets(begin, end, seed, start, size, m, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L) with brackets, which split their numbers at a random place; see `DrawnReachTask._draw`."""
    todo, values, operators = np.empty(4 * size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    for n in range(begin, end):
        rng = stream(seed, _TERMS, (1 << 60) + (size << 32) + start + n)
        todo[0], left, n_values, n_operators, at = size, 1, 0, 0, 0
        while left > 0:
            left -= 1
            what = todo[left]
            if what == 1:
                values[n_values] = below(rng, m)
                rows[n, 0, at] = values[n_values]
                n_values += 1
            elif what == _OPERATOR:
                operators[n_operators] = below(rng, _OPERATORS)
                rows[n, 0, at] = m + operators[n_operators]
                n_operators += 1
            elif what == _END:
                n_values, n_operators = n_values - 1, n_operators - 1
                values[n_values - 1] = _apply(operators[n_operators], values[n_values - 1], values[n_values], m)
                rows[n, 0, at], rows[n, 0, at + 1] = m + 4, m + 5
                rows[n, 1, at + 1] = 1 + values[n_values - 1]
                at += 1
            else:
                rows[n, 0, at] = m + 3
                first = 1 + below(rng, what - 1)
                todo[left], todo[left + 1], todo[left + 2], todo[left + 3] = _END, what - first, _OPERATOR, first
                left += 4
            at += 1


@njit(cache=True, nogil=True)
def _count(begin, end, tokens, scored, m, counts):  # type: ignore[no-untyped-def]
    """Fills counts (N, L) at scored positions: the numbers in the bracket that has just ended, or all so far."""
    before = np.empty(tokens.shape[1] + 1, np.int64)
    for n in range(begin, end):
        numbers, depth, last = 0, 0, 0
        for t in range(tokens.shape[1]):
            token = tokens[n, t]
            if token < m:
                numbers += 1
            elif token == m + 3:
                before[depth] = numbers
                depth += 1
            elif token == m + 4:
                depth -= 1
                last = before[depth]
            if scored[n, t]:
                counts[n, t] = numbers - last
