"""Causal attention, forward and backward: our kernels against PyTorch's fused form and the naive one, on the CPU.

All forms do the same work in one run, and the ratios are of that run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.ops.attention import attention
from tests.benchmarks.step_speed import least_seconds

HEADS = 8


def inputs(batch: int, heads: int, length: int, width: int, **options: Any) -> tuple[list[Tensor], Tensor]:
    """q, k and v, and a gradient from above."""
    q, k, v, above = torch.randn(4, batch, heads, length, width, **options)
    return [x.requires_grad_() for x in (q, k, v)], above


def there_and_back(form: str, leaves: list[Tensor], above: Tensor) -> list[Tensor]:
    out = attention(*leaves, backend=form)
    return [out.detach(), *torch.autograd.grad(out, leaves, above)]


def furthest(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, of the largest entry of each tensor."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("length", "least"), [(32, 0.7), (128, 1.4), (256, 1.8)])
def test_narrow_heads_on_the_cpu(benchmark: Any, length: int, least: float) -> None:
    """Eight heads of 8 channels, as the transformer of the boards has them. The ratio grows with the length."""
    leaves, above = inputs(16, HEADS, length, 8)
    assert furthest(there_and_back("cpu", leaves, above), there_and_back("torch", leaves, above)) <= 1e-5
    calls = {form: lambda form=form: there_and_back(form, leaves, above) for form in ("cpu", "torch", "naive")}
    seconds = least_seconds(calls, rounds=10)
    faster = seconds["torch"] / seconds["cpu"]
    benchmark.extra_info |= {
        "ms": round(1e3 * seconds["cpu"], 2),
        "times faster than PyTorch's": round(faster, 2),
        "times faster than naive": round(seconds["naive"] / seconds["cpu"], 1),
    }
    benchmark.pedantic(calls["cpu"], rounds=10)
    assert faster >= least


def test_what_is_timed_is_the_same_work() -> None:
    """On the CPU: what the forms are held to before they are timed, and that it tells another function."""
    leaves, above = inputs(1, 2, 33, 8)
    naive, fused = (there_and_back(form, leaves, above) for form in ("naive", "torch"))
    assert furthest(fused, naive) <= 1e-5
    others = there_and_back("naive", [leaves[1], *leaves[1:]], above)
    assert furthest(others, naive) > 0.1
