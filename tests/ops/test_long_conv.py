"""The long convolution: the transform against the sum over all pairs, and both against an outside witness."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from torch import Tensor

from regbench.ops.long_conv import fft, long_conv
from regbench.utils.errors import UserError
from tests.helpers.tensors import assert_same

pytestmark = pytest.mark.usefixtures("poison")

BACKENDS = ["fft", "naive"]
LENGTHS = [1, 2, 3, 63, 64, 65, 127, 200]


def make(batch: int, length: int, dim: int, width: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, kernel and skip."""
    generator = torch.Generator().manual_seed(batch + 7 * length + 31 * dim + 101 * width)
    shapes = ((batch, length, dim), (dim, width), (dim,))
    return [torch.randn(s, dtype=torch.float64, generator=generator).to(dtype).requires_grad_() for s in shapes]


def everything(inputs: list[Tensor], backend: str) -> list[Tensor]:
    """y, and the gradient of every input."""
    y = long_conv(*inputs, backend=backend)
    upstream = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(y.dtype)
    return [y, *torch.autograd.grad(y, inputs, upstream)]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("width", ["L", 1, 7, 90])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(("batch", "dim"), [(1, 1), (3, 5)])
def test_fft_is_naive(batch: int, dim: int, length: int, width: int | str, skip: bool) -> None:
    inputs = make(batch, length, dim, length if isinstance(width, str) else width)
    inputs = inputs if skip else inputs[:2]
    assert_same(everything(inputs, "fft"), everything(inputs, "naive"), 1e-13)


@pytest.mark.parametrize("length", LENGTHS)
def test_float32(length: int) -> None:
    """The fast implementation in float32 against the naive one in float64."""
    exact = [tensor.float() for tensor in everything(make(3, length, 5, length), "naive")]
    assert_same(everything(make(3, length, 5, length, torch.float32), "fft"), exact, 2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [5, 100])
def test_is_a_linear_filter(backend: str, width: int) -> None:
    x, kernel, skip = (tensor.detach() for tensor in make(2, 100, 3, width))
    y = long_conv(x, kernel, skip, backend=backend)
    for d in range(3):
        expected = lfilter(kernel[d].numpy(), 1.0, x[..., d].numpy(), axis=1) + float(skip[d]) * x[..., d].numpy()
        np.testing.assert_allclose(y[..., d].numpy(), expected, rtol=1e-11, atol=1e-12)


def test_only_the_gradients_asked_for() -> None:
    x, kernel, _ = make(2, 20, 3, 20)
    for one, other in ((x, kernel.detach()), (kernel, x.detach())):
        pair = (one, other) if one is x else (other, one)
        upstream = torch.ones(2, 20, 3, dtype=torch.float64)
        found, expected = (torch.autograd.grad(long_conv(*pair, backend=f), one, upstream) for f in BACKENDS)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 2 * 3 * 40, 10**9])
def test_however_many_sequences_are_transformed_at_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make(5, 20, 3, 20)
    monkeypatch.setattr(fft, "AT_ONCE", at_once)  # one of the five, two and a rest, or all
    assert_same(everything(inputs, "fft"), everything(inputs, "naive"), 1e-13)


def test_strided() -> None:
    x, kernel, skip = make(3, 65, 5, 65)
    strided = [tensor.repeat_interleave(2, -1)[..., ::2] for tensor in (x, kernel, skip)]
    assert not strided[0].is_contiguous()
    torch.testing.assert_close(long_conv(*strided), long_conv(x, kernel, skip), rtol=0, atol=0)


def test_sizes_are_the_next_that_factor() -> None:
    assert [fft.good_size(n) for n in (1, 2, 3, 7, 11, 13, 127, 799, 2043)] == [2, 2, 4, 8, 12, 16, 128, 800, 2048]


def test_wrong_shapes() -> None:
    x, kernel, skip = make(2, 4, 3, 4)
    for name, wrong in (
        ("x", (x[0], kernel, skip)),
        ("kernel", (x, kernel.mT, skip)),
        ("kernel", (x, kernel[:, :0], skip)),
        ("skip", (x, kernel, skip[:2])),
    ):
        with pytest.raises(UserError, match=rf"^long_conv: {name} should have shape \([^\n]*, but has \([^\n]*\)$"):
            long_conv(*wrong)
