"""N-gram counts of orders 1 to 3: tokens/s of every form, and how many times faster than the naive one.

Run with `pytest tests/benchmarks/test_bench_ngram_counts.py --benchmark-only`.
"""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.ops.ngram_counts import ngram_counts

ORDER, VOCABULARY = 3, 19
SHAPES = ((32, 400), (1, 2048))


def seconds(tokens: Tensor, form: str, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = process_time()
        ngram_counts(tokens, ORDER, VOCABULARY, backend=form)
        times.append(process_time() - start)
    return min(times)


@pytest.mark.parametrize("form", ["cpu", "torch"])
@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_ngram_counts(benchmark: Any, form: str, batch: int, length: int) -> None:
    """The compiled form reads and writes each count once; the sorting one is there for GPUs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tokens = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))
        ngram_counts(tokens, ORDER, VOCABULARY, backend=form)
        benchmark.pedantic(ngram_counts, (tokens, ORDER, VOCABULARY, form), rounds=3)
        took, naive = seconds(tokens, form, 7), seconds(tokens, "naive", 2)
    finally:
        torch.set_num_threads(before)
    benchmark.extra_info["tokens/s"] = round(batch * length / took)
    benchmark.extra_info["times the naive form"] = round(naive / took, 1)
    if form == "cpu":
        assert naive > 4 * took
