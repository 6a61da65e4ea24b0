"""The in-context baselines: tokens a second with the prediction of every prefix, and Baum-Welch's seconds a step of EM.

Run with `pytest tests/benchmarks/test_bench_baselines.py --benchmark-only`. The times of the paper's released code are in
the comments: two cores of a shared machine, as here.
"""

from __future__ import annotations

import time
from typing import Any

import numba
import numpy as np
import pytest

from baselines.baum_welch import BaumWelch
from baselines.ngram import SMOOTHINGS, NGram
from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA
from regbench.utils.arrays import IntArray

SMALL = {"n_symbols": 8, "max_states": 8, "max_alphabet": 8, "min_strings": 8, "max_strings": 12, "max_length": 20}
TASKS = {"small": PFA(PFA.Parameters(**SMALL)), "paper": PFA(PFA.Parameters())}


def prompts(scale: str, count: int) -> tuple[IntArray, int]:
    """(N, L) tokens of the scale's task, and how many of them are no padding."""
    instances = TASKS[scale].generate(Splits(train=0, validation=0, test=count, seed=1), "test")
    return instances.tokens, instances.n_tokens


def least_seconds(benchmark: Any) -> float:
    return float(benchmark.stats.stats.min)


@pytest.mark.parametrize("scale", TASKS)
@pytest.mark.parametrize("order", [1, 2, 3, 4, None])
def test_ngram(benchmark: Any, order: int | None, scale: str) -> None:
    """The reference: 7,000 tokens/s at order 2, 1,900 at order 3."""
    tokens, n_tokens = prompts(scale, 500)
    io = TASKS[scale].io
    benchmark.pedantic(NGram(order, io.vocab_size, io.separator).predict, (tokens,), rounds=7, warmup_rounds=1)
    rate = n_tokens / least_seconds(benchmark)
    benchmark.extra_info |= {"tokens/s": round(rate), "threads": numba.get_num_threads()}
    assert rate > 500 * 1900


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_ngram_smoothing(benchmark: Any, smoothing: str) -> None:
    tokens, n_tokens = prompts("paper", 500)
    io = TASKS["paper"].io
    benchmark.pedantic(NGram(3, io.vocab_size, io.separator, smoothing).predict, (tokens,), rounds=7, warmup_rounds=1)
    benchmark.extra_info["tokens/s"] = round(n_tokens / least_seconds(benchmark))


def test_ngram_time_is_linear_in_the_prefix(benchmark: Any) -> None:
    model, rng = NGram(3, 19, 18), np.random.default_rng(0)
    seconds = []
    for length in (4_000, 64_000):
        tokens = rng.integers(0, 19, (1, length))
        model.predict(tokens)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            model.predict(tokens)
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    benchmark.extra_info["time ratio at 16 times the length"] = round(seconds[1] / seconds[0], 1)
    benchmark.pedantic(model.predict, (tokens,), rounds=3)
    assert seconds[1] < 48 * seconds[0]


@pytest.mark.parametrize(("n_states", "length"), [(8, 115), (12, 50), (12, 150), (12, 382), (24, 382)])
def test_baum_welch_step(benchmark: Any, n_states: int, length: int) -> None:
    """One step of EM on one thread. The reference: 0.376 s at 382 tokens and 12 states (144 of its own)."""
    n_symbols, iterations = 18, 10
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, n_symbols, length)
    tokens[rng.random(length) < 0.04] = n_symbols
    model = BaumWelch(n_states, n_symbols + 1, n_symbols, iterations)
    benchmark.pedantic(model.fit, (tokens,), rounds=7, warmup_rounds=1)
    step = least_seconds(benchmark) / (iterations + 0.4)  # the last likelihood is a forward pass, 0.4 of a step
    benchmark.extra_info["ms a step"] = round(1000 * step, 3)
    benchmark.extra_info["ns a token"] = round(1e9 * step / length)
    if (n_states, length) == (12, 382):
        benchmark.extra_info["times faster than the reference, one thread"] = round(0.376 / step)
        assert step < 0.376 / 500


@pytest.mark.parametrize(("scale", "count"), [("small", 40), ("paper", 4)])
def test_baum_welch_every_prefix(benchmark: Any, scale: str, count: int) -> None:
    """Ten steps at every prefix. The reference would need about 760 s for a prompt of the paper's scale."""
    tokens, n_tokens = prompts(scale, count)
    io = TASKS[scale].io
    model = BaumWelch(TASKS[scale].parameters.max_states, io.vocab_size, io.separator)
    benchmark.pedantic(model.predict, (tokens,), rounds=2, warmup_rounds=1)
    seconds = least_seconds(benchmark)
    benchmark.extra_info |= {
        "tokens/s": round(n_tokens / seconds),
        "s for 500 prompts": round(seconds * 500 / count, 1),
        "threads": numba.get_num_threads(),
    }
