"""RWKV-7: against its recurrence written out, and the starting values of the authors' code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.rwkv7 import RWKV7, TimeMixing
from regbench.models.build import build, resolve_options
from regbench.models.model import Model
from regbench.ops.backend import use_backend
from regbench.tasks.base import TokenIO

IO = TokenIO(vocab_size=5, separator=4, max_length=80, names=("a", "b", "c", "d", "|"))


def make(dtype: torch.dtype = torch.float64, **options: object) -> Model:
    """No weight is left where it begins, as some begin at zero."""
    torch.manual_seed(0)
    model = build(RWKV7, resolve_options(RWKV7, {"d_model": 12, "n_heads": 3, **options}), IO)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.5 * parameter.shape[-1] ** -0.5
    return model.to(dtype)


def by_the_book(mixing: TimeMixing, x: Tensor, first: Tensor | None) -> Tensor:
    """Peng et al. 2025, section 4, a head and a position at a time, with the state (V, K) and its matrix of transition."""
    heads, size = mixing.n_heads, x.shape[-1] // mixing.n_heads
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    moved = {name: x + (before - x) * weight for name, weight in mixing.shift.items()}
    r, k, v = mixing.receptance(moved["r"]), mixing.key(moved["k"]), mixing.value(moved["v"])
    raw = mixing.decay.start + torch.tanh(moved["w"] @ mixing.decay.down) @ mixing.decay.up
    w = torch.exp(-torch.exp(-F.softplus(-raw) - 0.5))  # as the authors' code clamps it
    a = torch.sigmoid(mixing.rate.start + moved["a"] @ mixing.rate.down @ mixing.rate.up)
    g = torch.sigmoid(moved["g"] @ mixing.gate.down) @ mixing.gate.up
    if first is not None:
        low = mixing.value_residual
        assert low is not None
        v = v + (first - v) * torch.sigmoid(low.start + moved["v"] @ low.down @ low.up)
    kk, replaced = k * mixing.k_k, k * (1 + (a - 1) * mixing.k_a)
    rows, bonuses = [], []
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        S, outputs = x.new_zeros(len(x), size, size), []
        unit = kk[..., part] / kk[..., part].norm(dim=-1, keepdim=True)
        for t in range(x.shape[1]):
            change = torch.diag_embed(w[:, t, part]) - unit[:, t, :, None] * (a[:, t, part] * unit[:, t])[:, None]
            S = S @ change + v[:, t, part][:, :, None] * replaced[:, t, part][:, None]
            outputs.append((S @ r[:, t, part][:, :, None])[..., 0])
        rows.append(torch.stack(outputs, 1))
        weight = (r[..., part] * replaced[..., part] * mixing.r_k[h]).sum(-1, keepdim=True)
        bonuses.append(weight * v[..., part])
    normed = F.group_norm(torch.cat(rows, -1).flatten(0, 1), heads, mixing.norm.weight, mixing.norm.bias, 64e-5)
    return mixing.output((normed.view(x.shape) + torch.cat(bonuses, -1)) * g)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("layer", [0, 1])
def test_is_what_the_paper_writes(form: str, layer: int) -> None:
    model = make()
    mixing = model.blocks[layer].time_mixing
    x, first = torch.randn(2, 3, 40, 12, dtype=torch.float64, requires_grad=True)
    zero, S = x.new_zeros(3, 12), x.new_zeros(3, 3, 4, 4)
    with use_backend(form):
        y, _, carried = mixing(x, zero, S, first if layer else None)
    expected = by_the_book(mixing, x, first if layer else None)
    torch.testing.assert_close(y, expected, rtol=1e-8, atol=1e-10)
    assert torch.equal(carried, first) == bool(layer)
    upstream = torch.randn_like(y)
    wanted = list(mixing.parameters())
    for a, b in zip(*(torch.autograd.grad(out, wanted, upstream) for out in (y, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_starting_values() -> None:
    torch.manual_seed(0)
    model = build(RWKV7, resolve_options(RWKV7, {"d_model": 64, "n_heads": 4}), IO)
    for layer, block in enumerate(model.blocks):
        mixing = block.time_mixing
        assert not mixing.output.weight.any()
        assert not block.channel_mixing.value.weight.any()
        assert (mixing.value_residual is None) == (layer == 0)
        decays = torch.exp(-torch.exp(torch.tensor(-0.5)) * mixing.decay.start.detach().sigmoid())
        assert float(decays.min()) > 0.545
        assert float(decays.max()) > 0.99
        assert mixing.k_a.unique().tolist() == pytest.approx([1.02])
