"""Attention: the fused kernels against the naive implementation, outputs and all gradients."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from regbench.ops.attention import OP, attention
from regbench.ops.backend import use_backend
from regbench.utils.errors import UserError


def everything(inputs: list[Tensor], backend: str, window: int = 0) -> list[Tensor]:
    """The outputs, and the gradient of each input, for a fixed gradient from above."""
    out = attention(*inputs, backend=backend, window=window)
    above = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)
    return [out, *torch.autograd.grad(out, inputs, above)]


def leaves(batch: int, heads: int, length: int, widths: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    """q, k and v as a mixer makes them: heads beside each other, so they are not contiguous."""
    torch.manual_seed(length)
    shapes = [(batch, length, heads, width) for width in (widths[0], *widths)]
    return [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 64, 65])
@pytest.mark.parametrize("widths", [(8, 5), (3, 12), (16, 16)])
@pytest.mark.parametrize("backend", ["torch", pytest.param("cpu", marks=pytest.mark.ci)])
def test_fast_forms_equal_naive_with_all_gradients(backend: str, widths: tuple[int, int], length: int) -> None:
    inputs = leaves(2, 3, length, widths, torch.float64)
    for fast, naive in zip(everything(inputs, backend), everything(inputs, "naive"), strict=True):
        torch.testing.assert_close(fast, naive, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 64, 70, 199, 200, 300])
@pytest.mark.parametrize("widths", [(8, 5), (16, 16)])
@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_a_window_equals_naive_with_all_gradients(backend: str, widths: tuple[int, int], window: int) -> None:
    for length in (1, 17, 200):
        inputs = leaves(2, 3, length, widths, torch.float64)
        found, right = (everything(inputs, one, window) for one in (backend, "naive"))
        for fast, naive in zip(found, right, strict=True):
            torch.testing.assert_close(fast, naive, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("backend", ["torch", "cpu", "naive"])
def test_a_window_is_attention_to_its_positions_alone(backend: str) -> None:
    q, k, v = (x.detach() for x in leaves(1, 2, 30, (8, 8), torch.float64))
    found = attention(q, k, v, backend=backend, window=5)
    for i in (0, 3, 4, 5, 29):
        seen = slice(max(0, i - 4), i + 1)
        weights = (q[:, :, i : i + 1] @ k[:, :, seen].mT / 8**0.5).softmax(-1)
        torch.testing.assert_close(found[:, :, i : i + 1], weights @ v[:, :, seen], rtol=1e-10, atol=1e-12)
    whole = attention(q, k, v, backend=backend)
    torch.testing.assert_close(attention(q, k, v, backend=backend, window=30), whole, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(found[:, :, 5:], whole[:, :, 5:])


@pytest.mark.parametrize("width", [8, 32])
@pytest.mark.parametrize("backend", ["torch", pytest.param("cpu", marks=pytest.mark.ci), "naive"])
def test_the_output_has_the_type_of_the_values(backend: str, width: int) -> None:
    q, k, v = leaves(1, 2, 20, (width, width), torch.float64)
    exact = attention(q, k, v, backend="naive")
    mixed = attention(q.float(), k.float(), v, backend=backend)
    assert mixed.dtype == torch.float64
    torch.testing.assert_close(mixed, exact, rtol=1e-5, atol=1e-5)
    assert attention(q, k, v.float(), backend=backend).dtype == torch.float32


@pytest.mark.parametrize(("length", "scale"), [(1, 1.0), (70, 1.0), (70, 30.0), (70, 1e4)])
def test_narrow_heads_in_float32_are_as_exact_as_pytorch(length: int, scale: float) -> None:
    """Against the formula in float64; also where one weight is all there is, and the others are below what a float32 holds."""
    inputs = leaves(2, 3, length, (8, 8), torch.float32)
    with torch.no_grad():
        inputs[0] *= scale
    exact = everything([x.detach().double().requires_grad_() for x in inputs], "naive")
    fused, fast = everything(inputs, "torch"), everything(inputs, "cpu")
    for ours, theirs, right in zip(fast, fused, exact, strict=True):
        error, least = (theirs - right).abs().max().item(), 1e-6 * max(1.0, right.abs().max().item())
        assert (ours - right).abs().max().item() <= 4 * error + least


def test_what_is_no_number_reaches_the_positions_that_read_it() -> None:
    reached = []
    for place in range(3):
        inputs = [x.detach() for x in leaves(1, 1, 40, (8, 8), torch.float32)]
        inputs[place][0, 0, 20, 3] = float("nan")
        reached.append(attention(*inputs, backend="cpu")[0, 0].isnan())
    positions = torch.arange(40)
    assert torch.equal(reached[0], (positions == 20)[:, None].expand(40, 8))
    assert torch.equal(reached[1], (positions >= 20)[:, None].expand(40, 8))
    assert reached[2][20:, 3].all()
    assert not reached[2][:, :3].any()


def test_the_kernels_of_our_own_run_when_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the type, and though they are installed: `auto` takes what has been measured."""
    monkeypatch.setattr("regbench.ops.backend.installed", lambda name: name != "flash_attn")
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
    with pytest.raises(
        UserError, match="^backend 'triton' of attention does not run on cpu; there: cpu, torch, naive$"
    ):
        attention(x, x, x, backend="triton")
    with pytest.raises(
        UserError, match="^backend 'triton' of attention takes float16, bfloat16, float32, not float64$"
    ):
        OP.choose("triton", torch.device("cuda"), torch.float64)


def test_what_rounds_is_refused_where_a_model_cannot_bear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbench.ops.backend.installed", lambda name: True)
    cuda = torch.device("cuda")
    with pytest.raises(UserError, match="^backend 'flash-attn' of attention rounds float32, which is too coarse"):
        OP.choose("flash-attn", cuda, torch.float32, exact=True)
    for dtype, exact in ((torch.bfloat16, True), (torch.float32, False)):
        with use_backend("auto") as ran:
            OP.choose("flash-attn", cuda, dtype, exact=exact)
        assert ran == {"attention": "flash-attn"}
