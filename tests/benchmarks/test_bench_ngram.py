"""The n-gram head, forward and backward, index included: time against the dense form, and bandwidth against a copy.

Run with `pytest tests/benchmarks/test_bench_ngram.py --benchmark-only`, and `-m gpu` where there is a CUDA device.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from regbench.ops.ngram import NGramIndex, ngram_head
from tests.benchmarks import ngram_cost
from tests.benchmarks.step_speed import least_seconds

VOCABULARY = 18


def inputs(batch: int, length: int, width: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(0, VOCABULARY, (batch, length), device=options.get("device"))
    hidden, upstream = torch.randn(2, batch, length, width, **options)
    return tokens, hidden.requires_grad_(), upstream


def there_and_back(head: Callable[[Tensor], Tensor], hidden: Tensor, upstream: Tensor) -> Callable[[], None]:
    def call() -> None:
        torch.autograd.grad(head(hidden), hidden, upstream)

    return call


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("batch", "length", "aim"), [(8, 384, 4.0), (1, 4096, 40.0)])
def test_cpu_against_naive(benchmark: Any, batch: int, length: int, aim: float) -> None:
    tokens, hidden, upstream = inputs(batch, length, 128)
    ours = there_and_back(lambda h: ngram_head(tokens, h, order=3, backend="cpu"), hidden, upstream)
    naive = there_and_back(lambda h: ngram_head(tokens, h, order=3, backend="naive"), hidden, upstream)
    seconds = least_seconds({"naive": naive, "ours": ours}, rounds=15)
    ratio = seconds["naive"] / seconds["ours"]
    benchmark.extra_info["times faster than naive"] = round(ratio, 1)
    benchmark(ours)
    assert ratio >= aim


@pytest.mark.usefixtures("one_thread")
def test_cpu_time_is_linear_in_length(benchmark: Any) -> None:
    """Sixteen times the length takes sixteen times the time, and a little for sorting and for leaving the cache."""
    calls = {}
    for length in (2048, 16 * 2048):
        tokens, hidden, upstream = inputs(1, length, 128)
        head = lambda h, tokens=tokens: ngram_head(tokens, h, order=3, backend="cpu")  # noqa: E731
        calls[f"{length}"] = there_and_back(head, hidden, upstream)
    short, long = least_seconds(calls, rounds=15).values()
    ratio = long / short
    benchmark.extra_info["time ratio at 16 times the length"] = round(ratio, 1)
    benchmark(calls["32768"])
    assert ratio <= 48


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak")
def test_cpu_memory_is_linear_in_length(benchmark: Any) -> None:
    """Where the dense form's is quadratic: exponents of L from 1024 to 4096."""
    lengths = (1024, 2048, 4096)
    with ngram_cost.gives_memory_back() as process:
        peaks = {f: [process.submit(ngram_cost.peak_bytes, f, n).result() for n in lengths] for f in ("cpu", "naive")}
    ours, dense = (ngram_cost.exponent(lengths, peaks[form]) for form in ("cpu", "naive"))
    benchmark.extra_info |= {
        "memory exponent": round(ours, 2),
        "of naive": round(dense, 2),
        "times less than naive at 4096": round(peaks["naive"][-1] / peaks["cpu"][-1], 1),
    }
    benchmark(ngram_cost.there_and_back("cpu", 4096))
    assert ours <= 1.1
    assert dense >= 1.9


def test_an_exponent_is_that_of_the_longer_lengths() -> None:
    lengths = ngram_cost.LENGTHS["cpu"]
    assert ngram_cost.exponent(lengths, [3 * n**1.5 for n in lengths]) == pytest.approx(1.5)
    assert ngram_cost.exponent(lengths, [max(n, 1024) ** 2 for n in lengths]) == pytest.approx(2)


@pytest.mark.ci
def test_the_picture_is_of_the_figures_beside_it(tmp_path: Path) -> None:
    costs = ngram_cost.read()
    measured = {form: tuple(c.length for c in costs if c.form == form) for form in ngram_cost.LENGTHS}
    assert measured == ngram_cost.LENGTHS
    ngram_cost.write(costs, tmp_path)
    assert ngram_cost.read(tmp_path) == costs
    again, committed = ((folder / "ngram_cost.svg").read_text() for folder in (tmp_path, ngram_cost.FOLDER))
    labels = [re.findall(r"<!-- (.+?) -->", text) for text in (again, committed)]  # whatever the version that drew them
    assert labels[0] == labels[1]
    assert len(labels[0]) > 10


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
    index = NGramIndex(tokens)

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
    fused = flex_head(index, order)
    with torch.no_grad():  # the same work, or the times say nothing; its kernels round to as little as bfloat16
        torch.testing.assert_close(fused(hidden), ngram_head(tokens, hidden, order, index=index), rtol=2e-2, atol=2e-2)
    with functorch_config.patch(donated_buffer=False):  # else its backward frees what the next repetition reads
        flex = both(fused)
    moved = 2 * hidden.numel() * hidden.element_size()
    benchmark.extra_info |= {
        "copy, TB/s": round(moved / copy / 1e9, 2),
        "forward, TB/s": round(moved / ours[0] / 1e9, 2),
        "backward, TB/s": round(moved / ours[1] / 1e9, 2),
        "forward, share of copy": round(copy / ours[0], 3),
        "backward, share of copy": round(copy / ours[1], 3),
        "index, ms": round(milliseconds(lambda: NGramIndex(tokens).events(order, 1)), 3),
        "times faster than dense": round(sum(dense) / sum(ours), 1),
        "times faster than FlexAttention": round(sum(flex) / sum(ours), 1),
    }
    benchmark.pedantic(lambda: (ngram_head(tokens, hidden, order, index=index), torch.cuda.synchronize()), rounds=20)
    assert copy / ours[0] >= 0.7
    assert copy / ours[1] >= 0.7


def follows(index: NGramIndex, order: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's mask of A(n): i sees k where the n-gram that ends at k - 1 equals that at i, and k < i. ICLL Eq. 12."""
    (batch, length), found = index.tokens.shape, index.ranks(order)
    ranks = torch.cat([found.new_zeros(batch, min(order - 1, length)), found], 1)

    def mask(b: Tensor, head: Tensor, i: Tensor, k: Tensor) -> Tensor:
        j = (k - 1).clamp(min=0)
        return (j >= order - 1) & (k >= 1) & (k < i) & (ranks[b, i] == ranks[b, j])

    return mask


def flex_head(index: NGramIndex, order: int) -> Callable[[Tensor], Tensor]:
    """The same mean by FlexAttention: equal scores, and a block mask that knows the ranks."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, length = index.tokens.shape
    mask = create_block_mask(follows(index, order), batch, None, length, length, device=str(index.tokens.device))
    fused = torch.compile(flex_attention)

    def head(hidden: Tensor) -> Tensor:
        values = hidden.unflatten(2, (-1, 64)).transpose(1, 2)  # its kernels take heads of this width
        same = torch.zeros_like(values[..., :16])
        out = fused(same, same, values, block_mask=mask)
        assert isinstance(out, Tensor)
        return out.transpose(1, 2).flatten(2)

    return head


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 60])
def test_flex_attention_is_given_the_heads_mask(order: int, length: int) -> None:
    """On the CPU: it is True where the dense form has weights."""
    from torch.nn.attention.flex_attention import create_mask

    tokens = torch.randint(3, (2, length), generator=torch.Generator().manual_seed(0))
    mask = create_mask(follows(NGramIndex(tokens), order), 2, 1, length, length, device="cpu")[:, 0]
    eye = torch.eye(length, dtype=torch.float64).expand(2, length, length)
    assert torch.equal(mask, ngram_head(tokens, eye, order, backend="naive") > 0)
    assert mask.any() or length < 60
