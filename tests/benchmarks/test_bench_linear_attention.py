"""Linear attention, forward and backward: times in the same run. Fast against naive, and one decay against one of each channel.

Run with `pytest tests/benchmarks/test_bench_linear_attention.py --benchmark-only`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from regbench.ops.linear_attention import linear_attention
from regbench.ops.linear_attention.chunked import reader
from tests.benchmarks.test_bench_selective_scan import least_seconds, record

LEAST = {"cpu": {"heads": 3, "channels": 3}, "chunked": {"heads": 2, "channels": 1}}
"""Times faster than naive. The chunked form is there for GPUs; on a CPU it should only not be slower."""


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """For both forms. With one thread a busy machine favours neither."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("form", LEAST)
@pytest.mark.parametrize("decay", ["heads", "channels"])
@pytest.mark.parametrize(("batch", "length", "width"), [(16, 128, 16), (32, 400, 32)])
def test_op(benchmark: Any, threads: int, form: str, decay: str, batch: int, length: int, width: int) -> None:
    """Four heads, as at d_model 64 and 128."""
    torch.manual_seed(0)
    shape = (batch, 4, length, width)
    log_decay = F.logsigmoid(torch.randn(4) if decay == "heads" else torch.randn(shape)) / 16
    inputs = [tensor.requires_grad_() for tensor in (*torch.randn(3, *shape), log_decay)]
    upstream = torch.randn(shape)

    def there_and_back(backend: str) -> Callable[[], object]:
        return lambda: torch.autograd.grad(linear_attention(*inputs, backend=backend)[0], inputs, upstream)

    ratio = record(benchmark, there_and_back("naive"), there_and_back(form), batch * length)
    assert ratio >= LEAST[form][decay]


def test_a_decay_of_heads(benchmark: Any, threads: int) -> None:
    """On the CPU: (H,) against the same decays expanded to all positions. The sizes are those of RetNet at d_model 64."""
    torch.manual_seed(0)
    q, k, v = torch.randn(8, 1, 256, 64), torch.randn(8, 1, 256, 64), torch.randn(8, 1, 256, 128)
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    log_decay, upstream = torch.tensor([-0.03]), torch.randn_like(v)

    def run(log_decay: torch.Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(linear_attention(q, k, v, log_decay, backend="cpu")[0], inputs, upstream)

    heads, positions = run(log_decay), run(log_decay.expand(8, 1, 256))
    slow, fast = least_seconds(positions, heads)
    benchmark.extra_info |= {"times faster than expanded": round(slow / fast, 2), "ms": round(1e3 * fast, 2)}
    benchmark.pedantic(heads, rounds=10)
    assert slow > fast


def test_a_decay_of_positions(benchmark: Any, threads: int) -> None:
    """Chunked: (B, H, L) against the same decays expanded to all channels. The sizes are those of Mamba-2 at d_model 64."""
    torch.manual_seed(0)
    q, k, v = torch.randn(8, 1, 256, 64), torch.randn(8, 1, 256, 64), torch.randn(8, 1, 256, 128)
    inputs = [tensor.requires_grad_() for tensor in (q, k, v, F.logsigmoid(torch.randn(8, 1, 256)))]
    upstream = torch.randn_like(v)

    def positions() -> object:
        return torch.autograd.grad(linear_attention(*inputs, backend="chunked")[0], inputs, upstream)

    def channels() -> object:
        log_decay = inputs[3][..., None].expand(q.shape)
        return torch.autograd.grad(linear_attention(q, k, v, log_decay, backend="chunked")[0], inputs, upstream)

    slow, fast = least_seconds(channels, positions)
    benchmark.extra_info |= {"times faster than expanded": round(slow / fast, 2), "ms": round(1e3 * fast, 2)}
    benchmark.pedantic(positions, rounds=10)


@torch.no_grad()
def test_many_queries(benchmark: Any, threads: int) -> None:
    """Sixteen readings of one state, as by MesaNet's solver: by `reader`, against a call of the op for each."""
    torch.manual_seed(0)
    k, log_decay, state = torch.randn(8, 1, 256, 64), F.logsigmoid(torch.randn(8, 1, 256)), torch.zeros(8, 1, 64, 64)
    queries = torch.randn(16, 8, 1, 256, 64)

    def once() -> object:
        read, _ = reader(k, k, log_decay, state)
        return [read(q) for q in queries]

    def each() -> object:
        return [linear_attention(q, k, k, log_decay, state)[0] for q in queries]

    slow, fast = least_seconds(each, once)
    benchmark.extra_info |= {"times faster than single calls": round(slow / fast, 2), "ms": round(1e3 * fast, 2)}
    benchmark.pedantic(once, rounds=10)
    assert slow > 2 * fast
