"""Implementations that call a library: what they hand it, by stand-ins on the CPU; and on a GPU, what comes back."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.attention import OP as ATTENTION
from regbench.ops.attention import attention
from regbench.ops.backend import Op, use_backend
from regbench.ops.delta_rule import delta_rule
from regbench.ops.linear_attention import linear_attention
from regbench.ops.long_conv import long_conv
from regbench.ops.selective_scan import OP as SELECTIVE_SCAN
from regbench.ops.selective_scan import selective_scan
from regbench.ops.wkv import WKVState, wkv
from regbench.utils.errors import UserError
from tests.helpers.libraries import STAND_INS

LIBRARIES = {"flash-attn": "flash_attn", "mamba-ssm": "mamba_ssm"}
CASES = [(ATTENTION, "flash-attn"), (SELECTIVE_SCAN, "mamba-ssm")]
CUDA = torch.device("cuda")


def function_of(op: Op, backend: str) -> Callable[..., Any]:
    function: Callable[..., Any] = resolve_name(op.implementations[backend].target)
    return function


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins, where the libraries would be imported from."""
    for path, functions in STAND_INS.items():
        parts = path.split(".")
        for n in range(1, len(parts) + 1):
            name = ".".join(parts[:n])
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, name, module)
        for function in functions:
            setattr(sys.modules[path], function.__name__, function)


def close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Equal to `tolerance` times the largest entry of each tensor, or times the inputs' size, 1, where all should be zero."""
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        scale = float(b.detach().abs().max())
        scale = 1.0 if scale < 1e-12 else scale
        difference = float((a.detach().cpu().double() - b.detach().double()).abs().max()) / scale
        assert difference <= tolerance, f"{place}: {difference:.1e}"


def given(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def everything(op: Callable[..., Any], inputs: list[Tensor], dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """All outputs that have a gradient, and the gradient of every input, from leaves of this type."""
    leaves = [tensor.to(device, dtype).requires_grad_() for tensor in inputs]
    outputs = op(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else [out for out in outputs if out.requires_grad]
    upstream = [u.to(out) for u, out in zip(given(*(tuple(out.shape) for out in outputs)), outputs, strict=True)]
    return [*outputs, *torch.autograd.grad(outputs, leaves, upstream)]


def attention_inputs(length: int = 33, width: int = 12, dim: int = 5) -> list[Tensor]:
    return given((2, 3, length, width), (2, 3, length, width), (2, 3, length, dim))


def scan_inputs(length: int = 33, n_state: int = 5) -> list[Tensor]:
    x, delta, A, B, C, D, state = given(
        (2, length, 6), (2, length, 6), (6, n_state), (2, length, n_state), (2, length, n_state), (6,), (2, 6, n_state)
    )
    return [x, F.softplus(delta - 1), -A.exp(), B, C, D, state]


def linear_inputs(decay: str, length: int = 33, width: int = 4, dim: int = 6) -> list[Tensor]:
    shapes = {"none": [], "heads": [(3,)], "positions": [(2, 3, length)], "channels": [(2, 3, length, width)]}[decay]
    q, k, v, state, *drawn = given(*((2, 3, length, n) for n in (width, width, dim)), (2, 3, width, dim), *shapes)
    return [q, k, v, state, *(F.logsigmoid(log_decay) for log_decay in drawn)]


KINDS = ["delta", "positions", "channels", "general"]


def delta_inputs(kind: str, length: int = 33, width: int = 4, dim: int = 6) -> list[Tensor]:
    q, k, v, a, b, g, beta, state = given(
        *((2, 3, length, n) for n in (width, width, dim, width, width, width)), (2, 3, length), (2, 3, width, dim)
    )
    decay = {"delta": [], "positions": [F.logsigmoid(g[..., 0])]}.get(kind, [F.logsigmoid(g)])
    k, a, b = (F.normalize(x, dim=-1) for x in (k, a, b))
    return [q, k, v, state, *([a, b] if kind == "general" else [beta.sigmoid()]), *decay]


def run_delta(form: Callable[..., Any], kind: str) -> Callable[..., Any]:
    def run(q: Tensor, k: Tensor, v: Tensor, state: Tensor, *others: Tensor) -> Any:
        if kind == "general":
            a, b, log_decay = others
            return form(q, k, v, log_decay=log_decay, initial_state=state, a=a, b=b)
        return form(q, k, v, *others, initial_state=state)

    return run


def wkv_inputs(length: int = 33) -> list[Tensor]:
    w, u, k, v, a, b = given((5,), (5,), (2, length, 5), (2, length, 5), (2, 5), (2, 5))
    return [w.exp(), u, 3 * k, v, a, b.exp()]


def run_wkv(implementation: Callable[..., Any], scale: Tensor) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def run(w: Tensor, u: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, (a, b, last) = implementation(w, u, k, v, a, b, scale.to(k))
        assert not last.requires_grad
        return z, a, b

    return run


@pytest.mark.usefixtures("libraries")
class TestHandedOver:
    @pytest.mark.parametrize(("width", "dim"), [(12, 12), (12, 5), (5, 12)])
    @pytest.mark.parametrize(
        ("dtype", "rounding"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float32, 2**-7)]
    )
    def test_attention(self, width: int, dim: int, dtype: torch.dtype, rounding: float) -> None:
        inputs = [tensor.to(dtype).double() for tensor in attention_inputs(width=width, dim=dim)]
        found = everything(function_of(ATTENTION, "flash-attn"), inputs, dtype)
        assert {tensor.dtype for tensor in found} == {dtype}
        close(found, everything(lambda *i: attention(*i, backend="naive"), inputs, torch.float64), 2 * rounding)

    @pytest.mark.parametrize("window", [1, 2, 32, 33, 40])
    def test_attention_with_a_window(self, window: int) -> None:
        inputs = [tensor.bfloat16().double() for tensor in attention_inputs()]
        flash, naive = (function_of(ATTENTION, name) for name in ("flash-attn", "naive"))
        found = everything(lambda *i: flash(*i, window), inputs, torch.bfloat16)
        close(found, everything(lambda *i: naive(*i, window), inputs, torch.float64), 2**-6)

    def test_attention_of_nothing_and_of_too_wide_heads(self) -> None:
        implementation = function_of(ATTENTION, "flash-attn")
        empty = torch.zeros(2, 3, 0, 4, dtype=torch.bfloat16)
        assert implementation(empty, empty, empty).shape == (2, 3, 0, 4)
        wide = torch.zeros(1, 1, 1, 257, dtype=torch.bfloat16)
        with pytest.raises(
            UserError, match="backend 'flash-attn' of attention takes heads of up to 256 channels, not 257"
        ):
            implementation(wide, wide, wide)

    @pytest.mark.parametrize("length", [1, 2, 65])
    @pytest.mark.parametrize("left_out", [0, 1, 2])
    def test_selective_scan(self, length: int, left_out: int) -> None:
        """Without an initial state, without a skip connection too, and with both."""
        inputs, missing = scan_inputs(length)[: 7 - left_out], [None] * left_out
        implementation = function_of(SELECTIVE_SCAN, "mamba-ssm")
        found = everything(lambda *i: implementation(*i, *missing), inputs, torch.float32)
        expected = everything(lambda *i: selective_scan(*i, backend="naive"), inputs, torch.float64)
        close(found, expected, 5e-6)

    @pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
    def test_a_state_is_fed_in_and_read_out_whatever_its_rate_of_decay(self, size: float) -> None:
        """Nothing happens in the one position: what goes in comes out."""
        x, delta, A, B, C, D, state = (tensor.float() for tensor in scan_inputs(1, n_state=64))
        implementation = function_of(SELECTIVE_SCAN, "mamba-ssm")
        _, final = implementation(0 * x, 0 * delta, size * A, B, C, D, state)
        torch.testing.assert_close(final, state, rtol=2e-5, atol=0)

    def test_selective_scan_in_half_precision_and_of_nothing(self) -> None:
        implementation = function_of(SELECTIVE_SCAN, "mamba-ssm")
        half = [tensor.bfloat16() for tensor in scan_inputs()]
        y, final = implementation(*half)
        exact, exact_final = selective_scan(*(tensor.float() for tensor in half), backend="naive")
        assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
        close([y, final], [exact.bfloat16(), exact_final], 1e-2)
        y, final = implementation(*(tensor[:, :0] if tensor.dim() == 3 else tensor for tensor in half[:6]), None)
        assert (y.shape, final.shape) == ((2, 0, 6), (2, 6, 5))
        with pytest.raises(
            UserError, match="backend 'mamba-ssm' of selective_scan takes a state of up to 256, not 257"
        ):
            implementation(*scan_inputs(1, n_state=257))


@pytest.mark.parametrize(("op", "library"), CASES, ids=lambda case: getattr(case, "name", case))
class TestChosen:
    @pytest.mark.usefixtures("libraries")
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_auto_takes_what_is_installed_and_exact(self, op: Op, library: str, dtype: torch.dtype) -> None:
        """Of float32, products of bfloat16 or TF32 are taken by name alone. Either way the record says what ran."""
        rounds = op is ATTENTION and dtype == torch.float32
        plain = {"attention": "torch"}.get(op.name, "chunked")
        with use_backend("auto") as record:
            op.choose("auto", CUDA, dtype)
        assert record == {op.name: plain if rounds else library}
        with use_backend(library) as record:
            op.choose("auto", CUDA, dtype)
        assert record == {op.name: library}

    def test_without_it_auto_takes_one_of_our_own(self, op: Op, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
        without(library, monkeypatch)
        with use_backend("auto") as record:
            op.choose("auto", CUDA, torch.bfloat16)
        assert record == {op.name: {"attention": "torch"}.get(op.name, "chunked")}

    def test_asked_for_and_not_there_says_how_to_get_it(
        self, op: Op, library: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without(library, monkeypatch)
        message = rf"^backend '{library}' of {op.name} needs {LIBRARIES[library]}: pip install 'regbench\[{library}\]'$"
        with use_backend(library), pytest.raises(UserError, match=message):
            op.choose("auto", CUDA, torch.bfloat16)

    @pytest.mark.usefixtures("libraries")
    def test_refuses_what_it_cannot_do(self, op: Op, library: str) -> None:
        with pytest.raises(UserError, match=rf"^backend '{library}' of {op.name} takes [a-z0-9, ]*, not float64$"):
            op.choose(library, CUDA, torch.float64)
        with pytest.raises(
            UserError, match=rf"^backend '{library}' of {op.name} does not run on cpu; there: [a-z, ]*$"
        ):
            op.choose(library, torch.device("cpu"), torch.float32)


def without(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbench.ops.backend.installed", lambda name: name != LIBRARIES[library])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGPU:
    """Outputs, final states and all gradients against the naive implementation in float64.

    Tolerances are of the largest entry: of the inputs' own type, 2^-8 for bfloat16 and 2^-11 for TF32 and float16, times what
    sums of some tens of rounded terms add.
    """

    @pytest.mark.parametrize("length", [1, 65, 200])
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
    def test_flash_attn(self, length: int, dtype: torch.dtype, tolerance: float) -> None:
        pytest.importorskip("flash_attn")
        inputs = [tensor.to(dtype).double() for tensor in attention_inputs(length, 16, 16)]
        found = everything(lambda *i: attention(*i, backend="flash-attn"), inputs, dtype, "cuda")
        close(found, everything(lambda *i: attention(*i, backend="naive"), inputs, torch.float64), tolerance)

    @pytest.mark.parametrize("length", [1, 65, 200])
    def test_our_own_attention_and_long_convolution(self, length: int) -> None:
        for op, backend, inputs in (
            (attention, "torch", attention_inputs(length, 16, 16)),
            (long_conv, "fft", given((2, length, 5), (5, length), (5,))),
        ):
            found = everything(
                lambda *i, op=op, backend=backend: op(*i, backend=backend), inputs, torch.float32, "cuda"
            )
            close(found, everything(lambda *i, op=op: op(*i, backend="naive"), inputs, torch.float64), 1e-5)

    @pytest.mark.parametrize("length", [1, 65, 2100])  # its kernels cut time at 2048
    @pytest.mark.parametrize("backend", ["mamba-ssm", "chunked"])
    def test_selective_scan(self, length: int, backend: str) -> None:
        if backend == "mamba-ssm":
            pytest.importorskip("mamba_ssm")
        inputs = scan_inputs(length, n_state=16)
        found = everything(lambda *i: selective_scan(*i, backend=backend), inputs, torch.float32, "cuda")
        close(found, everything(lambda *i: selective_scan(*i, backend="naive"), inputs, torch.float64), 1e-4)

    @pytest.mark.parametrize(("width", "dim"), [(16, 32), (8, 8), (16, 17)])
    @pytest.mark.parametrize("length", [1, 65, 200])
    @pytest.mark.parametrize("decay", ["none", "heads", "positions", "channels"])
    def test_linear_attention(self, length: int, width: int, dim: int, decay: str) -> None:
        inputs = linear_inputs(decay, length, width, dim)

        def run(named: str) -> Callable[..., Any]:
            return lambda q, k, v, state, *log_decay: linear_attention(q, k, v, *(log_decay or (None,)), state, named)

        found = everything(run("chunked"), inputs, torch.float32, "cuda")
        close(found, everything(run("naive"), inputs, torch.float64), 1e-4)

    @pytest.mark.parametrize(("width", "dim"), [(16, 32), (8, 8), (16, 17)])
    @pytest.mark.parametrize("length", [1, 65, 200])
    @pytest.mark.parametrize("kind", KINDS)
    def test_delta_rule(self, length: int, width: int, dim: int, kind: str) -> None:
        inputs = delta_inputs(kind, length, width, dim)

        def run(backend: str) -> Callable[..., Any]:
            return run_delta(lambda *i, **named: delta_rule(*i, **named, backend=backend), kind)

        found = everything(run("chunked"), inputs, torch.float32, "cuda")
        close(found, everything(run("naive"), inputs, torch.float64), 1e-4)

    @pytest.mark.parametrize("length", [1, 65, 200])
    def test_wkv(self, length: int) -> None:
        scale = torch.full((2, 5), 0.5, dtype=torch.float64)

        def run(named: str) -> Callable[..., Any]:
            return run_wkv(lambda *i: wkv(*i[:4], WKVState(*i[4:]), backend=named), scale)

        found = everything(run("chunked"), wkv_inputs(length), torch.float32, "cuda")
        close(found, everything(run("naive"), wkv_inputs(length), torch.float64), 1e-4)
