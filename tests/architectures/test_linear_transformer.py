"""The linear transformer: against the attention form of its equations."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from architectures.linear_transformer import TINY, LinearTransformer
from tests.helpers.equations import check_equations, made

MAPS = ["identity", "elu", "relu"]
build = partial(made, LinearTransformer, d_model=12, n_heads=3)


def by_the_book(model: LinearTransformer, x: Tensor) -> Tensor:
    """ICLL Eq. 26-30, a head at a time, with all pairs of positions; with weights that sum to one for a positive map."""
    outputs = []
    width = model.width
    past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    for h in range(model.n_heads):
        own = slice(h * width, (h + 1) * width)
        q, k, v = (x @ linear.weight[own].T for linear in (model.query, model.key, model.value))
        if model.feature_map == "identity":
            A = torch.einsum("bik,bjk->bij", q, k) / width**0.5
        elif model.feature_map == "elu":
            phi_q, phi_k = (torch.where(y > 0, y + 1, y.exp()) for y in (q, k))
            A = torch.einsum("bik,bjk->bij", phi_q, phi_k)
        else:
            A = torch.einsum("bik,bjk->bij", q.clamp(min=0), k.clamp(min=0))
        A = A * past
        if model.feature_map != "identity":
            A = A / (A.sum(-1, keepdim=True) + TINY)
        outputs.append(A @ v)
    return torch.cat(outputs, -1) @ model.out.weight.T


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("length", [1, 45])
def test_is_what_the_papers_write(backend: str, feature_map: str, length: int) -> None:
    model = build(feature_map=feature_map)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("linear_attention",), backend=backend)


def test_relu_with_no_feature_on_is_finite() -> None:
    model = build(feature_map="relu")
    with torch.no_grad():
        model.key.weight.abs_().neg_()
    x = torch.ones(1, 5, 12, dtype=torch.float64)
    y = model(x)
    assert torch.equal(y, torch.zeros_like(y))
