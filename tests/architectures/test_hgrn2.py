"""HGRN2: against its recurrence written out, and flash-linear-attention's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.hgrn2 import HGRN2
from regbench.models.build import build as build_model
from regbench.tasks.base import TokenIO
from tests.helpers.equations import check_equations, made, rms_norm
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
build = partial(made, HGRN2, moved=True, d_model=D, n_heads=H)


def lower(model: Any) -> Tensor | float:
    return 0.0 if model.bound is None else torch.sigmoid(model.bound)


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Qin et al. 2024, section 3, a head and a position at a time."""
    heads, width = model.n_heads, D // model.n_heads
    o, g, i = (x @ linear.weight.T for linear in (model.output_gate, model.forget_gate, model.input))
    o, f = o * torch.sigmoid(o), lower(model) + (1 - lower(model)) * torch.sigmoid(g)
    rows = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        S, outputs = x.new_zeros(len(x), width, width), []
        for t in range(x.shape[1]):
            S = f[:, t, part, None] * S + (1 - f[:, t, part, None]) * i[:, t, None, part]
            outputs.append((o[:, t, None, part] @ S)[:, 0] / width**0.5)
        rows.append(torch.stack(outputs, 1))
    z = torch.cat(rows, -1)
    return rms_norm(z, model.norm.weight) @ model.out.weight.T


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("heads", [1, 3])
def test_is_what_the_paper_writes(layer: int, heads: int, backend: str) -> None:
    model = build(layer=layer, n_heads=heads)
    check_equations(model, lambda x: by_the_book(model, x), 45, ops=("linear_attention",), backend=backend)


@pytest.mark.ci
@pytest.mark.parametrize("layer", [0, 1])
def test_is_what_flash_linear_attention_computes(layer: int) -> None:
    """Its layer, with the naive form of the kernel that it calls, in float32."""
    naive = peer("fla.ops.gla.naive", "einops").naive_recurrent_gla
    model = build(torch.float32, layer=layer)

    def theirs(x: Tensor) -> Tensor:
        g = F.logsigmoid(model.forget_gate(x))
        if model.bound is not None:
            bound = lower(model)
            g = torch.logaddexp(bound.log(), torch.log1p(-bound) + g)  # type: ignore[union-attr, operator]
        k = 1 - g.exp()
        q, v = F.silu(model.output_gate(x)), model.input(x)
        z, _ = naive(*(part.unflatten(-1, (H, -1)) for part in (q, k, v, g)))
        return model.out(F.rms_norm(z.flatten(2), (D,), model.norm.weight, 1e-5))  # type: ignore[no-any-return]

    check_peer(model, theirs, tolerance=5e-6)


def test_lower_bounds_begin_evenly_and_the_first_layer_has_none() -> None:
    io = TokenIO(vocab_size=5, separator=4, max_length=80, names=("a", "b", "c", "d", "|"))
    model = build_model(HGRN2, HGRN2.Options(d_model=8, n_layers=4), io)
    bounds = [block.mixer.bound for block in model.blocks]  # type: ignore[union-attr]
    assert bounds[0] is None
    assert [bound.detach().sigmoid()[0].item() for bound in bounds[1:]] == pytest.approx([0.25, 0.5, 0.75])
