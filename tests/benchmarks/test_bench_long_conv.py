"""The long convolution and WKV, forward and backward: time against the naive form, in the same run.

Run with `pytest tests/benchmarks/test_bench_long_conv.py --benchmark-only`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.ops.long_conv import long_conv
from regbench.ops.wkv import wkv
from tests.benchmarks.test_bench_selective_scan import least_seconds

BATCH, LENGTH, WIDTH = 32, 400, 128


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """For both forms. With one thread a busy machine favours neither."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def compare(benchmark: Any, op: Callable[..., Tensor], inputs: list[Tensor], form: str) -> float:
    """How many times faster than naive `form` is."""
    leaves = [tensor.requires_grad_() for tensor in inputs]
    upstream = torch.randn(BATCH, LENGTH, WIDTH)

    def there_and_back(backend: str) -> Callable[[], object]:
        return lambda: torch.autograd.grad(op(*leaves, backend=backend), leaves, upstream)

    slow, fast = least_seconds(there_and_back("naive"), there_and_back(form), rounds=2)
    benchmark.extra_info |= {
        "times faster than naive": round(slow / fast, 1),
        "ms": round(1e3 * fast, 2),
        "tokens/s": round(BATCH * LENGTH / fast),
    }
    benchmark.pedantic(there_and_back(form), rounds=5)
    return slow / fast


def test_long_conv(benchmark: Any, threads: int) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(BATCH, LENGTH, WIDTH), torch.randn(WIDTH, LENGTH) / LENGTH, torch.randn(WIDTH)]
    assert compare(benchmark, long_conv, inputs, "fft") >= 2


def test_wkv(benchmark: Any, threads: int) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(WIDTH).exp(), torch.randn(WIDTH), *torch.randn(2, BATCH, LENGTH, WIDTH)]
    assert compare(benchmark, lambda *given, backend: wkv(*given, backend=backend)[0], inputs, "cpu") >= 3
