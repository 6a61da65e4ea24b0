"""The delta rule against an outside witness. tests/ops/test_common.py has the fast implementations against the naive one."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.delta_rule import delta_rule
from regbench.utils.errors import UserError
from tests.helpers.tensors import gradients

pytestmark = pytest.mark.usefixtures("poison")

EXACT = [pytest.param("cpu", marks=pytest.mark.ci), "chunked"]
"""For tests in float64, in which the kernels are compiled once more."""
FORMS = [*EXACT, "naive"]
OP, ROUNDING = delta_rule, 2e-5
KINDS = ["delta", "positions", "channels", "general", "general-channels"]
"""What the correction is, and what decays: the delta rule alone, with a decay of each position, of each channel; a and b."""


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor | None = None
    log_decay: Tensor | None = None
    initial_state: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None

    def given(self) -> list[Tensor]:
        return [tensor for tensor in self if tensor is not None]

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(None if t is None else t.detach().to(dtype).requires_grad_() for t in self))


def make(shape: tuple[int, int, int, int, int], kind: str, state: bool = True, strided: bool = False) -> Inputs:
    """Random inputs in float64 for B, H, L, K, V. `strided`: cut from wider tensors, heads inside, as in a model."""
    batch, heads, length, width, dim = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(channels: int) -> Tensor:
        size = (batch, length, heads, channels) if strided else (batch, heads, length, channels)
        drawn = torch.randn(*size, dtype=torch.float64, generator=generator)
        return drawn.transpose(1, 2) if strided else drawn

    q, k, v, a, b, g = (normal(c) for c in (width, width, dim, width, width, width))
    k, a, b = (F.normalize(x, dim=-1) for x in (k, a, b))
    decays = {"delta": None, "general": F.logsigmoid(g[..., 0]), "positions": F.logsigmoid(g[..., 0])}
    general = kind.startswith("general")
    tensors = [
        *(q, k, v),
        None if general else 2 * normal(1)[..., 0].sigmoid(),
        decays.get(kind, F.logsigmoid(g)),
        torch.randn(batch, heads, width, dim, dtype=torch.float64, generator=generator) if state else None,
        *((a, b) if general else (None, None)),
    ]
    return Inputs(*(None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors))


def everything(inputs: Inputs, backend: str) -> list[Tensor]:
    return gradients(delta_rule(*inputs, backend=backend), inputs.given())


@pytest.mark.ci
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_is_what_flash_linear_attention_computes(form: str, kind: str) -> None:
    """Its reference functions, in float32. That of the general form reads the state before the decay."""
    pytest.importorskip("einops")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no GPU
        delta = pytest.importorskip("fla.ops.delta_rule.naive")
        gated = pytest.importorskip("fla.ops.gated_delta_rule.naive")
        kda = pytest.importorskip("fla.ops.kda.naive")
        general = pytest.importorskip("fla.ops.generalized_delta_rule.dplr.naive")
    inputs = make((2, 3, 45, 4, 6), kind).to(torch.float32)
    z, final = delta_rule(*inputs, backend=form)
    q, k, v, beta, g, state, a, b = inputs
    if kind.startswith("general"):
        assert a is not None
        assert g is not None
        g = g if g.dim() == 4 else g[..., None].expand(q.shape)
        expected, expected_final = general.dplr_recurrence(q * 2, k, v, a * g.exp(), b, g, state)
    elif kind == "delta":
        expected, expected_final = delta.delta_rule_recurrence(q * 2, k, v, beta, state)
    else:
        assert beta is not None
        assert g is not None
        inside = [x.transpose(1, 2) for x in (q, k, v, beta, g)]
        q, k, v, beta, g = inside
        others = {"scale": 1.0, "initial_state": state, "output_final_state": True}
        call = gated.naive_recurrent_gated_delta_rule if kind == "positions" else kda.naive_recurrent_kda
        expected, expected_final = call(q, k, v, beta=beta, g=g, **others)
        expected = expected.transpose(1, 2)
    torch.testing.assert_close(z, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(final, expected_final, rtol=1e-4, atol=1e-4)


def test_bad_input_is_refused_in_one_line() -> None:
    wide = torch.zeros(1, 1, 2, 257)
    with pytest.raises(UserError, match="^delta_rule: a key width of 257 is above 256, the largest$"):
        delta_rule(wide, wide, wide, beta=torch.zeros(1, 1, 2))
