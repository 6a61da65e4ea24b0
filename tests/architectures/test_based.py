"""Based: against its polynomial written out, flash-linear-attention's, and linear attention with that feature map."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from architectures.based import CHUNK, Based, taylor
from regbench.models.rotary import rotate
from regbench.utils.errors import UserError
from tests.helpers.equations import check_equations
from tests.helpers.peers import check_peer, peer

D, H = 12, 3


def build(dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    torch.manual_seed(0)
    return Based(Based.Options(**{"d_model": D, "n_heads": H, "feature_dim": 5, "window": 7, **options})).to(dtype)


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


def test_a_state_is_continued_over_chunks_of_any_length() -> None:
    model, x = build(), torch.randn(2, 3 * CHUNK, D, dtype=torch.float64)
    state, pieces = model.init_state(2, dtype=x.dtype), []
    with torch.no_grad():
        for part in x.split([1, CHUNK + 20, 7, CHUNK, CHUNK - 28], 1):
            y, state = model.advance(part, state)
            pieces.append(y)
        torch.testing.assert_close(torch.cat(pieces, 1), model(x), rtol=1e-9, atol=1e-11)


def test_the_features_are_a_taylor_series_of_the_exponential() -> None:
    q, k = torch.randn(2, 40, 6, dtype=torch.float64)
    s = (q * k).sum(-1) / 6**0.5
    torch.testing.assert_close((taylor(q) * taylor(k)).sum(-1), 1 + s + s**2 / 2)
    assert taylor(q).shape[-1] == Based.Options(feature_dim=6).features == 28
    small = 0.01 * q
    apart = (taylor(small) * taylor(k)).sum(-1) - ((small * k).sum(-1) / 6**0.5).exp()
    assert 0 < float(apart.abs().max()) < 1e-5


@pytest.mark.ci
def test_the_features_are_those_of_flash_linear_attention() -> None:
    theirs = peer("fla.modules.feature_map", "einops").TaylorFeatureMap(5)
    q, k = torch.randn(2, 40, 5, dtype=torch.float64)
    torch.testing.assert_close((taylor(q) * taylor(k)).sum(-1), (theirs(q) * theirs(k)).sum(-1))
    assert theirs(q).shape == taylor(q).shape


def test_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="rotary positions need an even head width, not 3"):
        build(n_heads=4)
    build(n_heads=4, window=0)
