"""Linear attention: every implementation against sums over pairs. tests/ops/test_common.py has the fast against the naive one."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.linear_attention import linear_attention, pairs
from tests.helpers.tensors import assert_same, gradients

pytestmark = pytest.mark.usefixtures("poison")

EXACT = [pytest.param("cpu", marks=pytest.mark.ci), "chunked"]
"""For tests in float64, in which the kernels are compiled once more."""
BACKENDS = [*EXACT, "naive"]
OP, ROUNDING = linear_attention, 1e-5
DECAYS = ["none", "heads", "positions", "channels"]


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    initial_state: Tensor | None = None

    def given(self) -> list[Tensor]:
        return [tensor for tensor in self if tensor is not None]

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(None if t is None else t.detach().to(dtype).requires_grad_() for t in self))


def make(shape: tuple[int, int, int, int, int], decay: str, state: bool = True, strided: bool = False) -> Inputs:
    """Random inputs in float64 for B, H, L, K, V. `strided`: cut from wider tensors, heads inside, as in a model."""
    batch, heads, length, width, dim = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(*size: int) -> Tensor:
        if strided and len(size) > 1:
            b, h, n, *c = size
            return torch.randn(b, n, h, *c, 2, dtype=torch.float64, generator=generator)[..., 0].transpose(1, 2)
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    decays = {
        "none": None,
        "heads": F.logsigmoid(normal(heads)),
        "positions": F.logsigmoid(normal(batch, heads, length)),
        "channels": F.logsigmoid(normal(batch, heads, length, width)),
    }
    tensors = [
        normal(batch, heads, length, width),
        normal(batch, heads, length, width),
        normal(batch, heads, length, dim),
        decays[decay],
        normal(batch, heads, width, dim) if state else None,
    ]
    return Inputs(*(None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors))


def everything(inputs: Inputs, backend: str) -> list[Tensor]:
    return gradients(linear_attention(*inputs, backend=backend), inputs.given())


def by_pairs(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """ICLL Eq. 36-38 and 60-63: z_i is the sum of A_ij v_j over j <= i, and what is left of the initial state."""
    q, k, v, log_decay, state = inputs
    assert state is not None
    length = q.shape[2]
    if log_decay is None:
        log_decay = torch.zeros_like(q)
    elif log_decay.dim() == 1:
        log_decay = log_decay[None, :, None, None] * torch.ones_like(q)
    elif log_decay.dim() == 3:
        log_decay = log_decay[..., None] * torch.ones_like(q)
    b = log_decay.cumsum(2)
    past = torch.ones(length, length, dtype=torch.bool).tril()
    gaps = (b[:, :, :, None] - b[:, :, None]).masked_fill(~past[..., None], -torch.inf)
    scores = torch.einsum("bhik,bhjk,bhijk->bhij", q, k, gaps.exp())
    z = scores @ v + (q * b.exp()) @ state
    final = (k * (b[:, :, -1:] - b).exp()).mT @ v + b[:, :, -1].exp()[..., None] * state
    return z, final


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("decay", DECAYS)
def test_is_the_sum_over_pairs(backend: str, decay: str) -> None:
    inputs = make((2, 2, 50, 4, 6), decay)
    assert_same(everything(inputs, backend), gradients(by_pairs(inputs), inputs.given()), 1e-11)


@pytest.mark.parametrize("decay", DECAYS[1:3])
@pytest.mark.parametrize("length", [1, 32, 77, 300])
def test_all_pairs_of_a_short_sequence(decay: str, length: int) -> None:
    """In one block of queries and in several, of either size, with the final state."""
    inputs = make((2, 3, length, 4, 6), decay, state=False, strided=True)
    q, k, v, log_decay, _ = inputs
    assert log_decay is not None
    read, state = pairs.reader(k, v, log_decay, final=True)
    naive = linear_attention(q, k, v, log_decay, torch.zeros_like(state), "naive")
    assert_same(gradients((read(q), state), inputs.given()), gradients(naive, inputs.given()), 1e-11)


@pytest.mark.parametrize("backend", ["auto", "chunked", "naive"])
@pytest.mark.parametrize("decay", DECAYS)
def test_no_position_leaves_the_state(backend: str, decay: str) -> None:
    q, k, v, log_decay, state = make((2, 3, 0, 4, 6), decay)
    assert state is not None
    for before in (state, torch.zeros_like(state)):
        z, after = linear_attention(q, k, v, log_decay, before, backend)
        assert z.shape == (2, 3, 0, 6)
        assert torch.equal(after, before)
