"""Causal attention, forward and backward: our kernels against PyTorch's fused form and the naive one, on a GPU and on the CPU.

Run with `pytest tests/benchmarks/test_bench_attention.py --benchmark-only`, and `-m gpu` where there is a CUDA device. All forms
do the same work in one run, and the ratios are of that run. A least ratio of times is not held on a GPU until one has shown it;
that memory grows as L is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.ops.attention import attention
from tests.benchmarks.ngram_cost import exponent
from tests.benchmarks.step_speed import least_seconds

FORMS = ("triton", "torch", "naive")
BATCH, HEADS = 4, 8
LENGTHS = (1024, 2048, 4096)


def inputs(batch: int, heads: int, length: int, width: int, **options: Any) -> tuple[list[Tensor], Tensor]:
    """q, k and v, and a gradient from above."""
    q, k, v, above = torch.randn(4, batch, heads, length, width, **options)
    return [x.requires_grad_() for x in (q, k, v)], above


def there_and_back(form: str, leaves: list[Tensor], above: Tensor) -> list[Tensor]:
    out = attention(*leaves, backend=form)
    return [out.detach(), *torch.autograd.grad(out, leaves, above)]


def operations(batch: int, heads: int, length: int, width: int) -> int:
    """Multiplications and additions of the matrix products that have to be, two of them forward and five backward."""
    seen = length * (length + 1) // 2
    return 7 * 2 * batch * heads * seen * width


def furthest(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, of the largest entry of each tensor."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True))


def peak_bytes(form: str, length: int) -> int:
    """What a call takes on the GPU over what was there before."""
    leaves, above = inputs(BATCH, HEADS, length, 64, dtype=torch.bfloat16, device="cuda")
    there_and_back(form, leaves, above)  # compiles
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    there_and_back(form, leaves, above)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.bfloat16, 3e-2), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("length", [256, *LENGTHS])
def test_gpu_time(benchmark: Any, dtype: torch.dtype, rounding: float, width: int, length: int) -> None:
    from triton.testing import do_bench

    leaves, above = inputs(BATCH, HEADS, length, width, dtype=dtype, device="cuda")
    ours = there_and_back("triton", leaves, above)
    for form in FORMS[1:]:  # the same work, or the times say nothing
        assert furthest(ours, there_and_back(form, leaves, above)) <= rounding

    def milliseconds(call: Callable[[], object]) -> float:
        return float(do_bench(call, return_mode="median"))

    times = {}
    for form in FORMS:
        out = attention(*leaves, backend=form)
        forward = milliseconds(lambda form=form: attention(*leaves, backend=form))
        backward = milliseconds(lambda out=out: torch.autograd.grad(out, leaves, above, retain_graph=True))
        times[form] = (forward, backward)
    both = {form: sum(pair) for form, pair in times.items()}
    benchmark.extra_info |= {
        "forward, ms": round(times["triton"][0], 3),
        "backward, ms": round(times["triton"][1], 3),
        "TFLOP/s": round(operations(BATCH, HEADS, length, width) / both["triton"] / 1e9, 1),
        "forward, times faster than PyTorch's": round(times["torch"][0] / times["triton"][0], 2),
        "backward, times faster than PyTorch's": round(times["torch"][1] / times["triton"][1], 2),
        "times faster than naive": round(both["naive"] / both["triton"], 1),
    }
    benchmark.pedantic(lambda: (there_and_back("triton", leaves, above), torch.cuda.synchronize()), rounds=20)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_memory_is_linear_in_length(benchmark: Any) -> None:
    """Where the naive form's is quadratic: exponents of L from 1024 to 4096."""
    peaks = {form: [peak_bytes(form, length) for length in LENGTHS] for form in FORMS}
    exponents = {form: exponent(LENGTHS, peaks[form]) for form in FORMS}
    benchmark.extra_info |= {
        "memory exponent": round(exponents["triton"], 2),
        "of naive": round(exponents["naive"], 2),
        "times less than naive at 4096": round(peaks["naive"][-1] / peaks["triton"][-1], 1),
        "times that of PyTorch's at 4096": round(peaks["triton"][-1] / peaks["torch"][-1], 2),
    }
    benchmark.pedantic(peak_bytes, ("triton", LENGTHS[-1]))
    assert exponents["triton"] <= 1.1
    assert exponents["naive"] >= 1.9
