"""Based: against its polynomial written out, and flash-linear-attention's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from architectures.based import CHUNK, Based
from regbench.models.rotary import rotate
from tests.helpers.equations import check_equations, made
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
build = partial(made, Based, d_model=D, n_heads=H, feature_dim=5, window=7)


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Arora et al. 2024, section 4, a head at a time, with all weights: no feature map."""
    heads, length, width = model.n_heads, x.shape[1], D // model.n_heads
    far, near = [], []
    for h in range(heads):
        q, k, v = (x @ linear.weight.chunk(heads)[h].T for linear in (model.query, model.key, model.value))
        s = q @ k.mT / q.shape[-1] ** 0.5
        weights = (1 + s + s**2 / 2).tril()
        far.append(weights @ v / weights.sum(-1, keepdim=True))
        if model.window:
            q, k, v = (x @ part.chunk(heads)[h].T for part in model.local.weight.chunk(3))
            q, k = rotate(q[:, None])[:, 0], rotate(k[:, None])[:, 0]
            weights = (q @ k.mT / width**0.5).exp().tril().triu(1 - model.window)
            near.append(weights @ v / weights.sum(-1, keepdim=True))
    assert length == x.shape[1]
    return torch.cat([*far, *near], -1) @ model.out.weight.T


@pytest.mark.parametrize(
    "options", [{}, {"window": 1, "n_heads": 1}, {"window": 0, "feature_dim": 1}, {"window": 0, "n_heads": 1}]
)
@pytest.mark.parametrize("length", [1, 45, 2 * CHUNK + 9])
def test_is_what_the_paper_writes(options: dict[str, Any], length: int) -> None:
    model = build(**options)
    if length > 1 and model.window != 1:  # a window of one position has nothing to choose from: its queries are idle
        check_equations(model, lambda x: by_the_book(model, x), length)
    else:
        x = torch.randn(2, length, D, dtype=torch.float64)
        torch.testing.assert_close(model(x), by_the_book(model, x), rtol=1e-10, atol=1e-11)


@pytest.mark.ci
def test_without_its_window_it_is_what_flash_linear_attention_computes() -> None:
    naive = peer("fla.ops.based.naive", "einops").naive_parallel_based
    model = build(window=0)

    def theirs(x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (H, -1)).transpose(1, 2) for linear in (model.query, model.key, model.value))
        return model.out(naive(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    check_peer(model, theirs, tolerance=5e-6)  # 1e-6 is added to its divisor
