"""RWKV-6: against the paper's recurrence written out, and flash-linear-attention's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.rwkv6 import PARTS, RWKV6
from regbench.models.heads import join_heads, split_heads
from regbench.ops.linear_attention.naive import linear_attention_weights
from tests.helpers.equations import check_equations, made
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
build = partial(made, RWKV6, moved=True, d_model=D, n_heads=H, shift_rank=4, decay_rank=5)


def before(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 1, 0))[:, :-1]


def shifted(time: Any, x: Tensor) -> dict[str, Tensor]:
    """The five inputs of the time mixing."""
    fixed = x + (before(x) - x) * time.mu
    found = {}
    for place, name in enumerate(PARTS):
        A, B = time.down.chunk(len(PARTS), -1)[place], time.up[place]
        found[name] = x + (before(x) - x) * (time.mus[name] + torch.tanh(fixed @ A) @ B)
    return found


def rest(model: Any, x: Tensor, z: Tensor, g: Tensor) -> Tensor:
    """The mixer's output, of z (B, L, D) and the gate's input."""
    time, channels = model.time_mixing, model.channel_mixing
    normed = F.group_norm(z.flatten(0, 1), model.options.n_heads, time.norm.weight, time.norm.bias, 64e-5).view(x.shape)
    gate = g @ time.gate.weight.T
    mixed = (normed * gate * torch.sigmoid(gate)) @ time.output.weight.T
    n = F.layer_norm(x + mixed, (D,), model.norm.weight, model.norm.bias)
    k = (n + (before(n) - n) * channels.mu_k) @ channels.key.weight.T
    r = (n + (before(n) - n) * channels.mu_r) @ channels.receptance.weight.T
    return mixed + torch.sigmoid(r) * (k.clamp(min=0) ** 2 @ channels.value.weight.T)


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Peng et al. 2024, section 4.2, a head and a position at a time."""
    time, heads = model.time_mixing, model.options.n_heads
    size, parts = D // heads, shifted(time, x)
    k, v, r = (parts[n] @ m.weight.T for n, m in (("k", time.key), ("v", time.value), ("r", time.receptance)))
    w = torch.exp(-torch.exp(time.decay + torch.tanh(parts["w"] @ time.decay_down) @ time.decay_up))
    rows = []
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        S, outputs = x.new_zeros(len(x), size, size), []
        for t in range(x.shape[1]):
            written = k[:, t, part, None] * v[:, t, None, part]
            outputs.append((r[:, t, None, part] @ (S + time.bonus[part, None] * written))[:, 0])
            S = w[:, t, part, None] * S + written
        rows.append(torch.stack(outputs, 1))
    return rest(model, x, torch.cat(rows, -1), parts["g"])


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("options", [{}, {"n_heads": 1, "expand": 1.0}])
@pytest.mark.parametrize("length", [1, 45])
def test_is_what_the_paper_writes(backend: str, options: dict[str, Any], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("linear_attention",), backend=backend)


@pytest.mark.ci
def test_is_what_flash_linear_attention_computes() -> None:
    """Its naive recurrence, in float32; without its scale of the receptances, as RWKV has none."""
    naive = peer("fla.ops.rwkv6.recurrent_naive", "einops").naive_recurrent_rwkv6
    model = build(torch.float32)
    time = model.time_mixing

    def theirs(x: Tensor) -> Tensor:
        parts = shifted(time, x)
        w = -torch.exp(time.decay + torch.tanh(parts["w"] @ time.decay_down) @ time.decay_up)
        given = (time.receptance(parts["r"]), time.key(parts["k"]), time.value(parts["v"]), w)
        z, _ = naive(*(split_heads(part, H) for part in given), time.bonus.view(H, -1), scale=1.0)
        return rest(model, x, join_heads(z), parts["g"])

    check_peer(model, theirs, tolerance=1e-5)


def test_starting_values() -> None:
    torch.manual_seed(0)
    model = RWKV6(RWKV6.Options(d_model=64, n_heads=4, n_layers=3))
    time = model.time_mixing
    assert time.decay[[0, -1]].tolist() == [-6, -1]
    assert time.mus["k"][0].item() == 1 - 0.0**1
    assert (time.mus["k"].diff() < 0).all()
    assert not time.down.any()
    assert not time.decay_down.any()
    slow = time.decay.detach().clone()
    model.place(2)
    assert (time.decay[1:-1] < slow[1:-1]).all()
    assert time.bonus[1].item() == pytest.approx(1 - 1 / 63 + 0.1)
    assert time.mus["v"][32].item() == pytest.approx(1 - 0.5 ** (1 / 3) - 0.3)


def test_with_constant_decays_it_is_linear_attention_with_a_bonus() -> None:
    """RWKV-5's recurrence: what the input sets is switched off, so that the decays are those of the parameters alone."""
    model, x = build(), torch.randn(2, 33, D, dtype=torch.float64)
    time = model.time_mixing
    with torch.no_grad():
        time.down.zero_()
        time.decay_down.zero_()
        k, v, r = (
            split_heads((x + (before(x) - x) * time.mus[name]) @ linear.weight.T, H)
            for name, linear in (("k", time.key), ("v", time.value), ("r", time.receptance))
        )
        decay = -time.decay.exp().view(H, 1, -1).expand(2, H, 33, -1)
        weights = linear_attention_weights(r, k, decay)  # decays after j up to i, and S is read before the decay at i
        own = (r * k).sum(-1)
        past = linear_attention_weights(r * (-decay).exp(), k, decay).tril(-1)
        bonus = (r * time.bonus.view(H, 1, -1) * k).sum(-1)
        z = (past + torch.diag_embed(bonus)) @ v
        torch.testing.assert_close(weights.diagonal(dim1=-2, dim2=-1), own)
        g = x + (before(x) - x) * time.mus["g"]
        torch.testing.assert_close(model(x), rest(model, x, join_heads(z), g), rtol=1e-9, atol=1e-10)
