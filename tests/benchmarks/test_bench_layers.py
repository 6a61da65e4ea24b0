"""GELU and the short convolution, forward and backward: time beside PyTorch's own, in the same run.

Run with `pytest tests/benchmarks/test_bench_layers.py --benchmark-only`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.short_conv import short_conv
from regbench.ops.gelu import gelu
from tests.benchmarks.step_speed import least_seconds

BATCH, LENGTH, WIDTH, TAPS = 16, 128, 256, 4


def there_and_back(
    layer: Callable[[Tensor], Tensor], x: Tensor, upstream: Tensor, *parameters: Tensor
) -> Callable[[], object]:
    return lambda: torch.autograd.grad(layer(x), (x, *parameters), upstream)


def beside(benchmark: Any, ours: Callable[[], object], pytorchs: Callable[[], object]) -> None:
    seconds = least_seconds({"ours": ours, "pytorch": pytorchs}, rounds=20)
    benchmark.extra_info["times faster"] = round(seconds["pytorch"] / seconds["ours"], 1)
    benchmark.pedantic(ours, rounds=3)


@pytest.mark.usefixtures("one_thread")
def test_gelu(benchmark: Any) -> None:
    x, upstream = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True), torch.randn(BATCH, LENGTH, WIDTH)
    own = there_and_back(lambda x: F.gelu(x, approximate="tanh"), x, upstream)
    beside(benchmark, there_and_back(gelu, x, upstream), own)


@pytest.mark.usefixtures("one_thread")
def test_short_conv(benchmark: Any) -> None:
    conv = nn.Conv1d(WIDTH, WIDTH, TAPS, groups=WIDTH)
    x, upstream = torch.randn(BATCH, TAPS - 1 + LENGTH, WIDTH, requires_grad=True), torch.randn(BATCH, LENGTH, WIDTH)

    def pytorchs(x: Tensor) -> Tensor:
        return F.conv2d(x.mT.unsqueeze(2), conv.weight.unsqueeze(2), conv.bias, groups=WIDTH).squeeze(2).mT

    own = there_and_back(pytorchs, x, upstream, *conv.parameters())
    beside(benchmark, there_and_back(lambda x: short_conv(x, conv), x, upstream, *conv.parameters()), own)
