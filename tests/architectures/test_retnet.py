"""RetNet: against the attention form of its equations, and the decays of the paper."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from architectures.retnet import GAIN, RetNet
from tests.helpers.equations import check_equations, made

build = partial(made, RetNet, d_model=12, n_heads=3)


def turned(x: Tensor) -> Tensor:
    """RoPE (B, L, K) by complex numbers: channels c and c + K/2 as one number, times e^(i t theta_c)."""
    half = x.shape[-1] // 2
    theta = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * theta
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def by_the_book(model: RetNet, x: Tensor) -> Tensor:
    """ICLL Eq. 34-40, a head at a time, with all pairs of positions; and the group norm that ICLL leaves out."""
    outputs = []
    n_heads, length = model.n_heads, x.shape[1]
    gap = torch.arange(length)[:, None] - torch.arange(length)
    for h in range(n_heads):
        q, k, v, r = (
            x @ linear.weight.chunk(n_heads)[h].T for linear in (model.query, model.key, model.value, model.gate)
        )
        A = torch.einsum("bik,bjk->bij", turned(q), turned(k)) / q.shape[-1] ** 0.5
        z = (A * model.log_decay[h].exp() ** gap.clamp(min=0) * (gap >= 0)) @ v
        z = (z - z.mean(-1, keepdim=True)) / (z.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        outputs.append(r * r.sigmoid() * z)
    return torch.cat(outputs, -1) @ model.out.weight.T


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("options", [{}, {"expand_v": 1, "n_heads": 1}, {"d_model": 24, "n_heads": 6}])
@pytest.mark.parametrize("length", [1, 45])
def test_is_what_the_papers_write(backend: str, options: dict[str, object], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("linear_attention",), backend=backend)


def test_decays_are_those_of_the_paper() -> None:
    """Sun et al. 2023, Eq. 8: gamma = 1 - 2^(-5 - arange(0, h))."""
    decay = build(torch.float32, d_model=64, n_heads=4).log_decay.exp()
    torch.testing.assert_close(decay, torch.tensor([31 / 32, 63 / 64, 127 / 128, 255 / 256]))


def test_starting_values() -> None:
    model = build(d_model=64, n_heads=4)
    for linear, gain in (
        (model.query, GAIN),
        (model.key, GAIN),
        (model.value, GAIN),
        (model.gate, GAIN),
        (model.out, 1),
    ):
        bound = gain * (6 / sum(linear.weight.shape)) ** 0.5
        assert 0.99 * bound < linear.weight.abs().max() <= bound * (1 + 1e-6)
