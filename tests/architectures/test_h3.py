"""H3: against the papers' equations written out position by position."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from architectures.h3 import H3
from tests.helpers.equations import check_equations, made

OPTIONS = [{}, {"head_dim": 2, "init": "inv"}, {"head_dim": 6, "d_shift": 1}, {"d_model": 1, "d_state": 2}]
build = partial(made, H3, d_model=6, d_state=8, d_shift=5)


def by_the_book(model: H3, x: Tensor) -> Tensor:
    """ICLL Eq. 81-87 head by head, with dense state matrices: the shift, and the diagonal discretised by its own formula."""
    options = model.options
    assert isinstance(options, H3.Options)
    width, size, taps = options.d_model, options.head_dim, options.d_shift
    shift = torch.diag(torch.ones(taps - 1, dtype=x.dtype), -1)  # moves each entry of the state on by one
    first = torch.eye(taps, dtype=x.dtype)[0]
    A = -model.ssm.log_A_real.exp() + 1j * model.ssm.A_imag
    A_bar = torch.exp(model.ssm.log_dt.exp()[:, None] * A)
    B_bar, C = (A_bar - 1) / A, torch.view_as_complex(model.ssm.C)
    outputs = []
    keys = x.new_zeros(x.shape[0], width, taps)
    S = torch.zeros(x.shape[0], width // size, size, size, options.d_state // 2, dtype=A.dtype)
    for x_i in x.unbind(1):
        q, k, v = (x_i @ model.qkv.weight.T + model.qkv.bias).split(width, dim=-1)
        keys = keys @ shift.T + k[..., None] * first
        k = (keys * model.shift).sum(-1) + model.shift_D * k
        q, k, v = (part.view(-1, width // size, size) for part in (q, k, v))
        outer = k[..., :, None] * v[..., None, :]
        S = A_bar[:, None, None] * S + B_bar[:, None, None] * outer[..., None]
        z = 2 * (C[:, None, None] * S).sum(-1).real + model.ssm.D[:, None, None] * outer
        z = torch.einsum("bhi,bhij->bhj", q, z)
        outputs.append(z.flatten(1) @ model.out.weight.T + model.out.bias)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("backend", ["fft", "naive"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("length", [1, 33])
def test_is_what_the_papers_write(backend: str, options: dict[str, object], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("long_conv",), backend=backend)
