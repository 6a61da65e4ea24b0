"""GLA: against its recurrence written out, and the starting values of the authors' code."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from architectures.gla import GAIN, GLA
from tests.helpers.equations import check_equations, made

build = partial(made, GLA, d_model=12, n_heads=3, gate_rank=4)


def by_the_book(model: GLA, x: Tensor) -> Tensor:
    """ICLL Eq. 51-57 with beta = 1, a head and a position at a time; and the norm that ICLL leaves out."""
    down, up = model.decay
    n_heads, tau = model.n_heads, model.temperature
    outputs = []
    for h in range(n_heads):
        q, k, v = (x @ linear.weight.chunk(n_heads)[h].T for linear in (model.query, model.key, model.value))
        r = x @ model.gate.weight.chunk(n_heads)[h].T + model.gate.bias.chunk(n_heads)[h]
        logits = x @ down.weight.T @ up.weight.chunk(n_heads)[h].T + up.bias.chunk(n_heads)[h]
        alpha = logits.sigmoid() ** (1 / tau)
        S = x.new_zeros(x.shape[0], q.shape[-1], v.shape[-1])
        z = []
        for i in range(x.shape[1]):
            S = alpha[:, i, :, None] * S + k[:, i, :, None] * v[:, i, None]
            z.append(torch.einsum("bk,bkv->bv", q[:, i], S) / q.shape[-1] ** 0.5)
        normed = torch.nn.functional.layer_norm(torch.stack(z, 1), v.shape[-1:])
        outputs.append(r * r.sigmoid() * normed)
    return torch.cat(outputs, -1) @ model.out.weight.T


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("options", [{}, {"expand_k": 1, "expand_v": 2, "n_heads": 1}, {"gate_temperature": 1.0}])
@pytest.mark.parametrize("length", [1, 45])
def test_is_what_the_papers_write(backend: str, options: dict[str, object], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("linear_attention",), backend=backend)


def test_starting_values() -> None:
    model = build(d_model=64, n_heads=4, gate_rank=16)
    for linear in (model.query, model.key, *model.decay):
        bound = GAIN * (6 / sum(linear.weight.shape)) ** 0.5
        assert 0.99 * bound < linear.weight.abs().max() <= bound * (1 + 1e-6)
    assert not model.decay[1].bias.any()
