"""The selective scan and the Mamba layer, forward and backward: time against the naive form, in the same run.

Run with `pytest tests/benchmarks/test_bench_selective_scan.py --benchmark-only`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from architectures.mamba import Mamba
from regbench.ops.backend import use_backend
from regbench.ops.selective_scan import selective_scan


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """For both forms. With one thread a busy machine favours neither."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def least_seconds(*calls: Callable[[], object], rounds: int = 7) -> list[float]:
    """The least of each call's times, taken in turns: whatever else runs on the machine only adds to a time."""
    for call in calls:
        call()
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for place, call in enumerate(calls):
            for _ in range(3):
                start = time.perf_counter()
                call()
                least[place] = min(least[place], time.perf_counter() - start)
    return least


def record(benchmark: Any, naive: Callable[[], object], ours: Callable[[], object], tokens: int) -> float:
    slow, fast = least_seconds(naive, ours)
    benchmark.extra_info |= {
        "times faster than naive": round(slow / fast, 1),
        "ms": round(1e3 * fast, 2),
        "tokens/s": round(tokens / fast),
    }
    benchmark.pedantic(ours, rounds=10)
    return slow / fast


@pytest.mark.parametrize(("batch", "length"), [(32, 128), (4, 1024)])
def test_scan(benchmark: Any, threads: int, batch: int, length: int) -> None:
    dim, n_state = 128, 16
    torch.manual_seed(0)
    inputs = [
        torch.randn(batch, length, dim),
        F.softplus(torch.randn(batch, length, dim) - 3),
        -torch.exp(torch.randn(dim, n_state)),
        torch.randn(batch, length, n_state),
        torch.randn(batch, length, n_state),
        torch.randn(dim),
    ]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    upstream = torch.randn(batch, length, dim)

    def there_and_back(form: str) -> Callable[[], object]:
        return lambda: torch.autograd.grad(selective_scan(*inputs, backend=form)[0], inputs, upstream)

    ratio = record(benchmark, there_and_back("naive"), there_and_back("cpu"), batch * length)
    assert ratio >= 4


def test_layer(benchmark: Any, threads: int) -> None:
    torch.manual_seed(0)
    layer = Mamba(Mamba.Options(d_model=64))
    x = torch.randn(32, 128, 64)

    def there_and_back(form: str) -> Callable[[], object]:
        def call() -> None:
            with use_backend(form):
                layer(x).sum().backward()

        return call

    ratio = record(benchmark, there_and_back("naive"), there_and_back("cpu"), 32 * 128)
    assert ratio >= 2
