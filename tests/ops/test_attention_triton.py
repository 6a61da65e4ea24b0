"""Attention by Triton: under the interpreter, compiled without a GPU, and (marked `gpu`) on one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.ops.attention import attention, naive
from regbench.utils.errors import UserError
from tests.helpers.tensors import LargestTensor

pytest.importorskip("triton")

HALF = (torch.float16, torch.bfloat16)
KERNELS = ("forward", "queries", "keys")
SHARED = {80: 163, 90: 227}
"""KiB of shared memory that a program may have, of the 164 and 228 of a multiprocessor."""

Inputs = list[Tensor]
"""q, k, v, and a gradient from above."""


def inputs(
    batch: int, heads: int, length: int, key: int, value: int, dtype: torch.dtype, device: str = "cpu"
) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, heads, length, width, generator=generator).to(device, dtype)
        for width in (key, key, value, value)
    ]


def there_and_back(implementation: Callable[..., Tensor], given: Inputs) -> list[Tensor]:
    """The output, and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    out = implementation(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, given[3])]


def interpreted(given: Inputs) -> list[Tensor]:
    """Runs in the process in which Triton interprets."""
    from regbench.ops.attention import triton

    return there_and_back(triton.attention, given)


def close(found: list[Tensor], given: Inputs) -> None:
    """Equal to naive in float64; in half precision, no further from it than naive in that precision and a rounding."""
    exact = there_and_back(naive.attention, [x.double().cpu() for x in given])
    dtype = given[0].dtype
    for ours, expected in zip(found, exact, strict=True):
        assert (ours.shape, ours.dtype) == (expected.shape, dtype)
        if dtype not in HALF:
            tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
            torch.testing.assert_close(ours.cpu().double(), expected, rtol=tolerance, atol=tolerance)
    if dtype in HALF:
        rounded = there_and_back(naive.attention, given)
        for place, (ours, theirs, expected) in enumerate(zip(found, rounded, exact, strict=True)):
            error, allowed = ((x.cpu().double() - expected).abs().max() for x in (ours, theirs))
            allowed += torch.finfo(dtype).eps / 2 * expected.abs().max() + 1e-5
            assert error <= allowed, f"{place}: {error:.1e} > {allowed:.1e}"


CASES = [
    (2, 1, 1, 1, 8),
    (1, 1, 2, 8, 1),
    (1, 2, 15, 16, 16),
    (1, 1, 16, 24, 64),
    (1, 2, 17, 64, 80),
    (2, 1, 33, 80, 24),
    (1, 1, 70, 16, 64),
    (1, 1, 130, 64, 8),
]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("batch", "heads", "length", "key", "value", "dtype"),
    [
        *((*case, torch.float32) for case in CASES),
        *((*case, torch.float16) for case in CASES[4:]),
        *((*case, torch.bfloat16) for case in CASES[5:7]),
        *((*case, torch.float64) for case in CASES[1:7:3]),
    ],
    ids=str,
)
def test_interpreter_equals_naive(
    interpreter: ProcessPoolExecutor, batch: int, heads: int, length: int, key: int, value: int, dtype: torch.dtype
) -> None:
    given = inputs(batch, heads, length, key, value, dtype)
    close(interpreter.submit(interpreted, given).result(), given)


def laid_out(given: Inputs) -> Inputs:
    """The same numbers: with heads inside, as a slice with gaps, with rows that are columns, and expanded from above."""
    q, k, v, above = given
    return [
        q.transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat([k, torch.full_like(k, torch.nan)], 3)[..., : k.shape[3]],
        v.transpose(2, 3).contiguous().transpose(2, 3),
        above[:, :, :1, :1].expand(above.shape),
    ]


@pytest.mark.ci
def test_interpreter_takes_any_strides(interpreter: ProcessPoolExecutor) -> None:
    given = laid_out(inputs(2, 2, 35, 8, 5, torch.float32))
    found = interpreter.submit(interpreted, given).result()
    close(found, given)


@pytest.mark.ci
def test_interpreter_meets_types_that_differ(interpreter: ProcessPoolExecutor) -> None:
    """As under autocast: it computes in the type that holds all, and gives each back its own."""
    q, k, v, above = inputs(1, 2, 33, 16, 8, torch.float32)
    given = [q, k, v.half(), above.half()]
    found = interpreter.submit(interpreted, given).result()
    assert [x.dtype for x in found] == [torch.float16, torch.float32, torch.float32, torch.float16]
    exact = there_and_back(naive.attention, [x.double() for x in given])
    for ours, expected in zip(found, exact, strict=True):
        tolerance = 2**-11 if ours.dtype == torch.float16 else 1e-5
        torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.ci
@pytest.mark.parametrize(("size", "dtype"), [(-1e4, torch.float32), (1e4, torch.float16)])
def test_interpreter_shifts_large_scores(interpreter: ProcessPoolExecutor, size: float, dtype: torch.dtype) -> None:
    """Equal scores of any size are a mean over the past, whose exponentials alone would be 0 or infinite."""
    _, _, v, above = given = inputs(1, 1, 70, 16, 8, dtype)
    given[0], given[1] = torch.full((2, 1, 1, 70, 16), abs(size) ** 0.5 / 2, dtype=dtype).unbind()
    given[1] *= 1 if size > 0 else -1
    found = interpreter.submit(interpreted, given).result()
    mean = v.double().cumsum(2) / torch.arange(1, 71)[:, None]
    dv = (above.double() / torch.arange(1, 71)[:, None]).flip(2).cumsum(2).flip(2)
    # In float32 a score of 1e4 has an error of 2^-11, and the logarithm of a sum another: weights made again have both.
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found[0].double(), mean, rtol=2 * rounding, atol=2 * rounding)
    torch.testing.assert_close(found[3].double(), dv, rtol=2e-3, atol=2e-3)
    assert all(x.isfinite().all() for x in found)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("first", "spoiled", "dtype"),
    [(63, torch.inf, torch.float32), (64, torch.nan, torch.float16), (37, -torch.inf, torch.bfloat16)],
    ids=str,
)
def test_interpreter_keeps_the_future_out(
    interpreter: ProcessPoolExecutor, first: int, spoiled: float, dtype: torch.dtype
) -> None:
    """To the bit, where the naive implementation's 0 * NaN spoils every row.

    Keys are spoiled from a position on; values each in a channel of its own, at the first position, in the middle of a tile, at
    both sides of a border between tiles, and at the last position.
    """
    given = inputs(1, 1, 70, 8, 6, dtype)
    given[3][:, :, first:] = 0
    clean, dq, *_ = interpreter.submit(interpreted, given).result()
    keys, values = ([*given[:1], *(x.clone() for x in given[1:])] for _ in range(2))
    keys[1][:, :, first:] = spoiled
    places = {0: 37, 1: 63, 3: 64, 4: 69} if first == 37 else {0: first, 3: 69}
    for channel, position in places.items():
        values[2][:, :, position, channel] = spoiled
    for there in (keys, values):
        out, gradient, *_ = interpreter.submit(interpreted, there).result()
        assert torch.equal(out[:, :, :first], clean[:, :, :first])
        assert torch.equal(gradient[:, :, :first], dq[:, :, :first])
    reached = torch.zeros_like(out, dtype=torch.bool)
    for channel, position in places.items():
        reached[:, :, position:, channel] = True
    assert torch.equal(~out.isfinite(), reached)  # of what has it in its past, that channel alone


@pytest.mark.ci
@pytest.mark.parametrize("shape", [(0, 2, 5), (2, 0, 5), (2, 2, 0)])
def test_interpreter_of_nothing(interpreter: ProcessPoolExecutor, shape: tuple[int, int, int]) -> None:
    found = interpreter.submit(interpreted, inputs(*shape, 4, 3, torch.float32)).result()
    assert [x.shape for x in found] == [(*shape, 3), (*shape, 4), (*shape, 4), (*shape, 3)]


def largest_tensor(given: Inputs) -> int:
    with LargestTensor() as largest:
        interpreted(given)
    return largest.bytes


@pytest.mark.ci
def test_nothing_is_larger_than_the_inputs(interpreter: ProcessPoolExecutor) -> None:
    given = inputs(1, 1, 70, 8, 4, torch.float32)
    assert interpreter.submit(largest_tensor, given).result() == given[0].nbytes
    with LargestTensor() as largest:
        there_and_back(naive.attention, given)
    assert largest.bytes == 70 * 70 * 4


def test_a_window_is_refused() -> None:
    from regbench.ops.attention import triton

    x = torch.zeros(1, 1, 4, 16)
    with pytest.raises(
        UserError, match="^backend 'triton' of attention has no window: take auto, torch or flash-attn$"
    ):
        triton.attention(x, x, x, 2)


@pytest.mark.parametrize(("key", "value", "wrong"), [(257, 4, 257), (4, 300, 300), (0, 4, 0)])
def test_widths_that_do_not_fit_are_refused(key: int, value: int, wrong: int) -> None:
    from regbench.ops.attention import triton

    q, k, v, _ = inputs(1, 1, 2, key, value, torch.float32)
    message = f"^backend 'triton' of attention takes heads of 1 to 256 channels, not {wrong}$"
    with pytest.raises(UserError, match=message):
        triton.attention(q, k, v)


def compile_kernel(kernel: str, key: int, value: int, dtype: torch.dtype, capability: int, **fixed: int) -> Any:
    """As for tensors at multiples of 16 bytes; `fixed` arguments are 1, which Triton compiles for."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from regbench.ops.attention import triton_kernels
    from regbench.ops.attention.triton import blocks, constants

    function = getattr(triton_kernels, f"{kernel}_kernel")
    if not isinstance(function, triton.JITFunction):
        pytest.skip("Triton was imported to interpret")
    cut = blocks(kernel, key, value, dtype)
    constant = constants(key, value, cut) | fixed
    name = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}[dtype]
    types = {}
    for argument in function.arg_names:
        wide = argument in ("logsum", "delta")
        types[argument] = "*fp32" if wide else "i32" if argument == "length" else name
        types[argument] = "constexpr" if argument in constant else types[argument]
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, argument in enumerate(types)
        if types[argument] != "constexpr" and argument != "length"
    }
    options = {"num_warps": cut.warps, "num_stages": cut.stages, "maxnreg": cut.registers}
    return triton.compile(
        ASTSource(function, types, constant, aligned), target=GPUTarget("cuda", capability, 32), options=options
    )


def spilled(compiled: Any, folder: Path) -> int:
    """Bytes of a thread that do not fit in registers."""
    import triton

    (folder / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not reader.exists():
        pytest.skip("this Triton has no cuobjdump")
    done = subprocess.run([reader, "-res-usage", folder / "kernel.cubin"], capture_output=True, text=True, check=True)
    (stack,) = re.findall(r"STACK:(\d+)", done.stdout)
    return int(stack)


@pytest.mark.parametrize(
    ("width", "dtype", "capability", "kernel"),
    [
        pytest.param(
            width,
            dtype,
            capability,
            kernel,
            marks=[]
            if (width, dtype, capability, kernel) == (64, torch.bfloat16, 90, "keys")
            else pytest.mark.ci
            if (width, dtype, capability) == (64, torch.bfloat16, 90)
            or (width, dtype, capability, kernel) == (64, torch.float32, 80, "forward")
            else pytest.mark.slow,
            id=f"{width}-{str(dtype).removeprefix('torch.')}-sm_{capability}-{kernel}",
        )
        for width in (16, 64, 128, 256)
        for dtype in (torch.float32, *HALF)
        for capability in SHARED
        for kernel in KERNELS
    ],
)
def test_compiles_without_a_gpu(width: int, dtype: torch.dtype, capability: int, kernel: str, tmp_path: Path) -> None:
    compiled = compile_kernel(kernel, width, width, dtype, capability)
    text = compiled.asm["ptx"]
    assert compiled.metadata.shared <= SHARED[capability] * 1024
    # Heads of 128 in float32: the fastest division on an H200 spills 800 bytes. The one before it did not, and took 1.7 to 1.9
    # times as long.
    assert spilled(compiled, tmp_path) <= (900 if (width, dtype) == (128, torch.float32) else 128)
    assert "wgmma" in text if dtype in HALF and capability == 90 else ("mma.sync" in text) == (dtype in HALF)
    assert not re.search(r"\b(atom|red)\.|tf32", text)
    if width >= 64:  # narrower tiles are shared among threads in less
        assert re.search(r"cp\.async\.cg\.shared\.global .*, 0x10,", text)  # 16 bytes at a time


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_position_of_one_head_compiles(kernel: str) -> None:
    """Triton takes a 1 for a constant."""
    assert compile_kernel(kernel, 16, 16, torch.float16, 90, length=1).asm["cubin"]


GPU_CASES = [
    *((2, 3, length, 64, 64) for length in (1, 17, 64, 65, 1000)),
    *((2, 2, 200, *widths) for widths in ((1, 1), (16, 16), (24, 80), (128, 128), (256, 256), (256, 16), (16, 256))),
    (1, 1, 1, 8, 8),
]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGPU:
    @pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
    @pytest.mark.parametrize(("batch", "heads", "length", "key", "value"), GPU_CASES)
    def test_equals_naive(self, batch: int, heads: int, length: int, key: int, value: int, dtype: torch.dtype) -> None:
        given = inputs(batch, heads, length, key, value, dtype, "cuda")
        close(there_and_back(lambda *x: attention(*x, backend="triton"), given), given)

    @pytest.mark.parametrize("dtype", HALF, ids=str)
    @pytest.mark.parametrize("width", [16, 64, 128, 256])
    def test_equals_pytorchs_fused_kernels(self, width: int, dtype: torch.dtype) -> None:
        """Both round weights to the inputs' type before they meet values; either may be a rounding off."""
        given = inputs(4, 4, 777, width, width, dtype, "cuda")
        ours, theirs = (there_and_back(lambda *x, b=b: attention(*x, backend=b), given) for b in ("triton", "torch"))
        for a, b in zip(ours, theirs, strict=True):
            tolerance = 2 * torch.finfo(dtype).eps * float(b.abs().max())
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)

    def test_takes_any_strides(self) -> None:
        given = laid_out(inputs(2, 3, 70, 8, 5, torch.float32, "cuda"))
        close(there_and_back(lambda *x: attention(*x, backend="triton"), given), given)
