"""Causal attention on the GPU by kernels of our own, which never hold the (L, L) weights (Dao 2023, arXiv:2307.08691).

A program of the forward pass owns a block of queries and folds the keys they see into it a tile at a time, with a softmax that
is shifted as it goes; it keeps the logarithm of each row's sum. The backward pass makes the weights again from that: one kernel
owns blocks of queries and writes their gradients, another owns blocks of keys. No program adds to what another writes, so
every run gives the same bits. Tiles in the future are not visited.
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
"""Channels of a head that the kernels take."""


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, H, L, K), (B, H, L, K), (B, H, L, D) -> (B, H, L, D). ICLL A.1. Sums are in float32, whatever the type.

    A value of the future that is not a number stays there. Second derivatives are not supported.

    Raises:
        UserError: heads are wider than the kernels take, or have no channel.
    """
    for width in (q.shape[-1], v.shape[-1]):
        if not 1 <= width <= WIDEST:
            raise UserError(f"backend 'triton' of attention takes heads of 1 to {WIDEST} channels, not {width}")
    dtype = common_type(q, k, v)
    out: Tensor = _Attention.apply(*(_rows(x.to(dtype)) for x in (q, k, v)))
    return out.to(v.dtype)


class _Attention(torch.autograd.Function):
    """Takes tensors of one type whose rows lie without gaps."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = _rows(torch.empty_like(v))
        logsum = torch.empty(q.shape[:3], dtype=_wide(q.dtype), device=q.device)
        _launch(forward_kernel, blocks("forward", q.shape[3], v.shape[3], q.dtype), (q, k, v, out), logsum)
        ctx.save_for_backward(q, k, v, out, logsum)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, out, logsum = ctx.saved_tensors
        dout = _rows(dout)
        dq, dk, dv = (_rows(torch.empty_like(x)) for x in (q, k, v))
        delta = torch.empty_like(logsum)
        widths = q.shape[3], v.shape[3], q.dtype
        _launch(queries_kernel, blocks("queries", *widths), (q, k, v, out, dout, dq), logsum, delta)
        _launch(keys_kernel, blocks("keys", *widths), (q, k, v, dout, dk, dv), logsum, delta)
        return dq, dk, dv


def _rows(x: Tensor) -> Tensor:
    """Copied where its rows have gaps inside; those between rows are left."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in. The op takes no float64; under the interpreter it shows that the formulas are right."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _launch(kernel: Any, blocks: Blocks, matrices: tuple[Tensor, ...], *vectors: Tensor) -> None:
    q, _, v = matrices[:3]
    batch, heads, length, key = q.shape
    programs = batch * heads * triton.cdiv(length, blocks.owned)
    if programs == 0:
        return
    strides = [stride for x in matrices for stride in x.stride()[:3]]
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        kernel[(programs,)](
            *matrices,
            *vectors,
            *strides,
            heads,
            length,
            **constants(key, v.shape[3], blocks),
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            maxnreg=blocks.registers,
        )


@dataclass(frozen=True)
class Blocks:
    """How a kernel is cut.

    m, n: queries and keys of a tile.
    owned: those that one program owns, m or n of them.
    warps, stages, registers: of a program; how many tiles it has under way; the most that a thread takes.
    """

    m: int
    n: int
    owned: int
    warps: int
    stages: int
    registers: int


# By the wider head, padded: rows owned, rows visited at a time, warps, stages, registers.
#
# A program keeps about (owned + stages * visited) * (K + D) numbers in shared memory: compiled for two heads of 256, at most
# 114 KiB on sm_80, which gives a program 163, and 128 KiB on sm_90, which gives 227; for heads of 128, at most 80 KiB on either.
# Its sums are in registers, of which a multiprocessor has 65,536: with 128 a thread it runs 16 warps at once; with 168, 12, in
# programs of 4; with 255, 8. Each row has the least of these with which at most 60 bytes a thread are spilled, on either, where
# both heads are 16, 64, 128 or 256 wide. A bound is always set: without one, where 255 do not quite suffice, ptxas falls to 32
# and spills kilobytes. Owned rows are 64, as many as Hopper's tensor cores multiply at once; products of float32 that are not
# rounded use no tensor cores, and their tiles, held in registers, must be small. What is fastest no GPU has told yet.
_HALF = {
    "forward": {64: (64, 64, 4, 3, 128), 128: (64, 64, 4, 2, 255), 256: (64, 32, 8, 2, 255)},
    "queries": {64: (64, 32, 4, 2, 128), 128: (64, 32, 4, 2, 168), 256: (64, 32, 8, 2, 255)},
    "keys": {64: (64, 32, 4, 2, 168), 128: (64, 32, 8, 2, 255), 256: (64, 32, 8, 2, 255)},
}
_SINGLE = {64: (64, 32, 8, 2, 128), 128: (32, 16, 8, 2, 128), 256: (32, 16, 8, 2, 255)}


def blocks(kernel: str, key: int, value: int, dtype: torch.dtype) -> Blocks:
    """Of "forward", "queries" or "keys", for heads of these widths."""
    table = _HALF[kernel] if dtype in (torch.float16, torch.bfloat16) else _SINGLE
    owned, visited, warps, stages, registers = table[max(64, _padded(key), _padded(value))]
    m, n = (visited, owned) if kernel == "keys" else (owned, visited)
    return Blocks(m, n, owned, warps, stages, registers)


def constants(key: int, value: int, blocks: Blocks) -> dict[str, Any]:
    """What a kernel is compiled for, beside types."""
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
    """A power of two, of no less than tensor cores multiply."""
    return max(16, triton.next_power_of_2(width))
