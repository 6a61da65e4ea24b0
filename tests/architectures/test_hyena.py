"""Hyena: against the papers' equations with sums over all pairs, and its filters."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from architectures.hyena import SHORT, Hyena, Sine
from tests.helpers.equations import check_equations, made

build = partial(made, Hyena, d_model=6, max_length=64, d_filter=8, bands=4)


def filter_at(model: Hyena, lag: int) -> Tensor:
    """The filters at one lag, (N, D), from the formulas: encoding, network, window."""
    options = model.options
    assert isinstance(options, Hyena.Options)
    t = lag / options.max_length
    bands = model.filter.encoding.tolist()
    h = torch.tensor([t, *(math.cos(f * t) for f in bands), *(-math.sin(f * t) for f in bands)], dtype=torch.float64)
    for layer in model.filter.network:
        if isinstance(layer, Sine):
            h = torch.sin(layer.frequency * h)
        else:
            assert isinstance(layer, torch.nn.Linear)
            h = layer.weight @ h + (0 if layer.bias is None else layer.bias)
    return h.view(options.order, options.d_model) * torch.exp(-model.filter.decay * t)


def by_the_book(model: Hyena, x: Tensor) -> Tensor:
    """ICLL Eq. 88-91, a position at a time and every convolution as a sum."""
    options = model.options
    assert isinstance(options, Hyena.Options)
    length, taps = x.shape[1], model.short.weight[:, 0]
    projected = x @ model.in_proj.weight.T + model.in_proj.bias
    short = torch.stack(
        [
            model.short.bias + sum(taps[:, SHORT - 1 - lag] * projected[:, t - lag] for lag in range(min(t + 1, SHORT)))
            for t in range(length)
        ],
        dim=1,
    )
    z, *gates = short.split(options.d_model, dim=-1)
    filters = [filter_at(model, lag) for lag in range(length)]
    for n, gate in enumerate(gates):
        convolved = [sum(filters[t - s][n] * z[:, s] for s in range(t + 1)) for t in range(length)]
        z = gate * (torch.stack(convolved, dim=1) + model.skip[n] * z)
    return z @ model.out_proj.weight.T + model.out_proj.bias


@pytest.mark.parametrize("backend", ["fft", "naive"])
@pytest.mark.parametrize("options", [{}, {"order": 1, "n_inner": 0}, {"order": 3, "bands": 1}, {"d_model": 1}])
@pytest.mark.parametrize("length", [1, 2, 33])
def test_is_what_the_papers_write(backend: str, options: dict[str, object], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("long_conv",), backend=backend)


def test_filters_are_functions_of_the_position() -> None:
    """No length but max_length enters them."""
    model = build()
    assert torch.equal(model.filter(0, 50)[..., 20:], model.filter(20, 50))


def test_the_window_closes_at_the_papers_rates() -> None:
    model = build(max_length=100)
    at_30, at_150 = torch.exp(-model.filter.decay * 0.3), torch.exp(-model.filter.decay * 1.5)
    torch.testing.assert_close(at_150[0], torch.tensor(0.01).double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(at_30[-1], torch.tensor(0.01).double(), rtol=1e-5, atol=0)
    assert (model.filter.decay.diff() > 0).all()
