"""Sparse attention (MoBA): against its choice of blocks written out, and flash-linear-attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from architectures.sparse_attention import CHUNK, SparseAttention
from tests.helpers.equations import check_equations, made
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
build = partial(made, SparseAttention, moved=True, d_model=D, n_heads=H)


def turned(x: Tensor) -> Tensor:
    """Rotary positions, as complex numbers: (B, L, H, K) -> (B, L, H, K)."""
    a, b = x.chunk(2, -1)
    half = a.shape[-1]
    angle = torch.arange(x.shape[1])[:, None, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle).to(torch.complex(a, b).dtype)
    return torch.cat([z.real, z.imag], -1)


def inputs(model: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, (B, L, H, K)."""
    q, k, v = ((x @ part.weight.T).unflatten(-1, (model.n_heads, -1)) for part in (model.query, model.key, model.value))
    return (turned(q), turned(k), v) if model.rotary else (q, k, v)


def chosen(model: Any, q: Tensor, k: Tensor) -> list[int]:
    """The blocks of the last of these positions: q (K) and k (t, K) of one head."""
    size, t = model.options.block_size, len(k) - 1
    own = t // size
    scores = [float(q.detach() @ k.detach()[n * size : (n + 1) * size].mean(0)) for n in range(own)]
    return [own, *sorted(range(own), key=lambda n: -scores[n])[: model.options.blocks - 1]]


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Lu et al. 2025, section 2.2, a head and a position at a time."""
    q, k, v = inputs(model, x)
    size, sequences = model.options.block_size, []
    for n in range(len(x)):
        heads = []
        for h in range(model.n_heads):
            rows = []
            for t in range(x.shape[1]):
                blocks = chosen(model, q[n, t, h], k[n, : t + 1, h])
                read = [j for j in range(t + 1) if j // size in blocks]
                weights = (k[n, read, h] @ q[n, t, h] / q.shape[-1] ** 0.5).softmax(0)
                rows.append(weights @ v[n, read, h])
            heads.append(torch.stack(rows))
        sequences.append(torch.stack(heads, 1))
    return torch.stack(sequences).flatten(2) @ model.out.weight.T


@pytest.mark.parametrize(
    ("length", "options"),
    [
        (45, {"block_size": 5}),
        (CHUNK + 40, {}),
        (33, {"block_size": 3, "blocks": 1, "positions": "none"}),
        (33, {"block_size": 1, "blocks": 4, "n_heads": 1}),
    ],
)
def test_is_what_the_paper_writes(length: int, options: dict[str, Any]) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length)


@pytest.mark.ci
@pytest.mark.parametrize("blocks", [1, 3])
def test_reads_as_flash_linear_attention_reads_those_blocks(blocks: int) -> None:
    """Outputs and gradients, in float32 as its naive form computes. Its own MoBA needs a GPU, so the blocks are chosen here."""
    naive = peer("fla.ops.nsa.naive", "einops").naive_nsa_selection
    model = build(torch.float32, block_size=8, blocks=blocks)

    def theirs(x: Tensor) -> Tensor:
        q, k, v = inputs(model, x)
        indices = torch.full((*q.shape[:3], blocks), -1)
        for n, t, h in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
            found = chosen(model, q[n, t, h], k[n, : t + 1, h])
            indices[n, t, h, : len(found)] = torch.tensor(found)
        z = naive(q, k, v, indices, block_size=8, scale=q.shape[-1] ** -0.5)
        return z.flatten(2) @ model.out.weight.T  # type: ignore[no-any-return]

    check_peer(model, theirs, length=50, tolerance=1e-5)
