"""PaTH attention: against products of Householder matrices written out, and flash-linear-attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.path_attention import CHUNK, PathAttention
from architectures.transformer import Transformer
from tests.helpers.equations import check_equations, convolved, made, unit
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
build = partial(made, PathAttention, moved=True, d_model=D, n_heads=H, rank=5)


def inputs(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    """q, k, v and w (B, L, H, K), w of length 1, and beta (B, L, H)."""
    down, up = model.reflect
    raw = x @ down.weight.T @ up.weight.T
    w = F.silu(convolved(model.conv.conv, raw))
    q, k, v, w = (part.unflatten(-1, (model.n_heads, -1)) for part in (model.query(x), model.key(x), model.value(x), w))
    return q, k, v, unit(w), 2 * torch.sigmoid(model.strength(x))


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Yang et al. 2025, section 3.1, a head and a position at a time: all past keys are reflected by each new H."""
    q, k, v, w, beta = inputs(model, x)
    width, heads = q.shape[-1], []
    for h in range(model.n_heads):
        keys, rows = x.new_zeros(len(x), 0, width), []
        for t in range(x.shape[1]):
            w_t = w[:, t, h, :, None]
            reflection = torch.eye(width, dtype=x.dtype) - beta[:, t, h, None, None] * w_t @ w_t.mT
            keys = torch.cat([keys @ reflection.mT, k[:, t, h, None]], 1)
            weights = ((q[:, t, h, None] @ keys.mT) / width**0.5).softmax(-1)
            rows.append((weights @ v[:, : t + 1, h])[:, 0])
        heads.append(torch.stack(rows, 1))
    return torch.cat(heads, -1) @ model.out.weight.T


@pytest.mark.parametrize(
    ("length", "options"), [(33, {}), (2 * CHUNK + 9, {}), (33, {"n_heads": 1, "d_conv": 1, "rank": 1})]
)
def test_is_what_the_paper_writes(length: int, options: dict[str, Any]) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length)


@pytest.mark.ci
def test_is_what_flash_linear_attention_computes() -> None:
    """Outputs and gradients, by its naive form, which computes in float32."""
    naive = peer("fla.ops.path_attn.naive", "einops").naive_path_attn
    model = build(torch.float32)

    def theirs(x: Tensor) -> Tensor:
        q, k, v, w, beta = inputs(model, x)
        z = naive(q, k, v, w, beta, torch.zeros_like(beta), scale=q.shape[-1] ** -0.5, chunk_size=16)
        return model.out(z.flatten(2))  # type: ignore[no-any-return]

    check_peer(model, theirs, length=80, tolerance=1e-5)


def test_without_reflections_it_is_attention_without_positions() -> None:
    model, plain = build(), Transformer(Transformer.Options(d_model=D, n_heads=H, positions="none")).double()
    x = torch.randn(2, CHUNK + 20, D, dtype=torch.float64)
    with torch.no_grad():
        plain.qkv.weight.copy_(torch.cat([getattr(model, name).weight for name in ("query", "key", "value")]))
        plain.out.weight.copy_(model.out.weight)
        assert not torch.allclose(model(x), plain(x), atol=1e-4)
        model.strength.bias.fill_(-1e4)
        torch.testing.assert_close(model(x), plain(x), rtol=1e-9, atol=1e-11)
