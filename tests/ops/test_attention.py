"""Attention: the fused kernels against the naive implementation, outputs and all gradients."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from regbench.ops.attention import OP, attention
from regbench.ops.backend import use_backend
from regbench.utils.errors import UserError


@pytest.mark.parametrize("length", [1, 2, 17, 64, 65])
def test_fused_equals_naive_with_all_gradients(length: int) -> None:
    torch.manual_seed(length)
    inputs = [torch.randn(2, 3, length, k, dtype=torch.float64, requires_grad=True) for k in (8, 8, 5)]
    weight = torch.randn(2, 3, length, 5, dtype=torch.float64)
    results = []
    for backend in ("torch", "naive"):
        out = attention(*inputs, backend=backend)
        results.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
    for fused, naive in zip(*results, strict=True):
        torch.testing.assert_close(fused, naive, rtol=1e-9, atol=1e-11)


def test_uniform_scores_average_the_past() -> None:
    v = torch.randn(1, 1, 6, 4)
    zero = torch.zeros(1, 1, 6, 4)
    expected = v.cumsum(2) / torch.arange(1, 7)[:, None]
    for backend in ("torch", "naive"):
        torch.testing.assert_close(attention(zero, zero, v, backend=backend), expected)


def test_what_ran_is_recorded_and_no_other_is_taken() -> None:
    x = torch.randn(1, 1, 3, 2)
    with use_backend("naive") as ran:
        attention(x, x, x)
    assert ran == {"attention": "naive"}
    with use_backend("auto") as ran:
        attention(x, x, x)
    assert ran == {"attention": "torch"}
    with pytest.raises(UserError, match="^attention has no backend 'fused'; known: flash-attn, naive, torch, triton$"):
        attention(x, x, x, backend="fused")


def test_the_kernels_of_our_own_run_when_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the type, and though they are installed: `auto` takes what has been measured."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flash_attn" else find("math"))
    cuda = torch.device("cuda")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        with use_backend("auto") as ran:
            OP.choose("auto", cuda, dtype)
        assert ran == {"attention": "torch"}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernels_of_our_own_are_chosen_and_refused_by_name() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        with use_backend("attention=triton") as ran:
            OP.choose("auto", torch.device("cuda"), dtype)
        assert ran == {"attention": "triton"}
    x = torch.randn(1, 1, 3, 2)
    with pytest.raises(UserError, match="^backend 'triton' of attention does not run on cpu; there: torch, naive$"):
        attention(x, x, x, backend="triton")
    with pytest.raises(
        UserError, match="^backend 'triton' of attention takes float16, bfloat16, float32, not float64$"
    ):
        OP.choose("triton", torch.device("cuda"), torch.float64)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"not \(1, 1, 3, 2\), \(1, 1, 4, 2\)"):
        attention(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2))
