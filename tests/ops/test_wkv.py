"""WKV: the fast implementations against the naive one, and all against the weighted mean that it is."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regbench.ops.backend import use_backend
from regbench.ops.wkv import WKVState, wkv
from regbench.utils.errors import UserError
from tests.helpers.tensors import assert_same, assert_same_bits_for_any_threads

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
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype) for out in (z, a, b)]
    return [z, a, b, scale, *torch.autograd.grad((z, a, b), inputs.given(), upstream)]


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


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("length", LENGTHS)
def test_float32(backend: str, length: int) -> None:
    """A fast implementation in float32 against the naive one in float64."""
    inputs = make(3, length, 5)
    exact = [tensor.float() for tensor in everything(inputs, "naive")]
    assert_same(everything(inputs.to(torch.float32), backend), exact, 1e-5)


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift", [-700.0, 90.0])
def test_only_differences_of_keys_matter(backend: str, shift: float) -> None:
    """A constant added to every key changes neither z nor the sums, only their units."""
    inputs = make(2, 40, 3, state=False)
    z, state = wkv(*inputs, backend=backend)
    moved, other = wkv(*inputs._replace(k=inputs.k + shift), backend=backend)
    torch.testing.assert_close(moved, z, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(other.a, state.a, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(other.scale, state.scale + shift, rtol=1e-10, atol=1e-10)


@pytest.mark.ci
def test_the_units_of_the_state_do_not_matter() -> None:
    inputs = make(2, 40, 3)
    assert inputs.state is not None
    a, b, scale = inputs.state
    other = inputs._replace(state=WKVState(a * 1e3, b * 1e3, scale - torch.tensor(1e3).double().log()))
    for backend in [*FAST, "naive"]:
        torch.testing.assert_close(
            wkv(*other, backend=backend)[0], wkv(*inputs, backend=backend)[0], rtol=1e-11, atol=1e-12
        )


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("cuts", [[1, 99], [32, 68], [40, 1, 59], [33, 31, 36]])
@pytest.mark.parametrize("state", [True, False])
def test_going_on_from_a_state(backend: str, cuts: list[int], state: bool) -> None:
    inputs = make(2, 100, 5, state)
    whole = everything(inputs, backend)
    pieces, carried = [], inputs.state
    for k, v in zip(inputs.k.split(cuts, 1), inputs.v.split(cuts, 1), strict=True):
        z, carried = wkv(inputs.w, inputs.u, k, v, carried, backend=backend)
        pieces.append(z)
    assert carried is not None
    outputs = (torch.cat(pieces, 1), carried.a, carried.b)
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(out.shape, dtype=torch.float64, generator=generator) for out in outputs]
    gradients = torch.autograd.grad(outputs, inputs.given(), upstream)
    assert_same([*outputs, carried.scale, *gradients], whole, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend: str) -> None:
    inputs = make(1, 35, 2, size=1.0) if backend == "chunked" else make(2, 5, 2, size=1.0)  # more than a chunk
    assert inputs.state is not None
    scale = inputs.state.scale

    def mean_and_true_sums(*tensors: Tensor) -> tuple[Tensor, ...]:
        z, state = wkv(*tensors[:4], WKVState(*tensors[4:], scale), backend=backend)
        return z, state.a * state.scale.exp(), state.b * state.scale.exp()

    # Finite differences move the scale, which has no gradient: what it takes from the sums it gives to their units.
    assert torch.autograd.gradcheck(mean_and_true_sums, tuple(inputs.given()))


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
    for gradients in found:
        assert_same(list(gradients), list(expected), 1e-12)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_is_computed_in_float32(backend: str, autocast: bool) -> None:
    inputs = make(2, 33, 4, state=False).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        z, state = wkv(*inputs, backend=backend)
    assert z.dtype == torch.bfloat16
    assert state.a.dtype == torch.float32
    expected = wkv(*inputs.to(torch.float32), backend="naive")[0]
    torch.testing.assert_close(z, expected.bfloat16(), rtol=1e-2, atol=1e-6)


def test_same_bits_for_any_number_of_threads() -> None:
    inputs = make(3, 130, 100).to(torch.float32)
    assert_same_bits_for_any_threads(lambda: everything(inputs, "cpu"), (1, 2))


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("batch", "length"), [(0, 5), (2, 0)])
def test_empty(backend: str, batch: int, length: int) -> None:
    inputs = make(batch, length, 3)
    z, final = wkv(*inputs, backend=backend)
    assert z.shape == (batch, length, 3)
    assert inputs.state is not None
    if length == 0:
        assert all(torch.equal(a, b) for a, b in zip(final, inputs.state, strict=True))


@pytest.mark.parametrize("wrong", ["w", "u", "v", "state"])
def test_wrong_shapes(wrong: str) -> None:
    inputs = make(2, 4, 3)
    broken = inputs._replace(**{wrong: WKVState.zeros(3, 3) if wrong == "state" else getattr(inputs, wrong)[..., :2]})
    with pytest.raises(UserError, match=rf"^wkv: {wrong}[.a-z]* should have shape \([^\n]*, but has \([^\n]*\)$"):
        wkv(*broken)
    with pytest.raises(UserError, match="k should have shape"):
        wkv(*inputs._replace(k=inputs.k[0]))


def test_what_ran_is_on_record() -> None:
    inputs = make(1, 3, 2)
    for asked, ran in (("auto", "cpu"), ("chunked", "chunked"), ("naive", "naive")):
        with use_backend(asked) as record:
            wkv(*inputs.to(torch.float32))
        assert record == {"wkv": ran}
