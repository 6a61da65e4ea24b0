"""The tasks of the CGT paper: instances made a second, and what the solver takes, against one Python string at a time."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from baselines.arithmetic_solver import ArithmeticSolver
from baselines.linear_regression import InContextRegression
from regbench.tasks.arithmetic import Arithmetic, ArithmeticParameters
from regbench.tasks.base import Splits
from regbench.tasks.linear_regression import LinearRegression, LinearRegressionParameters


def in_python(p: ArithmeticParameters, n: int) -> list[str]:
    """The same instances as a short script would make them."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(n):
        text = ""
        for _ in range(p.n_tasks):
            a, b = rng.uniform(p.min_a, p.max_a), rng.uniform(p.min_b, p.max_b)
            for _ in range(p.n_examples):
                first, second = rng.integers(0, 10**p.n_digits, 2)
                value = math.trunc(a * first + b * second)
                text += f"{first:0{p.n_digits}d}*{second:0{p.n_digits}d}={value:+0{p.n_digits + 3}d}|"
            text += "#"
        found.append(text)
    return found


@pytest.mark.parametrize("parameters", [{}, {"n_tasks": 1, "n_examples": 8}], ids=["4x4", "1x8"])
def test_sampling_arithmetic(benchmark: Any, parameters: dict[str, int]) -> None:
    """20,000 instances, each round from another seed."""
    task = Arithmetic(ArithmeticParameters(**parameters))  # type: ignore[arg-type]
    task.generate(Splits(10, 10, 10, 0), "train")  # compiles
    seeds = iter(range(1, 1000))
    made = benchmark.pedantic(lambda: task.generate(Splits(20_000, 1, 1, next(seeds)), "train"), rounds=5)
    started = time.perf_counter()
    tokens = sum(map(len, in_python(task.parameters, 200)))
    plain = tokens / (time.perf_counter() - started)
    rate = made.n_tokens / benchmark.stats.stats.min
    benchmark.extra_info["tokens/s"] = round(rate)
    benchmark.extra_info["times plain Python"] = round(rate / plain)


def test_sampling_linear_regression(benchmark: Any) -> None:
    """2,000 instances of 64 vectors: 8 + 4 components."""
    task = LinearRegression(LinearRegressionParameters())
    task.generate(Splits(10, 10, 10, 0), "train")
    seeds = iter(range(1, 1000))
    made = benchmark.pedantic(lambda: task.generate(Splits(2000, 1, 1, next(seeds)), "train"), rounds=5)
    benchmark.extra_info["vectors/s"] = round(made.n_tokens / benchmark.stats.stats.min)


@pytest.mark.parametrize("parameters", [{}, {"n_tasks": 1, "n_examples": 8}], ids=["4x4", "1x8"])
def test_solver(benchmark: Any, parameters: dict[str, int]) -> None:
    """Every position of 1,000 instances, full distributions."""
    task = Arithmetic(ArithmeticParameters(**parameters))  # type: ignore[arg-type]
    tokens = task.generate(Splits(1, 1, 1000, 0), "test").tokens
    solver = ArithmeticSolver(task.parameters)
    solver.predict(tokens[:2])
    benchmark.pedantic(lambda: solver.predict(tokens), rounds=5)
    benchmark.extra_info["tokens/s"] = round(tokens.size / benchmark.stats.stats.min)


@pytest.mark.parametrize("method", ["least squares", "ridge"])
def test_regression(benchmark: Any, method: str) -> None:
    """Every prefix of 500 instances of 32 pairs, 8 -> 4."""
    task = LinearRegression(LinearRegressionParameters())
    tokens = task.generate(Splits(1, 1, 500, 0), "test").tokens
    baseline = InContextRegression(method, 8, 4, task.parameters.noise)
    benchmark.pedantic(lambda: baseline.predict(tokens), rounds=3)
    benchmark.extra_info["vectors/s"] = round(500 * 64 / benchmark.stats.stats.min)
