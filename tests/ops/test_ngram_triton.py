"""The n-gram head by Triton: under the interpreter, compiled without a GPU, and (marked `gpu`) on one."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch import Tensor

from regbench.ops.ngram import NGramIndex, naive, ngram_head

pytest.importorskip("triton")


def inputs(
    batch: int, length: int, width: int, vocabulary: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, hidden, and a gradient from above."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocabulary, (batch, length), generator=generator)
    hidden, upstream = torch.randn(2, batch, length, width, generator=generator).to(dtype)
    return tokens.to(device), hidden.to(device), upstream.to(device)


def interpreted(tokens: Tensor, hidden: Tensor, upstream: Tensor, order: int, shift: int) -> tuple[Tensor, Tensor]:
    """Runs in the process in which Triton interprets."""
    from regbench.ops.ngram import triton

    hidden.requires_grad_()
    out = triton.ngram_head(NGramIndex(tokens), hidden, order, shift)
    return out.detach(), *torch.autograd.grad(out, hidden, upstream)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("batch", "length", "width", "vocabulary", "order", "shift", "dtype"),
    [
        (2, 37, 5, 2, 1, 1, torch.float32),
        (1, 90, 3, 1, 2, 0, torch.float32),  # one n-gram, longer than several chunks' start
        (2, 41, 4, 3, 3, 3, torch.float16),
        (1, 33, 65, 2, 2, 1, torch.float64),  # 65 columns: two blocks
        (2, 9, 1, 50, 1, 1, torch.float32),
        (3, 2, 2, 1, 4, 7, torch.float32),
        (0, 5, 2, 2, 1, 1, torch.float32),
    ],
)
def test_interpreter_equals_naive(
    interpreter: ProcessPoolExecutor,
    batch: int,
    length: int,
    width: int,
    vocabulary: int,
    order: int,
    shift: int,
    dtype: torch.dtype,
) -> None:
    tokens, hidden, upstream = inputs(batch, length, width, vocabulary, dtype)
    out, gradient = interpreter.submit(interpreted, tokens, hidden, upstream, order, shift).result()
    assert out.dtype == gradient.dtype == dtype
    exact = hidden.double().requires_grad_()
    expected = naive.ngram_head(NGramIndex(tokens), exact, order, shift)
    (expected_gradient,) = torch.autograd.grad(expected, exact, upstream.double())
    tolerance = 2 * torch.finfo(dtype).eps if dtype == torch.float16 else 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.ci
def test_interpreter_keeps_a_nan_within_its_ngram_and_its_future(interpreter: ProcessPoolExecutor) -> None:
    tokens, hidden, upstream = inputs(1, 40, 2, 3, torch.float32)
    clean, _ = interpreter.submit(interpreted, tokens, hidden, upstream, 1, 1).result()
    hidden[:, 20] = torch.nan
    out, _ = interpreter.submit(interpreted, tokens, hidden, upstream, 1, 1).result()
    reached = (tokens == tokens[:, 19]) & (torch.arange(40) > 20)
    assert torch.equal(out.isnan().all(2), reached)
    assert torch.equal(out[~reached], clean[~reached])


@pytest.mark.ci
@pytest.mark.parametrize(
    ("dtype", "capability"),
    [
        (torch.float32, 80),
        (torch.bfloat16, 90),
        *(
            pytest.param(torch.float32, 90, marks=pytest.mark.slow),
            pytest.param(torch.bfloat16, 80, marks=pytest.mark.slow),
        ),
        *(pytest.param(torch.float16, capability, marks=pytest.mark.slow) for capability in (80, 90)),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_compiles_without_a_gpu(dtype: torch.dtype, capability: int, backwards: bool) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from regbench.ops.ngram.triton import TILE, block_columns, scan_kernel

    if not isinstance(scan_kernel, triton.JITFunction):
        pytest.skip("Triton was imported to interpret")
    constants = {"BACKWARDS": backwards, "TILE": TILE, "COLUMNS": block_columns(1024, dtype.itemsize)}
    name = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}[dtype]
    types = {
        "values": name,
        "out": name,
        "code": "*i32",
        "first": "*i1",
        "count": "*i32",
        "bounds": "*i32",
        "width": "i32",
    }
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(types))}
    source = ASTSource(scan_kernel, types | dict.fromkeys(constants, "constexpr"), constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})
    assert compiled.asm["cubin"]
    assert ".v4.b32" in compiled.asm["ptx"]  # 16 bytes at a time
    for unwanted in ("ld.local", "shfl", "atom", "bar.sync"):
        assert unwanted not in compiled.asm["ptx"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("order", "shift", "vocabulary"), [(1, 1, 1), (1, 0, 18), (3, 1, 4), (2, 5, 2)])
@pytest.mark.parametrize("width", [1, 64, 300])
def test_gpu_equals_naive(dtype: torch.dtype, order: int, shift: int, vocabulary: int, width: int) -> None:
    tokens, hidden, upstream = inputs(3, 501, width, vocabulary, dtype, "cuda")
    hidden.requires_grad_()
    out = ngram_head(tokens, hidden, order, shift, "triton")
    (gradient,) = torch.autograd.grad(out, hidden, upstream)
    exact = hidden.detach().double().requires_grad_()
    expected = ngram_head(tokens, exact, order, shift, "naive")
    (expected_gradient,) = torch.autograd.grad(expected, exact, upstream.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_gives_the_same_bits_each_time() -> None:
    tokens, hidden, upstream = inputs(4, 1000, 256, 3, torch.float32, "cuda")
    hidden.requires_grad_()
    outs = [ngram_head(tokens, hidden, 2) for _ in range(3)]
    gradients = [torch.autograd.grad(out, hidden, upstream)[0] for out in outs]
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
