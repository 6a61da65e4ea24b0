"""What models cost, counted by hand where that can be done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from papers.cost import total_flops
from regbench.models.model import parameter_count
from regbench.ops.backend import use_backend
from regbench.tracks import load_track
from tests.helpers.cost import training_bytes, training_flops
from tests.helpers.subjects import built


class Two(nn.Module):
    """Two maps with a ReLU between them; its loss is their sum."""

    def __init__(self, width: int = 6, hidden: int = 10) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.register_buffer("scale", torch.ones(3))

    def losses(self, tokens: Tensor, scored: Tensor) -> dict[str, Tensor]:
        return {"sum": self.down(torch.relu(self.up(tokens))).sum()}


def given(batch: int, length: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, length, 6), torch.ones(batch, length, dtype=torch.bool)


def test_memory_is_what_stands_and_what_is_kept_for_the_way_back() -> None:
    """Four copies of the weights and the buffer; of 7 x 5 rows the input of either map, the second also ReLU's own output."""
    model: Any = Two()
    weights, kept = 2 * 60, 7 * 5 * (6 + 10)
    assert training_bytes(model, *given(7)) == 4 * (4 * weights + 3 + kept)


def test_memory_grows_with_the_batch_alone_where_it_should_and_needs_none_to_be_counted() -> None:
    model: Any = Two()
    one, two, three = (training_bytes(model, *given(batch)) for batch in (1, 2, 3))
    assert three - two == two - one == 4 * 5 * (6 + 10)
    with FakeTensorMode():
        large: Any = Two(6, 1 << 30)
        assert training_bytes(large, *given(2)) == 4 * (4 * 12 * (1 << 30) + 3 + 10 * (6 + (1 << 30)))


def test_operations_are_two_for_each_product_and_twice_as_many_on_the_way_back() -> None:
    """The input needs no gradient, so the first map goes back once and the second twice."""
    model: Any = Two()
    products = 7 * 5 * 6 * 10
    assert training_flops(model, *given(7)) == 2 * products * (2 + 1 + 2)


def test_operations_of_an_lstm_are_counted() -> None:
    """A counter of PyTorch's sees nothing of the fused kernel: two layers of four gates, and what is around them."""
    model = built("lstm", load_track("pfa-small-v1").task.io, d_model=16, n_layers=2)
    layers = 2 * 2 * 4 * 16 * 32
    per_token = total_flops(model, torch.zeros(1, 50, dtype=torch.long)) / 50
    assert layers < per_token < 3 * parameter_count(model)


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "mamba"])
def test_operations_do_not_depend_on_the_kernel_that_would_run(name: str) -> None:
    model = built(name, load_track("pfa-small-v1").task.io, d_model=16, n_layers=1)
    tokens = torch.zeros(1, 50, dtype=torch.long)
    counted = total_flops(model, tokens)
    seen = {}
    for backend in ("chunked", "cpu"):
        with use_backend(backend), FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens)
        seen[backend] = counter.get_total_flops()
    assert seen["cpu"] < counted == seen["chunked"]
