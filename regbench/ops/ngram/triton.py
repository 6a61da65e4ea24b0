"""The n-gram head on the GPU: a segmented scan over the sorted events, in each direction.

A program owns the n-grams that begin in its chunk of the list, for a block of columns. It goes through them one tile of events
at a time. One program loads each element once and stores it once, without atomics. So every run gives the same bits.
"""

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor

from regbench.ops.ngram.index import Events, NGramIndex, running_sums

TILE = 16
"""Events that a program reads at a time."""


def ngram_head(index: NGramIndex, hidden: Tensor, order: int, shift: int) -> Tensor:
    """See `regbench.ops.ngram.ngram_head`; the tokens are those of the index."""
    return running_sums(hidden, index.events(order, shift), scan)


def scan(values: Tensor, events: Events, backwards: bool) -> Tensor:
    """(N, D) -> (N, D). See `regbench.ops.ngram.index.Scan`."""
    out = torch.empty_like(values)
    if out.numel() == 0:
        return out
    width = values.shape[1]
    bounds, columns = events.bounds, block_columns(width, values.element_size())
    grid = (bounds.numel() - 1, triton.cdiv(width, columns))
    with torch.cuda.device(values.device) if values.is_cuda else contextlib.nullcontext():
        # One warp spans the columns, so the scan along the tile stays within the registers of each thread.
        scan_kernel[grid](
            values, out, events.code, events.first, events.count, bounds, width, backwards, TILE, columns, num_warps=1
        )
    return out


def block_columns(width: int, element_size: int) -> int:
    """The columns of a program: as many as one warp loads at 16 bytes a thread, or all if there are fewer."""
    return min(triton.next_power_of_2(width), 512 // element_size)


@triton.jit
def _add(total_a: tl.tensor, first_a: tl.tensor, total_b: tl.tensor, first_b: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The segmented sum of two runs. It uses `where`: in a product with a mask, a NaN of one n-gram would reach the next."""
    return tl.where(first_b, total_b, total_a + total_b), first_a | first_b


@triton.jit
def scan_kernel(
    values: tl.tensor,  # (N, D)
    out: tl.tensor,  # (N, D)
    code: tl.tensor,  # (2 N,)
    first: tl.tensor,  # (2 N + 1,)
    count: tl.tensor,  # (2 N,)
    bounds: tl.tensor,  # (chunks + 1,)
    width: tl.tensor,
    BACKWARDS: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Follows the events of one chunk for one block of columns. See `regbench.ops.ngram.index.Scan`."""
    low = tl.load(bounds + tl.program_id(0))
    high = tl.load(bounds + tl.program_id(0) + 1)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    step = tl.arange(0, TILE)
    wide: tl.constexpr = tl.float64 if values.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((COLUMNS,), wide)  # of the n-gram that the last tile ended in
    for tile in range(0, high - low, TILE):
        here = tile + step < high - low
        event = high - 1 - tile - step if BACKWARDS else low + tile + step
        at = tl.load(code + event, mask=here, other=0)
        starts = tl.load(first + event + BACKWARDS, mask=here, other=1) != 0
        scale = (1.0 / tl.load(count + event, mask=here, other=1).to(wide))[:, None]
        place = (at >> 1).to(tl.int64)[:, None] * width + column
        adds = (at & 1) != BACKWARDS
        mask = here[:, None] & (column < width)
        new = tl.load(values + place, mask=mask & adds[:, None], other=0.0).to(wide) * scale
        new += tl.where(((step == 0) & ~starts)[:, None], total[None, :], 0.0)
        sums, _ = tl.associative_scan((new, tl.broadcast_to(starts[:, None], (TILE, COLUMNS))), 0, _add)
        tl.store(out + place, sums * scale, mask=mask & ~adds[:, None])
        total = tl.sum(tl.where((step == TILE - 1)[:, None], sums, 0.0), 0)
