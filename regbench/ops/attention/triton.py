"""Causal attention on the GPU by Triton kernels, which never hold the (L, L) weights (Dao 2023, arXiv:2307.08691).

In the forward pass a program owns a block of queries. It adds the keys that they see to their sums, one tile at a time, with a
softmax that is rescaled on the way. It stores the logarithm of each row's sum of weights. The backward pass computes the
weights again from that: one kernel owns blocks of queries and writes their gradients, another owns blocks of keys. No program
adds to the output of another, so every run gives the same bits. Tiles in the future are skipped.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from regbench.ops.attention.triton_kernels import forward_kernel, keys_kernel, queries_kernel
from regbench.ops.backend import common_type
from regbench.utils.errors import UserError

WIDEST = 256
"""The most channels of a head that the kernels take."""


def attention(q: Tensor, k: Tensor, v: Tensor, window: int = 0) -> Tensor:
    """See `regbench.ops.attention.attention`. Sums are in float32, whatever the type.

    A NaN or an infinity among the keys or values reaches no earlier position. There are no second derivatives. A UserError if
    heads are wider than the kernels take, or have no channel, or there is a window.
    """
    if window:
        raise UserError("backend 'triton' of attention has no window: take auto, torch or flash-attn")
    for width in (q.shape[-1], v.shape[-1]):
        if not 1 <= width <= WIDEST:
            raise UserError(f"backend 'triton' of attention takes heads of 1 to {WIDEST} channels, not {width}")
    dtype = common_type(q, k, v)
    out: Tensor = _Attention.apply(*(x.to(dtype).contiguous() for x in (q, k, v)))
    return out.to(v.dtype)


class _Attention(torch.autograd.Function):
    """Takes contiguous tensors of one type."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, L, K), (B, H, L, K), (B, H, L, D) -> (B, H, L, D)."""
        out = torch.empty_like(v)
        # The op does not offer float64; the tests use it to show that the formulas are right.
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        logsum = torch.empty(q.shape[:3], dtype=wide, device=q.device)
        _launch(forward_kernel, blocks("forward", q.shape[3], v.shape[3], q.dtype), (q, k, v, out), logsum)
        ctx.save_for_backward(q, k, v, out, logsum)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v."""
        q, k, v, out, logsum = ctx.saved_tensors
        dout = dout.contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        delta = torch.empty_like(logsum)
        widths = q.shape[3], v.shape[3], q.dtype
        _launch(queries_kernel, blocks("queries", *widths), (q, k, v, out, dout, dq), logsum, delta)
        _launch(keys_kernel, blocks("keys", *widths), (q, k, v, dout, dk, dv), logsum, delta)
        return dq, dk, dv


def _launch(kernel: Any, blocks: Blocks, matrices: tuple[Tensor, ...], *vectors: Tensor) -> None:
    """Runs a kernel on matrices (B, H, L, *), of which the first three are q, k and v, and vectors (B, H, L)."""
    q, _, v = matrices[:3]
    batch, heads, length, key = q.shape
    programs = batch * heads * triton.cdiv(length, blocks.owned)
    if programs == 0:
        return
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        kernel[(programs,)](
            *matrices,
            *vectors,
            length,
            **constants(key, v.shape[3], blocks),
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            maxnreg=blocks.registers,
        )


@dataclass(frozen=True)
class Blocks:
    """How the work of a kernel is divided: tiles of m queries and n keys. One program owns m queries, or n keys.

    It has so many warps, loads so many tiles ahead (`stages`), and a thread uses so many registers at most.
    """

    m: int
    n: int
    owned: int
    warps: int
    stages: int
    registers: int


# For each width, that of the wider head, padded: rows owned, rows visited at a time, warps, stages, registers.
#
# Those of 64 and 128 were within 5 % of the fastest of ten or more on an H200, for 4 x 8 heads of 2048 positions; see
# tests/benchmarks/attention_blocks.py. Those of 256 have not been timed.
# Shared memory: a program keeps about (owned + stages * visited) * (K + D) numbers there. sm_80 has 163 KiB for a program, sm_90
# 227. Registers: a multiprocessor has 65,536. The number is always given: without it, where 255 are a little too few, ptxas takes
# 32 and spills kilobytes.
# Rows: 64 are owned, as many as Hopper's tensor cores multiply at once. Products of float32 that are not rounded use no tensor
# cores. Their tiles are kept in registers and must be small.
_HALF = {
    "forward": {64: (64, 64, 4, 3, 128), 128: (64, 64, 4, 3, 255), 256: (64, 32, 8, 2, 255)},
    "queries": {64: (64, 64, 4, 3, 128), 128: (64, 64, 4, 2, 255), 256: (64, 32, 8, 2, 255)},
    "keys": {64: (64, 64, 4, 2, 255), 128: (64, 32, 4, 3, 255), 256: (64, 32, 8, 2, 255)},
}
_SINGLE = {64: (32, 32, 4, 2, 128), 128: (32, 32, 4, 2, 255), 256: (32, 16, 8, 2, 255)}


def blocks(kernel: str, key: int, value: int, dtype: torch.dtype) -> Blocks:
    """How the kernel "forward", "queries" or "keys" is divided, for keys (B, H, L, K) and values (B, H, L, D) of such widths."""
    table = _HALF[kernel] if dtype in (torch.float16, torch.bfloat16) else _SINGLE
    owned, visited, warps, stages, registers = table[max(64, _padded(key), _padded(value))]
    m, n = (visited, owned) if kernel == "keys" else (owned, visited)
    return Blocks(m, n, owned, warps, stages, registers)


def constants(key: int, value: int, blocks: Blocks) -> dict[str, Any]:
    """The constants that a kernel is compiled with."""
    return {
        "SCALE": key**-0.5,
        "KEY": key,
        "VALUE": value,
        "BLOCK_M": blocks.m,
        "BLOCK_N": blocks.n,
        "BLOCK_K": _padded(key),
        "BLOCK_D": _padded(value),
    }


def _padded(width: int) -> int:
    """The next power of two, at least 16, the least that tensor cores multiply."""
    return max(16, triton.next_power_of_2(width))
