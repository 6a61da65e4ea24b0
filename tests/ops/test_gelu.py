"""GELU: the kernel against the formula, values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from regbench.ops.gelu import gelu


def formula(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())


def gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape)
    return torch.autograd.grad(y, x, weights)[0]


@pytest.mark.ci
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5, 7), (4097,), (2, 4096, 2)])
def test_equals_the_formula_with_its_gradient(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = (3 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    y, right = gelu(x), formula(x)
    torch.testing.assert_close(y, right, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient(y, x), gradient(right, x), rtol=1e-12, atol=1e-14)


def test_float32_is_within_its_rounding_over_the_whole_range() -> None:
    """The tails too: an exponential that overflows gives 0 for very negative numbers and x for very positive ones."""
    x = torch.cat([torch.linspace(-50, 50, 20001), torch.tensor([-1e30, -3e4, 3e4, 1e18])]).requires_grad_()
    exact = x.detach().double().requires_grad_()
    y, right = gelu(x), formula(exact)
    torch.testing.assert_close(y.double(), right, rtol=2e-6, atol=1e-6)
    inner = x.abs() < 1e6  # the formula's own gradient is 0 times infinity beyond
    torch.testing.assert_close(gradient(y, x)[inner].double(), gradient(right, exact)[inner], rtol=5e-6, atol=5e-6)
    assert gelu(torch.tensor([float("nan")])).isnan().all()


def test_a_view_that_is_not_contiguous_and_the_number_of_threads_change_nothing() -> None:
    x = torch.randn(1100, 1000)  # large enough to be shared among threads
    whole = gelu(x.T.contiguous())
    assert torch.equal(gelu(x.T), whole)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(gelu(x.T), whole)
    finally:
        torch.set_num_threads(threads)


def test_half_precision_is_pytorchs() -> None:
    x = torch.randn(50).bfloat16()
    assert torch.equal(gelu(x), F.gelu(x, approximate="tanh"))
