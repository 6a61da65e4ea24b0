"""The selective scan: the fast implementations against the naive one, and all against what they must equal in closed form."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from torch import Tensor

from regbench.ops._numba import exp2
from regbench.ops.selective_scan import cpu, selective_scan
from tests.helpers.tensors import assert_same, bytes_kept, gradients

pytestmark = pytest.mark.usefixtures("poison")

FAST = ["cpu", "chunked"]
EXACT = [pytest.param("cpu", marks=pytest.mark.ci), "chunked"]
"""For tests in float64, in which the kernels are compiled once more."""
BACKENDS = [*EXACT, "naive"]


class Inputs(NamedTuple):
    x: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    initial_state: Tensor | None = None

    def given(self) -> list[Tensor]:
        return [tensor for tensor in self if tensor is not None]

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(None if t is None else t.detach().to(dtype).requires_grad_() for t in self))


def make(
    batch: int, length: int, dim: int, n_state: int, skip: bool = True, state: bool = True, strided: bool = False
) -> Inputs:
    """Random inputs in float64. `strided`: every tensor is a view whose last dimension is not contiguous."""
    generator = torch.Generator().manual_seed(batch + 7 * length + 31 * dim + 101 * n_state)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return drawn.repeat_interleave(2, -1)[..., ::2] if strided else drawn

    tensors = [
        normal(batch, length, dim),
        torch.nn.functional.softplus(normal(batch, length, dim) - 1),
        -torch.exp(normal(dim, n_state)),
        normal(batch, length, n_state),
        normal(batch, length, n_state),
        normal(dim) if skip else None,
        normal(batch, dim, n_state) if state else None,
    ]
    return Inputs(*(None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors))


def everything(inputs: Inputs, backend: str) -> list[Tensor]:
    """y, the final state, and the gradient of every input for upstream gradients of both."""
    return gradients(selective_scan(*inputs, backend=backend), inputs.given())


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 63, 64, 65, 127])
@pytest.mark.parametrize(("batch", "dim", "n_state"), [(1, 1, 1), (3, 5, 3), (1, 32, 4), (2, 65, 1), (3, 33, 7)])
def test_fast_is_naive(backend: str, batch: int, length: int, dim: int, n_state: int) -> None:
    inputs = make(batch, length, dim, n_state)
    assert_same(everything(inputs, backend), everything(inputs, "naive"), 1e-12)


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("strided", [True, False])
def test_options_and_layouts(backend: str, skip: bool, state: bool, strided: bool) -> None:
    inputs = make(3, 65, 5, 3, skip, state, strided)
    assert inputs.x.is_contiguous() != strided
    assert_same(everything(inputs, backend), everything(inputs, "naive"), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.ci)])
def test_gradients_of_a_sum(dtype: torch.dtype) -> None:
    """The upstream gradient is then an expanded scalar, without memory of its own, and the final state has none."""
    inputs = make(2, 40, 3, 2).to(dtype)
    *found, expected = (
        torch.autograd.grad(selective_scan(*inputs, backend=backend)[0].sum(), inputs.given())
        for backend in [*FAST, "naive"]
    )
    for ours in found:
        assert_same(list(ours), list(expected), 1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_constant_parameters_are_a_linear_filter(backend: str) -> None:
    """For one channel and constant parameters, y is x through filters with one pole each: an outside witness."""
    length, n_state = 100, 4
    rng = np.random.default_rng(0)
    x, a, b, c = rng.normal(size=length), -rng.exponential(size=n_state), *rng.normal(size=(2, n_state))
    delta, skip = 0.3, 0.7
    expected = skip * x
    for n in range(n_state):
        expected += lfilter([c[n] * delta * b[n]], [1.0, -np.exp(delta * a[n])], x)
    tensor = torch.from_numpy
    y, _ = selective_scan(
        tensor(x).view(1, -1, 1),
        torch.full((1, length, 1), delta, dtype=torch.float64),
        tensor(a).view(1, -1),
        tensor(b).expand(1, length, -1),
        tensor(c).expand(1, length, -1),
        torch.tensor([skip], dtype=torch.float64),
        backend=backend,
    )
    np.testing.assert_allclose(y.flatten().numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", EXACT)
def test_nothing_of_the_size_of_all_states_is_kept(backend: str) -> None:
    """What waits for the backward pass: the inputs and N / CHUNK times x, against N times x for all states."""
    batch, length, dim, n_state = 2, 256, 64, 16
    inputs = make(batch, length, dim, n_state).to(torch.float32)
    kept = bytes_kept(lambda: selective_scan(*inputs, backend=backend))
    all_states = 4 * batch * length * dim * n_state
    chunk_starts = 4 * batch * (length // cpu.CHUNK + 1) * n_state * dim
    others = sum(4 * tensor.numel() for tensor in inputs.given())
    assert chunk_starts <= kept <= others + chunk_starts < all_states


@numba.njit
def _exp2(values: np.ndarray, out: np.ndarray) -> None:
    for i in range(values.size):
        out[i] = exp2(values[i])


def test_power_of_two() -> None:
    """Within 1.5 ulp of the true value where that is a normal number, and right at both ends."""
    values = np.concatenate([np.linspace(-125.499, 127.999, 2_000_003), np.linspace(-1e-3, 1e-3, 200_001)])
    values = values.astype(np.float32)
    out = np.empty_like(values)
    _exp2(values, out)
    expected = np.exp2(values.astype(np.float64))
    assert np.max(np.abs(out - expected) / np.spacing(expected.astype(np.float32))) < 1.5
    ends = np.array([0, -1, -125, -126, -290, -1e30, -np.inf, 127, 128, 1e30, np.inf, np.nan], np.float32)
    out = np.empty_like(ends)
    _exp2(ends, out)
    np.testing.assert_array_equal(out, [1, 0.5, 2.0**-125, 0, 0, 0, 0, 2.0**127, np.inf, np.inf, np.inf, np.nan])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.ci)])
@pytest.mark.parametrize("scale", [1.0, 20.0, 200.0])
def test_strong_decay(backend: str, dtype: torch.dtype, scale: float) -> None:
    """delta A down to -200, where exp is 0 in float32: outputs and gradients stay those of the naive implementation."""
    inputs = make(2, 65, 5, 3)
    delta = inputs.delta / inputs.delta.max() * scale
    inputs = inputs._replace(A=inputs.A / inputs.A.abs().max(), delta=delta).to(dtype)
    assert float((inputs.delta.max() * inputs.A.min()).detach()) == pytest.approx(-scale)
    assert_same(everything(inputs, backend), everything(inputs, "naive"), 1e-12 if dtype == torch.float64 else 2e-6)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.ci)])
def test_overflow_and_nan_are_not_hidden(backend: str, dtype: torch.dtype) -> None:
    """A state that grows ends in infinity, and a NaN reaches all later outputs of its channel and no other."""
    inputs = make(1, 40, 3, 2).to(dtype)
    growing, _ = selective_scan(inputs.x, inputs.delta * 1e3, -inputs.A, *inputs[3:], backend=backend)
    assert not growing[:, -1].isfinite().any()
    x = inputs.x.detach().clone()
    x[0, 20, 1] = torch.nan
    y, _ = selective_scan(x, *inputs[1:], backend=backend)
    assert y[0, 20:, 1].isnan().all()
    assert y[0, :20].isfinite().all()
    assert y[..., [0, 2]].isfinite().all()
