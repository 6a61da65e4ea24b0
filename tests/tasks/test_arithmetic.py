"""The task `arithmetic`: its text, its answers in exact arithmetic, its splits, and the same bytes everywhere."""

from __future__ import annotations

import re
from fractions import Fraction
from math import floor

import numpy as np
import pytest

from regbench.data.instances import Instances
from regbench.metrics.scores import score
from regbench.tasks.arithmetic import Arithmetic, ArithmeticParameters
from regbench.tasks.base import Splits

PAPER = Arithmetic(ArithmeticParameters())
SPLITS = Splits(train=60, validation=10, test=30, seed=0)


def text_of(task: Arithmetic, instances: Instances, row: int) -> str:
    return "".join(task.io.names[token] for token in instances.tokens[row])


def answer(a: float, b: float, first: int, second: int, digits: int) -> str:
    """By exact rational arithmetic: the fraction is cut off, and zero is positive."""
    value = Fraction(a) * first + Fraction(b) * second
    magnitude = floor(abs(value))
    return f"{'-' if value < 0 and magnitude else '+'}{magnitude:0{digits + 2}d}"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"n_tasks": 1, "n_examples": 8},
        {"n_tasks": 2, "n_examples": 5, "n_digits": 1},
        {"n_digits": 2, "min_a": -1.0, "max_a": 0.5, "min_b": -0.5, "max_b": 1.0},  # small values, often zero
        {"n_digits": 6, "min_a": 40.0, "max_a": 50.0, "min_b": 40.0, "max_b": 50.0},  # the largest answers
    ],
)
def test_every_answer_is_the_truncated_linear_combination(parameters: dict[str, float]) -> None:
    task = Arithmetic(ArithmeticParameters(**parameters))  # type: ignore[arg-type]
    p, instances = task.parameters, task.generate(SPLITS, "test")
    d = p.n_digits
    example = re.compile(rf"(\d{{{d}}})\*(\d{{{d}}})=([+-]\d{{{d + 2}}})")
    zeros = 0
    for row in range(len(instances)):
        *tasks, rest = text_of(task, instances, row).split("#")
        assert rest == ""
        assert len(tasks) == p.n_tasks
        for (a, b), one in zip(instances.truth["coefficients"][row], tasks, strict=True):
            assert p.min_a <= a < p.max_a
            assert p.min_b <= b < p.max_b
            *examples, rest = one.split("|")
            assert rest == ""
            assert len(examples) == p.n_examples
            for text in examples:
                found = example.fullmatch(text)
                assert found is not None, text
                assert found[3] == answer(a, b, int(found[1]), int(found[2]), d), (a, b, text)
                zeros += int(found[3]) == 0
    if parameters.get("max_a") == 0.5:
        assert zeros > 0


def test_coefficients_and_numbers_are_uniform() -> None:
    task = Arithmetic(ArithmeticParameters(n_digits=1))
    instances = task.generate(Splits(train=4000, validation=1, test=1, seed=2), "train")
    a, b = np.moveaxis(instances.truth["coefficients"], -1, 0)
    for values, low, high in ((a, 0, 10), (b, -9, 10)):
        counts, _ = np.histogram(values, 20, (low, high))
        np.testing.assert_allclose(counts / values.size, 1 / 20, atol=5 * np.sqrt(1 / 20 / values.size))
    p = task.parameters
    numbers = instances.tokens[:, 0 :: p.example_length][:, : p.n_examples]
    np.testing.assert_allclose(np.bincount(numbers.ravel()) / numbers.size, 0.1, atol=5 * np.sqrt(0.1 / numbers.size))


def test_scored_are_the_answers_and_the_truth_is_certain_there() -> None:
    instances = PAPER.generate(SPLITS, "validation")
    for row in range(len(instances)):
        text = text_of(PAPER, instances, row)
        scored = {t for found in re.finditer(r"[+-]\d{5}", text) for t in range(found.start(), found.end())}
        assert set(np.flatnonzero(instances.scored[row])) == scored
    truth = PAPER.truth(instances)
    np.testing.assert_array_equal(truth.sum(-1), instances.scored)
    np.testing.assert_array_equal(truth.argmax(-1)[instances.scored], instances.tokens[instances.scored])


def test_progress_counts_the_examples_before_and_the_last_two_are_a_group() -> None:
    instances = PAPER.generate(SPLITS, "test")
    text, expected, before = text_of(PAPER, instances, 0), [], 0
    for character in text:
        expected.append(min(before, 3))  # the # belongs to the last example
        before = 0 if character == "#" else before + (character == "|")
    progress, groups = PAPER.progress(instances), PAPER.groups(instances)
    assert progress[0].tolist() == expected
    np.testing.assert_array_equal(groups["last_two"], progress >= 2)
    assert groups["last_two"].shape == instances.tokens.shape


def test_the_scores_are_by_example_and_over_the_last_two() -> None:
    """A predictor that is right from the third example of each task on, and says 9 before."""
    instances = PAPER.generate(SPLITS, "test")
    predicted = PAPER.truth(instances)
    predicted[~instances.scored] = 1 / 16
    early = PAPER.progress(instances) < 2
    predicted[early] = np.eye(16)[9]
    scores = score(PAPER, instances, [predicted[:7], predicted[7:]])
    nines = float((instances.tokens == 9)[instances.scored & early].mean())
    assert scores["last_two_accuracy"].value == 1.0
    assert scores["last_two_accuracy"].stderr == 0.0
    assert scores["token_accuracy"].value == pytest.approx((1 + nines) / 2)
    steps, by_step, counts = scores.steps["token_accuracy"].curve()
    assert steps.tolist() == [0, 1, 2, 3]
    assert [s.value for s in by_step[2:]] == [1.0, 1.0]
    assert (by_step[0].value + by_step[1].value) / 2 == pytest.approx(nines)
    assert counts.tolist() == [30 * 4 * 6] * 4
    only, _, _ = scores.steps["last_two_accuracy"].curve()
    assert only.tolist() == [2, 3]


def test_show_has_the_coefficients_and_every_example() -> None:
    instances = PAPER.generate(SPLITS, "test")
    shown = PAPER.show(instances, 3)
    for example in re.split(r"[|#]+", text_of(PAPER, instances, 3)):
        assert example in shown
    for value in instances.truth["coefficients"][3].ravel():
        assert f"{value:.4f}" in shown
