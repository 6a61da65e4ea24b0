"""Mamba: against the equations written out, and the starting values of the authors' code."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from architectures.mamba import Mamba
from tests.helpers.equations import check_equations, made

build = partial(made, Mamba, d_model=12, d_state=5)


def by_the_book(model: Mamba, x: Tensor) -> Tensor:
    """The block, written position by position and channel-wise from the paper's Section 3 and ICLL Eq. 92-94."""
    options = model.options
    assert isinstance(options, Mamba.Options)
    d_inner, width = options.d_inner, options.d_conv
    outputs, past = [], []
    S = x.new_zeros(x.shape[0], options.d_state, d_inner)
    A = -model.A_log.exp().T
    for x_i in x.unbind(1):
        projected = x_i @ model.in_proj.weight.T
        past.append(projected[:, :d_inner])
        r = projected[:, d_inner:]
        v = model.conv1d.bias.expand(x.shape[0], -1)
        for lag, old in enumerate(past[::-1][:width]):
            v = v + model.conv1d.weight[:, 0, width - 1 - lag] * old
        v = v * v.sigmoid()
        mixed = v @ model.x_proj.weight.T
        rank = model.dt_proj.in_features
        dt, B, C = mixed[:, :rank], mixed[:, rank : rank + options.d_state], mixed[:, rank + options.d_state :]
        delta = (1 + (dt @ model.dt_proj.weight.T + model.dt_proj.bias).exp()).log()
        S = torch.exp(delta[:, None] * A) * S + B[:, :, None] * (delta * v)[:, None]
        y = torch.einsum("bn,bnd->bd", C, S) + model.D * v
        outputs.append((y * r * r.sigmoid()) @ model.out_proj.weight.T)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("options", [{}, {"expand": 3, "d_conv": 1, "dt_rank": 2}, {"d_model": 1, "d_conv": 6}])
@pytest.mark.parametrize("length", [1, 33])
def test_is_what_the_papers_write(backend: str, options: dict[str, object], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("selective_scan",), backend=backend)


def test_starting_values() -> None:
    model = build(torch.float32, d_model=512, d_state=16)
    torch.testing.assert_close(-model.A_log.exp(), -torch.arange(1.0, 17).expand(1024, -1))
    assert torch.equal(model.D, torch.ones(1024))
    delta = F.softplus(model.dt_proj.bias.double())
    assert delta.min() >= 0.999e-3
    assert delta.max() <= 0.1001
    # Uniform in the logarithm: the quartiles lie where they should, to four standard errors.
    quartiles = delta.log10().quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(quartiles, torch.tensor([-2.5, -2.0, -1.5]).double(), rtol=0, atol=4 * 2 * 0.5 / 32)
    bound = 32**-0.5
    assert 0.99 * bound < model.dt_proj.weight.abs().max() <= bound


def test_names_and_shapes_are_those_of_the_authors() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in build(d_model=32, d_state=16).named_parameters()}
    assert shapes == {
        "A_log": (64, 16),
        "D": (64,),
        "in_proj.weight": (128, 32),
        "conv1d.weight": (64, 1, 4),
        "conv1d.bias": (64,),
        "x_proj.weight": (34, 64),
        "dt_proj.weight": (64, 2),
        "dt_proj.bias": (64,),
        "out_proj.weight": (32, 64),
    }
