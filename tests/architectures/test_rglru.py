"""RG-LRU: against the paper's recurrence written out, and the Hugging Face implementation of its block."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.rglru import RGLRU, STEEPEST, _Root
from tests.helpers.equations import check_equations, convolved, made
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
build = partial(made, RGLRU, moved=True, d_model=D, n_heads=H)


def by_the_book(model: Any, u: Tensor) -> Tensor:
    """De et al. 2024, section 2.4, a position at a time, with the matrices of the gates written whole."""
    x = convolved(model.conv.conv, u @ model.in_x.weight.T + model.in_x.bias)
    W_a, W_x = (torch.block_diag(*gate.weight) for gate in (model.recurrence_gate, model.input_gate))
    a = torch.sigmoid(-model.Lambda)
    h, outputs = x.new_zeros(len(x), x.shape[2]), []
    for t in range(x.shape[1]):
        r = torch.sigmoid(x[:, t] @ W_a.T + model.recurrence_bias)
        i = torch.sigmoid(x[:, t] @ W_x.T + model.input_bias)
        a_t = a ** (8 * r)
        h = a_t * h + (torch.sqrt(1 - a_t**2) if t else 1) * i * x[:, t]
        outputs.append(h)
    y = u @ model.in_y.weight.T + model.in_y.bias
    gelu = 0.5 * y * (1 + torch.tanh((2 / math.pi) ** 0.5 * (y + 0.044715 * y**3)))
    return (torch.stack(outputs, 1) * gelu) @ model.out.weight.T + model.out.bias


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("options", [{}, {"n_heads": 1, "d_conv": 1}, {"expand": 2.0}])
@pytest.mark.parametrize("length", [1, 45])
def test_is_what_the_paper_writes(backend: str, options: dict[str, Any], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("linear_attention",), backend=backend)


@pytest.mark.ci
@pytest.mark.parametrize("expand", [1.0, 4 / 3])
def test_is_the_recurrent_block_of_hugging_face(expand: float) -> None:
    """Outputs and gradients; in float32, as its recurrence is."""
    theirs = peer("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    model = build(torch.float32, expand=expand)
    config = theirs.RecurrentGemmaConfig(
        hidden_size=D, lru_width=model.options.d_rnn, num_attention_heads=H, conv1d_width=4, num_hidden_layers=2
    )
    block = theirs.RecurrentGemmaRecurrentBlock(config, 0)
    lru, heads = block.rg_lru, (H, model.options.d_rnn // H)
    copies = {
        **{f"in_{n}.{part}": getattr(getattr(block, f"linear_{n}"), part) for n in "xy" for part in ("weight", "bias")},
        **{f"out.{part}": getattr(block.linear_out, part) for part in ("weight", "bias")},
        **{f"conv.conv.{part}": getattr(block.conv_1d, part) for part in ("weight", "bias")},
        "Lambda": lru.recurrent_param,
        "recurrence_bias": lru.recurrent_gate_bias,
        "input_bias": lru.input_gate_bias,
        "recurrence_gate.weight": lru.recurrent_gate_weight,
        "input_gate.weight": lru.input_gate_weight,
    }
    turned = ("recurrence_gate.weight", "input_gate.weight")
    with torch.no_grad():
        for name, copy in copies.items():
            own = model.get_parameter(name)
            copy.copy_(own.mT if name in turned else own.view(heads) if copy.shape == heads else own)
    places = torch.arange(45).expand(2, -1)
    check_peer(
        model,
        lambda x: block(x, places, torch.ones(2, 45), use_cache=False)[0],
        [(name, (lambda c=copy: c.grad.mT) if name in turned else copy) for name, copy in copies.items()],
        tolerance=2e-6,
    )


def test_the_derivative_of_the_root_is_bounded() -> None:
    x = torch.tensor([0.0, 1e-12, 1e-6, 0.25], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(_Root.apply(x).sum(), x)
    torch.testing.assert_close(found, torch.tensor([STEEPEST, STEEPEST, 500.0, 1.0], dtype=torch.float64))


def test_starting_values() -> None:
    torch.manual_seed(0)
    model = RGLRU(RGLRU.Options(d_model=192, n_heads=4))
    assert model.options.d_rnn == 256
    a = torch.exp(-F.softplus(model.Lambda.detach()))
    assert 0.9 <= float(a.min()) < 0.91
    assert 0.995 < float(a.max()) <= 0.9991
    assert model.conv.conv.weight.std().item() == pytest.approx(0.05, rel=0.1)
    assert model.input_gate.weight.std().item() == pytest.approx(1 / 8, rel=0.05)
    assert RGLRU.Options(d_model=64).d_rnn == 84
