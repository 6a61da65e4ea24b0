"""The delta rule, forward and backward: time against the naive implementation, in the same run.

Run with `pytest tests/benchmarks/test_bench_delta_rule.py --benchmark-only`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from regbench.ops.delta_rule import delta_rule
from tests.benchmarks.test_bench_selective_scan import record

LEAST = {"cpu": {"none": 5, "positions": 5, "channels": 5}, "chunked": {"none": 2, "positions": 2, "channels": 1}}
"""Times faster than naive. The chunked implementation is there for GPUs; on a CPU it should only not be slower."""


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """For both implementations. With one thread a busy machine favours neither."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("form", LEAST)
@pytest.mark.parametrize("decay", ["none", "positions", "channels"])
@pytest.mark.parametrize(("batch", "length", "width"), [(16, 128, 16), (32, 400, 32)])
def test_op(benchmark: Any, threads: int, form: str, decay: str, batch: int, length: int, width: int) -> None:
    """Four heads, as at d_model 64 and 128."""
    torch.manual_seed(0)
    shape = (batch, 4, length, width)
    q, k, v = torch.randn(3, *shape).unbind(0)
    beta = torch.rand(shape[:3])
    drawn = F.logsigmoid(torch.randn(shape if decay == "channels" else shape[:3]))
    given = [q, F.normalize(k, dim=-1), v, beta, *([] if decay == "none" else [drawn])]
    inputs = [tensor.clone().requires_grad_() for tensor in given]
    upstream = torch.randn(shape)

    def there_and_back(backend: str) -> Callable[[], object]:
        return lambda: torch.autograd.grad(delta_rule(*inputs, backend=backend)[0], inputs, upstream)

    ratio = record(benchmark, there_and_back("naive"), there_and_back(form), batch * length)
    assert ratio >= LEAST[form][decay]
