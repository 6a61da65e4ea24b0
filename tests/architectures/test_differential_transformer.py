"""Differential transformer: against its equations written out, and the Hugging Face implementation."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from architectures.differential_transformer import DifferentialTransformer
from regbench.models.rotary import rotate
from tests.helpers.equations import check_equations, made, rms_norm
from tests.helpers.peers import check_peer, peer

D, H = 24, 3
build = partial(made, DifferentialTransformer, layer=1, moved=True, d_model=D, n_heads=H)


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Ye et al. 2024, Eq. 1-3, a head at a time, with the (L, L) weights."""
    heads, width = model.n_heads, D // (2 * model.n_heads)
    base = 0.8 - 0.6 * math.exp(-0.3 * 1)
    strength = math.e ** (model.l_q1 @ model.l_k1) - math.e ** (model.l_q2 @ model.l_k2) + base
    rows = []
    for h in range(heads):
        maps = []
        for half in range(2):
            part = slice((2 * h + half) * width, (2 * h + half + 1) * width)
            q, k = (x @ linear.weight[part].T for linear in (model.query, model.key))
            if model.rotary:
                q, k = rotate(q[:, None])[:, 0], rotate(k[:, None])[:, 0]
            weights = (q @ k.mT / width**0.5).exp().tril()
            maps.append(weights / weights.sum(-1, keepdim=True))
        z = (maps[0] - strength * maps[1]) @ (x @ model.value.weight[2 * h * width : 2 * (h + 1) * width].T)
        rows.append((1 - base) * rms_norm(z, torch.ones(())))
    return torch.cat(rows, -1) @ model.out.weight.T


@pytest.mark.parametrize("backend", ["cpu", "torch", "naive"])
@pytest.mark.parametrize("options", [{}, {"n_heads": 1, "positions": "none"}])
def test_is_what_the_paper_writes(options: dict[str, Any], backend: str) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), 33, ops=("attention",), backend=backend)


@pytest.mark.ci
@pytest.mark.parametrize("layer", [0, 3])
def test_is_what_hugging_face_computes(layer: int) -> None:
    """Outputs and gradients in float64. Its heads hold the first attentions of all heads, then the second ones."""
    theirs = peer("transformers.models.diffllama.modeling_diffllama")
    model, width = build(layer=layer), D // (2 * H)
    config = theirs.DiffLlamaConfig(
        hidden_size=D, num_attention_heads=2 * H, num_key_value_heads=2 * H, rms_norm_eps=1e-5, attention_dropout=0.0
    )
    config._attn_implementation = "eager"
    block = theirs.DiffLlamaAttention(config, layer).double()
    # Its key-value heads i and i + H make one head of twice the width, and so do its query heads.
    order = torch.cat([torch.arange(D).view(H, 2, width)[:, half].flatten() for half in range(2)])
    back = order.argsort()
    copies = {
        **{
            f"{ours}.weight": getattr(block, f"{name}_proj").weight
            for ours, name in zip(("query", "key", "value"), "qkv", strict=True)
        },
        "out.weight": block.o_proj.weight,
        **{f"l_{name}": getattr(block, f"lambda_{name}") for name in ("q1", "k1", "q2", "k2")},
    }
    turned = ("query.weight", "key.weight", "value.weight")
    with torch.no_grad():
        for name, copy in copies.items():
            own = model.get_parameter(name)
            copy.copy_(own[order] if name in turned else own)
    length = 33
    mask = torch.full((1, 1, length, length), -torch.inf, dtype=torch.float64).triu(1)
    frequency = 10_000.0 ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    turn = torch.cat([angle, angle], -1)[None]
    check_peer(
        model,
        lambda x: block(x, (turn.cos(), turn.sin()), mask)[0],
        [(name, (lambda c=copy: c.grad[back]) if name in turned else copy) for name, copy in copies.items()],
        length=length,
        tolerance=2e-6,  # it takes the softmax in float32
    )


def test_starting_values() -> None:
    model = build()
    assert [model.place(layer) or round(model.lambda_init, 4) for layer in (0, 1, 5)] == [0.2, 0.3555, 0.6661]
    fresh = DifferentialTransformer(DifferentialTransformer.Options(d_model=512, n_heads=1))
    assert fresh.l_q1.std().item() == pytest.approx(0.1, rel=0.2)
