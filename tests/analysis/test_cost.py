"""What models cost, counted by hand where that can be done."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from regbench.analysis.cost import training_bytes, training_flops


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
