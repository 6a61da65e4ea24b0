"""The solver against exact rational areas and against brute force; calibrated, causal, and never at a loss."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from baselines.arithmetic_solver import ArithmeticSolver
from regbench.tasks.arithmetic import Arithmetic, ArithmeticParameters
from regbench.tasks.base import Splits

Polygon = list[tuple[Fraction, Fraction]]
NAMES = "0123456789*=+-|#"


def tokens_of(text: str) -> np.ndarray:
    return np.array([[NAMES.index(character) for character in text]])


def solve(text: str, **parameters: float) -> np.ndarray:
    """(L, V): what the solver says at each position of a text."""
    return ArithmeticSolver(ArithmeticParameters(**parameters)).predict(tokens_of(text))[0]  # type: ignore[arg-type]


# --- The same areas, in rational arithmetic and another order: for each answer a whole polygon from scratch. ---


def clip(polygon: Polygon, u: int, v: int, bound: int) -> Polygon:
    """Where u a + v b >= bound."""
    kept: Polygon = []
    for (a, b), (c, d) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        here, there = u * a + v * b - bound, u * c + v * d - bound
        if here >= 0:
            kept.append((a, b))
        if here * there < 0:
            kept.append((a + (c - a) * here / (here - there), b + (d - b) * here / (here - there)))
    return kept


def area(polygon: Polygon) -> Fraction:
    pairs = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return sum((a * d - b * c for (a, b), (c, d) in pairs), Fraction(0)) / 2


def between(polygon: Polygon, example: tuple[int, int], answer: str, digits: int) -> Polygon:
    """What agrees with the beginning of an answer, "" or "+" or "-01" or a whole one."""
    if not answer:
        return polygon
    unit = 10 ** (digits + 3 - len(answer))
    low = int(answer[1:] or 0) * unit
    high = low + unit - 1
    first, second = example
    if answer[0] == "+":
        return clip(clip(polygon, first, second, low if low else -1), -first, -second, -high - 1)
    return clip(clip(polygon, -first, -second, max(low, 1)), first, second, -high - 1)


def exact(text: str, p: ArithmeticParameters) -> dict[int, dict[str, Fraction]]:
    """By position the distribution over what can come there, for every position of an answer in one task."""
    corners = [(p.min_a, p.min_b), (p.max_a, p.min_b), (p.max_a, p.max_b), (p.min_a, p.max_b)]
    polygon = [(Fraction(a), Fraction(b)) for a, b in corners]
    found, at = {}, 0
    for example in text.split("|")[: p.n_examples]:
        question, answer = example.split("=")
        numbers = tuple(map(int, question.split("*")))
        for k in range(len(answer)):
            choices = "+-" if k == 0 else "0123456789"
            areas = {c: area(between(polygon, numbers, answer[:k] + c, p.n_digits)) for c in choices}  # type: ignore[arg-type]
            total = sum(areas.values())
            found[at + len(question) + 1 + k] = {c: value / total for c, value in areas.items()}
        polygon = between(polygon, numbers, answer, p.n_digits)  # type: ignore[arg-type]
        at += len(example) + 1
    return found


@pytest.mark.parametrize(
    "parameters",
    [
        {"n_examples": 8},
        {"n_examples": 6, "n_digits": 1},
        {"n_examples": 5, "n_digits": 2, "min_a": -0.5, "max_a": 0.5, "min_b": -0.25, "max_b": 0.75},
        {"n_examples": 3, "n_digits": 5, "min_a": 1.5, "max_a": 1.75},
    ],
)
def test_predictions_are_the_exact_shares_of_the_area(parameters: dict[str, float]) -> None:
    p = ArithmeticParameters(n_tasks=1, **parameters)  # type: ignore[arg-type]
    task = Arithmetic(p)
    instances = task.generate(Splits(train=1, validation=1, test=6, seed=5), "test")
    predicted = ArithmeticSolver(p).predict(instances.tokens)
    for row in range(len(instances)):
        text = "".join(NAMES[token] for token in instances.tokens[row])
        shares = exact(text, p)
        assert set(shares) == set(np.flatnonzero(instances.scored[row]))
        for t, distribution in shares.items():
            expected = np.zeros(16)
            for character, share in distribution.items():
                expected[NAMES.index(character)] = float(share)
            np.testing.assert_allclose(predicted[row, t], expected, rtol=0, atol=1e-9)


def test_what_the_task_writes_around_answers_is_known_and_arguments_are_not() -> None:
    text = "3*4=+017|1*2=+005|#9*9=+099|"
    predicted = solve(text, n_tasks=2, n_examples=2, n_digits=1)
    for t, character in enumerate(text):
        if character in "*=|#":
            assert predicted[t, NAMES.index(character)] == 1.0
    for t in (0, 2, 9, 11, 19, 21):
        np.testing.assert_array_equal(predicted[t], [0.1] * 10 + [0.0] * 6)


def test_a_new_task_begins_anew() -> None:
    parameters = {"n_tasks": 2, "n_examples": 2, "n_digits": 1}
    first = solve("3*4=+017|1*2=+005|#5*6=+020|7*2=+015|#", **parameters)
    alone = solve("5*6=+020|7*2=+015|#", **parameters)
    np.testing.assert_array_equal(first[19:38], alone)


def test_an_answer_that_cannot_be_is_passed_over() -> None:
    """9*9=+999 is beyond all coefficients: what follows is predicted as if it had not been there."""
    parameters = {"n_tasks": 1, "n_examples": 3, "n_digits": 1}
    good = solve("3*4=+017|2*5=+010|1*2=+005|#", **parameters)
    odd = solve("3*4=+017|9*9=+999|1*2=+005|#", **parameters)
    other = solve("3*4=+017|9*9=+9*=|1*2=+005|#", **parameters)
    np.testing.assert_allclose(odd[18:], other[18:])
    assert not np.allclose(odd[18:], good[18:])  # that one has told it more


def test_questions_of_zeros() -> None:
    predicted = solve("0*0=+000|0*7=+021|#", n_tasks=1, n_examples=2, n_digits=1)
    assert [predicted[t].argmax() for t in (4, 5, 6, 7)] == [12, 0, 0, 0]
    np.testing.assert_allclose(predicted[[4, 5, 6, 7]].max(-1), 1.0)
    # 0 * a + 7 * b, b in [-9, 10): positive, or above -1, with (70 + 1) / 133.
    assert predicted[13, 12] == pytest.approx(71 / 133)


def test_defaults() -> None:
    task = Arithmetic(ArithmeticParameters())
    instances = task.generate(Splits(train=1, validation=1, test=1, seed=0), "test")
    (solver,) = ArithmeticSolver.defaults(task, instances)
    assert (solver.name, solver.anchor) == ("solver", None)
    assert solver.options["max_b"] == 10.0
