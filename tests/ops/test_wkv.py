"""WKV: the fast implementations against the naive one, and all against the weighted mean that it is."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regbench.ops.wkv import WKVState, wkv
from tests.helpers.tensors import assert_same, gradients

pytestmark = pytest.mark.usefixtures("poison")

FAST = ["cpu", "chunked"]
EXACT = [pytest.param("cpu", marks=pytest.mark.ci), "chunked"]
"""For tests in float64, in which the kernels are compiled once more."""
BACKENDS = [*EXACT, "naive"]
LENGTHS = [1, 2, 3, 63, 64, 65, 127, 200]


class Inputs(NamedTuple):
    w: Tensor
    u: Tensor
    k: Tensor
    v: Tensor
    state: WKVState | None = None

    def given(self) -> list[Tensor]:
        """All that has a gradient."""
        return [*self[:4], *(self.state[:2] if self.state is not None else ())]

    def to(self, dtype: torch.dtype) -> Inputs:
        def leaf(tensor: Tensor) -> Tensor:
            return tensor.detach().to(dtype).requires_grad_()

        state = (
            None if self.state is None else WKVState(*map(leaf, self.state[:2]), self.state.scale.detach().to(dtype))
        )
        return Inputs(*map(leaf, self[:4]), state)


def make(batch: int, length: int, dim: int, state: bool = True, size: float = 3.0, strided: bool = False) -> Inputs:
    """Random inputs in float64, with keys of about `size`. `strided`: the last dimension of k and v is not contiguous."""
    generator = torch.Generator().manual_seed(batch + 7 * length + 31 * dim)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return drawn.repeat_interleave(2, -1)[..., ::2] if strided else drawn

    before = WKVState(normal(batch, dim), normal(batch, dim).exp(), normal(batch, dim)) if state else None
    k = size * normal(batch, length, dim)
    return Inputs(normal(dim).exp(), normal(dim), k, normal(batch, length, dim), before).to(torch.float64)


def everything(inputs: Inputs, backend: str) -> list[Tensor]:
    """z, the final state, and the gradient of every input for upstream gradients of z and of both sums."""
    z, (a, b, scale) = wkv(*inputs, backend=backend)
    return [scale, *gradients((z, a, b), inputs.given())]


def by_sums(inputs: Inputs) -> Tensor:
    """z_i as a softmax-weighted mean over all j <= i: log weights -(i - 1 - j) w + k_j for j < i, and u + k_i."""
    w, u, k, v, _ = inputs
    length = k.shape[1]
    i, j = torch.arange(length)[:, None], torch.arange(length)
    past = -((i - 1 - j)[..., None] * w) + k[:, None]
    now = (u + k)[:, None].expand_as(past)
    log_weight = torch.where((i == j)[..., None], now, past).masked_fill((j > i)[..., None], -torch.inf)
    return torch.einsum("bijd,bjd->bid", log_weight.softmax(2), v)


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("batch", "dim"), [(1, 1), (3, 5), (2, 65)])
def test_fast_is_naive(backend: str, batch: int, dim: int, length: int, state: bool) -> None:
    inputs = make(batch, length, dim, state)
    assert_same(everything(inputs, backend), everything(inputs, "naive"), 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_is_a_weighted_mean(backend: str, length: int) -> None:
    inputs = make(2, length, 3, state=False)
    z, expected = wkv(*inputs, backend=backend)[0], by_sums(inputs)
    torch.testing.assert_close(z, expected, rtol=1e-11, atol=1e-12)
    upstream = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(0))
    found, right = (torch.autograd.grad(out, inputs.given(), upstream, materialize_grads=True) for out in (z, expected))
    assert_same(list(found), list(right), 1e-11)


@pytest.mark.parametrize("backend", [*FAST, "naive"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.ci)])
def test_extreme_keys(backend: str, dtype: torch.dtype) -> None:
    """exp(80) squared is past float32, and exp(-80) squared is below it; a decay may be all but none, or total."""
    inputs = make(2, 65, 6, state=False)
    k = 80.0 * torch.sign(inputs.k)
    k[0] = 80.0
    k[1, :40] = -80.0
    u = torch.tensor([-80.0, 80.0, 0.0, 1.0, -1.0, 0.0], dtype=torch.float64)
    w = torch.tensor([1e-6, 1e-6, 1e-3, 1.0, 20.0, 200.0], dtype=torch.float64)
    inputs = inputs._replace(k=k, u=u, w=w).to(torch.float64)
    z = by_sums(inputs)
    exact = [z, *torch.autograd.grad(z.sum(), inputs.given())]
    ours = inputs.to(dtype)
    z, _ = wkv(*ours, backend=backend)
    found = [z, *torch.autograd.grad(z.sum(), ours.given())]
    assert all(tensor.isfinite().all() for tensor in found)
    # In float32 the spacing of numbers near 160 is 1.5e-5: so much may a log weight be off.
    assert_same(found, [tensor.to(dtype) for tensor in exact], 1e-11 if dtype == torch.float64 else 1e-4)


@pytest.mark.ci
def test_strided_and_expanded() -> None:
    inputs = make(3, 65, 5, strided=True)
    contiguous = Inputs(*(tensor.detach().contiguous() for tensor in inputs[:4]), inputs.state)
    strided = Inputs(*(tensor.repeat_interleave(2, -1)[..., ::2] for tensor in contiguous[:4]), inputs.state)
    assert not strided.k.is_contiguous()
    torch.testing.assert_close(wkv(*strided)[0], wkv(*contiguous)[0], rtol=0, atol=0)
    # The gradient of a sum is an expanded scalar, without memory of its own.
    *found, expected = (
        torch.autograd.grad(wkv(*inputs, backend=backend)[0].sum(), inputs.given()) for backend in [*FAST, "naive"]
    )
    for ours in found:
        assert_same(list(ours), list(expected), 1e-12)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.ci)])
def test_nan_is_not_hidden(backend: str, dtype: torch.dtype) -> None:
    inputs = make(1, 40, 3).to(dtype)
    v = inputs.v.detach().clone()
    v[0, 20, 1] = torch.nan
    z, _ = wkv(*inputs._replace(v=v), backend=backend)
    assert z[0, 20, 1].isnan()
    assert z[0, :20].isfinite().all()
    assert z[..., [0, 2]].isfinite().all()
