"""The ops, forward and backward: time against the naive form, in the same run, on one thread.

Run with `pytest tests/benchmarks/test_bench_ops.py --benchmark-only`. The chunked and sorting forms are there for GPUs. On a CPU
they should only not be slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from architectures.mamba import Mamba
from regbench.models.short_conv import short_conv
from regbench.ops.backend import use_backend
from regbench.ops.delta_rule import delta_rule
from regbench.ops.gelu import gelu
from regbench.ops.linear_attention import linear_attention
from regbench.ops.linear_attention.chunked import reader
from regbench.ops.long_conv import long_conv
from regbench.ops.ngram_counts import ngram_counts
from regbench.ops.selective_scan import selective_scan
from regbench.ops.wkv import wkv
from tests.benchmarks.step_speed import least_seconds

HEADS, WIDTH = 4, 128


pytestmark = pytest.mark.usefixtures("one_thread")


def decay_of(kind: str, shape: tuple[int, ...]) -> list[Tensor]:
    """No decay, or one of each head, position or channel; shape is (B, H, L, D)."""
    sizes = {"none": None, "heads": shape[1:2], "positions": shape[:3], "channels": shape}[kind]
    return [] if sizes is None else [F.logsigmoid(torch.randn(sizes)) / (16 if kind == "heads" else 1)]


def of_heads(decay: str, batch: int, length: int, width: int) -> list[Tensor]:
    shape = (batch, HEADS, length, width)
    return [*torch.randn(3, *shape), *decay_of(decay, shape)]


def of_delta_rule(decay: str, batch: int, length: int, width: int) -> list[Tensor]:
    q, k, v, *log_decay = of_heads(decay, batch, length, width)
    return [q, F.normalize(k, dim=-1), v, torch.rand(q.shape[:3]), *log_decay]


def of_scan(batch: int, length: int) -> list[Tensor]:
    x, delta = torch.randn(2, batch, length, WIDTH)
    b, c = torch.randn(2, batch, length, 16)
    return [x, F.softplus(delta - 3), -torch.randn(WIDTH, 16).exp(), b, c, torch.randn(WIDTH)]


def of_long_conv(batch: int, length: int) -> list[Tensor]:
    return [torch.randn(batch, length, WIDTH), torch.randn(WIDTH, length) / length, torch.randn(WIDTH)]


def of_wkv(batch: int, length: int) -> list[Tensor]:
    return [torch.randn(WIDTH).exp(), torch.randn(WIDTH), *torch.randn(2, batch, length, WIDTH)]


SIZES = ((16, 128, 16), (32, 400, 32))
"""Batch, length and width of a head, as at d_model 64 and 128."""

CASES = [
    *[(selective_scan, "cpu", of_scan, size, 4) for size in ((32, 128), (4, 1024))],
    (long_conv, "fft", of_long_conv, (32, 400), 2),
    (wkv, "cpu", of_wkv, (32, 400), 3),
    *[(linear_attention, "cpu", of_heads, (decay, *size), 3) for decay in ("heads", "channels") for size in SIZES],
    *[(linear_attention, "chunked", of_heads, ("heads", *size), 2) for size in SIZES],
    *[(linear_attention, "chunked", of_heads, ("channels", *size), 1) for size in SIZES],
    *[(delta_rule, "cpu", of_delta_rule, (d, *size), 5) for d in ("none", "positions", "channels") for size in SIZES],
    *[(delta_rule, "chunked", of_delta_rule, (decay, *size), 2) for decay in ("none", "positions") for size in SIZES],
    *[(delta_rule, "chunked", of_delta_rule, ("channels", *size), 1) for size in SIZES],
]
"""Op, form, its inputs and their sizes, and how many times faster than naive it is at least."""


def there_and_back(op: Callable[..., Any], inputs: list[Tensor], form: str) -> Callable[[], object]:
    """A call of the op and of all gradients."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]

    def output() -> Tensor:
        out = op(*leaves, backend=form)
        return out if isinstance(out, Tensor) else out[0]

    upstream = torch.randn_like(output())
    return lambda: torch.autograd.grad(output(), leaves, upstream)


def beside(benchmark: Any, slow: Callable[[], object], fast: Callable[[], object], tokens: int) -> float:
    """How many times faster one call is than another, once both are warm."""
    calls = {"slow": slow, "fast": fast}
    for call in calls.values():
        call()
    seconds = least_seconds(calls, rounds=10)
    ratio = seconds["slow"] / seconds["fast"]
    benchmark.extra_info |= {"times faster": round(ratio, 1), "ms": round(1e3 * seconds["fast"], 2)}
    benchmark.extra_info["tokens/s"] = round(tokens / seconds["fast"])
    benchmark.pedantic(fast, rounds=5)
    return ratio


@pytest.mark.parametrize(("op", "form", "make", "sizes", "least"), CASES)
def test_against_naive(
    benchmark: Any, op: Callable[..., Any], form: str, make: Callable[..., list[Tensor]], sizes: Any, least: float
) -> None:
    inputs = make(*sizes)
    batch, length = [size for size in sizes if isinstance(size, int)][:2]
    naive, ours = (there_and_back(op, inputs, name) for name in ("naive", form))
    assert beside(benchmark, naive, ours, batch * length) >= least


@pytest.mark.parametrize(("form", "least"), [("cpu", 4), ("torch", 0)])
@pytest.mark.parametrize(("batch", "length"), [(32, 400), (1, 2048)])
def test_ngram_counts(benchmark: Any, form: str, least: float, batch: int, length: int) -> None:
    """Orders 1 to 3. The compiled form reads and writes each count once."""
    tokens = torch.randint(19, (batch, length))
    naive, ours = (lambda name=name: ngram_counts(tokens, 3, 19, backend=name) for name in ("naive", form))
    assert beside(benchmark, naive, ours, batch * length) >= least


def test_a_layer_of_mamba(benchmark: Any) -> None:
    layer, x = Mamba(Mamba.Options(d_model=64)), torch.randn(32, 128, 64)

    def step(form: str) -> None:
        with use_backend(form):
            layer(x).sum().backward()

    assert beside(benchmark, lambda: step("naive"), lambda: step("cpu"), 32 * 128) >= 2


@pytest.mark.parametrize(("form", "decay", "least"), [("cpu", "heads", 1), ("chunked", "positions", 0)])
def test_a_decay_that_channels_share(benchmark: Any, form: str, decay: str, least: float) -> None:
    """Against the same decays expanded, at the sizes of RetNet and of Mamba-2 at d_model 64."""
    q, k, v = torch.randn(8, 1, 256, 64), torch.randn(8, 1, 256, 64), torch.randn(8, 1, 256, 128)
    (log_decay,) = decay_of(decay, tuple(q.shape))
    expanded = log_decay.expand(8, 1, 256) if decay == "heads" else log_decay[..., None].expand(q.shape)
    slow, fast = (there_and_back(linear_attention, [q, k, v, each], form) for each in (expanded, log_decay))
    assert beside(benchmark, slow, fast, 8 * 256) >= least


@torch.no_grad()
def test_many_queries(benchmark: Any) -> None:
    """Sixteen readings of one state, as by MesaNet's solver: by `reader`, against a call of the op for each."""
    k, log_decay, state = torch.randn(8, 1, 256, 64), F.logsigmoid(torch.randn(8, 1, 256)), torch.zeros(8, 1, 64, 64)
    queries = torch.randn(16, 8, 1, 256, 64)

    def once() -> object:
        read, _ = reader(k, k, log_decay, state)
        return [read(q) for q in queries]

    def each() -> object:
        return [linear_attention(q, k, k, log_decay, state)[0] for q in queries]

    assert beside(benchmark, each, once, 8 * 256) > 1.5


def test_gelu(benchmark: Any) -> None:
    """Against PyTorch's own."""
    x, upstream = torch.randn(16, 128, 256, requires_grad=True), torch.randn(16, 128, 256)
    theirs, ours = (
        lambda call=call: torch.autograd.grad(call(x), x, upstream)
        for call in (lambda x: F.gelu(x, approximate="tanh"), gelu)
    )
    beside(benchmark, theirs, ours, 16 * 128)


def test_short_conv(benchmark: Any) -> None:
    """Against PyTorch's own."""
    conv = nn.Conv1d(256, 256, 4, groups=256)
    x, upstream = torch.randn(16, 3 + 128, 256, requires_grad=True), torch.randn(16, 128, 256)
    leaves = (x, *conv.parameters())

    def pytorchs() -> Tensor:
        return F.conv2d(x.mT.unsqueeze(2), conv.weight.unsqueeze(2), conv.bias, groups=256).squeeze(2).mT

    theirs, ours = (
        lambda call=call: torch.autograd.grad(call(), leaves, upstream)
        for call in (pytorchs, lambda: short_conv(x, conv))
    )
    beside(benchmark, theirs, ours, 16 * 128)
