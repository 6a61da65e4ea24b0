"""The n-gram head, forward and backward, index included: time against the dense form, and bandwidth against a copy.

Run with `pytest tests/benchmarks/test_bench_ngram.py --benchmark-only`, and `-m gpu` where there is a CUDA device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.ops.ngram import NGramIndex, ngram_head, ngram_index

VOCABULARY = 18


def inputs(batch: int, length: int, width: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(0, VOCABULARY, (batch, length), device=options.get("device"))
    hidden, upstream = torch.randn(2, batch, length, width, **options)
    return tokens, hidden.requires_grad_(), upstream


def there_and_back(head: Callable[[Tensor], Tensor], hidden: Tensor, upstream: Tensor) -> Callable[[], None]:
    def call() -> None:
        torch.autograd.grad(head(hidden), hidden, upstream)

    return call


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For both forms, so that a busy machine favours neither."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def least_seconds(*calls: Callable[[], None], rounds: int = 5) -> list[float]:
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


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("batch", "length", "aim"), [(8, 384, 4.0), (1, 4096, 40.0)])
def test_cpu_against_naive(benchmark: Any, batch: int, length: int, aim: float) -> None:
    tokens, hidden, upstream = inputs(batch, length, 128)
    ours = there_and_back(lambda h: ngram_head(tokens, h, order=3, backend="cpu"), hidden, upstream)
    naive = there_and_back(lambda h: ngram_head(tokens, h, order=3, backend="naive"), hidden, upstream)
    slow, fast = least_seconds(naive, ours)
    ratio = slow / fast
    benchmark.extra_info["times faster than naive"] = round(ratio, 1)
    benchmark(ours)
    assert ratio >= aim


@pytest.mark.usefixtures("one_thread")
def test_cpu_time_is_linear_in_length(benchmark: Any) -> None:
    """Sixteen times the length takes sixteen times the time, and a little for sorting and for leaving the cache."""
    calls = []
    for length in (2048, 16 * 2048):
        tokens, hidden, upstream = inputs(1, length, 128)
        head = lambda h, tokens=tokens: ngram_head(tokens, h, order=3, backend="cpu")  # noqa: E731
        calls.append(there_and_back(head, hidden, upstream))
    short, long = least_seconds(*calls)
    ratio = long / short
    benchmark.extra_info["time ratio at 16 times the length"] = round(ratio, 1)
    benchmark(calls[1])
    assert ratio <= 48


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("order", [1, 3])
def test_gpu_against_a_copy_and_other_forms(benchmark: Any, dtype: torch.dtype, order: int) -> None:
    """Bytes moved over time as a share of a device copy's, and time against the dense form and FlexAttention.

    Each pass moves what a copy moves: it reads B L D numbers and writes as many. The index is shared, as in a model.
    """
    from triton.testing import do_bench

    tokens, hidden, upstream = inputs(32, 2048, 1024, dtype=dtype, device="cuda")
    index = ngram_index(tokens)

    def milliseconds(call: Callable[[], object]) -> float:
        return float(do_bench(call, return_mode="median"))

    def both(head: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        out = head(hidden)
        backward = milliseconds(lambda: torch.autograd.grad(out, hidden, upstream, retain_graph=True))
        return milliseconds(lambda: head(hidden)), backward

    target = torch.empty_like(upstream)
    copy = milliseconds(lambda: target.copy_(upstream))
    ours = both(lambda h: ngram_head(tokens, h, order, backend="triton", index=index))
    dense = both(lambda h: ngram_head(tokens, h, order, backend="naive"))
    flex = both(flex_head(index, order))
    benchmark.extra_info |= {
        "copy, TB/s": round(2 * hidden.numel() * hidden.element_size() / copy / 1e9, 2),
        "forward, share of copy": round(copy / ours[0], 3),
        "backward, share of copy": round(copy / ours[1], 3),
        "index, ms": round(milliseconds(lambda: ngram_index(tokens).events(order, 1)), 3),
        "times faster than dense": round(sum(dense) / sum(ours), 1),
        "times faster than FlexAttention": round(sum(flex) / sum(ours), 1),
    }
    benchmark.pedantic(lambda: (ngram_head(tokens, hidden, order, index=index), torch.cuda.synchronize()), rounds=20)
    assert copy / ours[0] >= 0.7
    assert copy / ours[1] >= 0.7


def flex_head(index: NGramIndex, order: int) -> Callable[[Tensor], Tensor]:
    """The same mean by FlexAttention: equal scores, and a block mask that knows the ranks."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    (batch, length), found = index.tokens.shape, index.ranks(order)
    ranks = torch.cat([found.new_zeros(batch, order - 1), found], 1)

    def follows(b: Tensor, head: Tensor, i: Tensor, k: Tensor) -> Tensor:
        j = (k - 1).clamp(min=0)
        return (j >= order - 1) & (k >= 1) & (k < i) & (ranks[b, i] == ranks[b, j])

    mask = create_block_mask(follows, batch, None, length, length, device=index.tokens.device)
    fused = torch.compile(flex_attention)

    def head(hidden: Tensor) -> Tensor:
        values = hidden.unflatten(2, (-1, 64)).transpose(1, 2)  # its kernels take heads of this width
        same = torch.zeros_like(values[..., :16])
        out: Tensor = fused(same, same, values, block_mask=mask)
        return out.transpose(1, 2).flatten(2)

    return head
