"""LSTM: against its equations written out."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from architectures.lstm import LSTM
from tests.helpers.equations import check_equations, made

D = 5
build = partial(made, LSTM, d_model=D)


def by_the_book(model: LSTM, x: Tensor) -> Tensor:
    """ICLL A.4, a position at a time. PyTorch stacks the gates as i, f, c~, o, and has two biases where one would do."""
    cell = model.lstm
    W, U = (dict(zip("ifco", weight.chunk(4), strict=True)) for weight in (cell.weight_ih_l0, cell.weight_hh_l0))
    bias = dict(zip("ifco", (cell.bias_ih_l0 + cell.bias_hh_l0).chunk(4), strict=True))
    h = c = x.new_zeros(x.shape[0], D)
    outputs = []
    for x_t in x.unbind(1):
        pre = {gate: x_t @ W[gate].T + h @ U[gate].T + bias[gate] for gate in "ifco"}
        f, i, o = (1 / (1 + torch.exp(-pre[gate])) for gate in "fio")
        c = f * c + i * torch.tanh(pre["c"])
        h = o * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("length", [1, 33])
def test_is_what_the_paper_writes(length: int) -> None:
    model = build()
    check_equations(model, lambda x: by_the_book(model, x), length)


def test_autocast_leaves_it_in_the_weights_type() -> None:
    """On a GPU cuDNN would get float16, whatever type was asked for."""
    model = build().float()
    x = torch.randn(2, 7, D)
    with torch.autocast("cpu", torch.bfloat16):
        whole = model(x.bfloat16())
        first, _ = model.step(x[:, 0].bfloat16(), model.init_state(2))
    assert whole.dtype == first.dtype == torch.float32
    assert torch.equal(whole, model(x.bfloat16().float()))
