"""WKV on the CPU: one Numba loop over time in each direction.

A work item is one sequence and one tile of `TILE` channels, which fill the vector registers. The forward pass stores no states.
The backward pass runs it again into a buffer of its own, then goes back through the buffer. The sums are in units of exp(scale).
Their gradients grow as the sums vanish, so they have a unit of their own, exp(units).

The shape alone decides how the work is divided, and partial sums are added in a fixed order. So results do not depend on the
number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from regbench.ops._numba import exp2, run
from regbench.ops.backend import common_type

TILE = 64
"""Channels that a kernel computes at once."""

_LOG2_E = math.log2(math.e)

# The working set is one array with rows at constant distances. So LLVM knows, without a check for each pair, that the rows do not
# overlap. Channels past the last one are computed too. So loops have constant length and no remainder.
_W, _U, _K, _V, _A, _B, _SCALE, _OUT, _DK, _DV, _DA, _DB, _UNITS, _DW, _DU = range(15)


@njit(cache=True, inline="always", fastmath={"contract"})
def _weights(x, y, log2_e, one):  # type: ignore[no-untyped-def]
    """exp(x - max(x, y)) and exp(y - max(x, y)). One of them is 1, so a single exponential gives both."""
    less = exp2(-abs(x - y) * log2_e)
    return less if x < y else one, one if x < y else less


@njit(cache=True, inline="always", fastmath={"contract"})
def _load(row, place, source, low, width):  # type: ignore[no-untyped-def]
    """Copies source[low : low + width] to a row of the working set."""
    for d in range(width):
        row[place, d] = source[low + d]


@njit(cache=True, inline="always", fastmath={"contract"})
def _store(row, place, target, low, width):  # type: ignore[no-untyped-def]
    """Copies a row of the working set to target[low : low + width]."""
    for d in range(width):
        target[low + d] = row[place, d]


@njit(cache=True, inline="always", fastmath={"contract"})
def _advance(row, log2_e, one):  # type: ignore[no-untyped-def]
    """Adds the key and the value of one position to the sums."""
    for d in range(TILE):
        kept = row[_SCALE, d] - row[_W, d]
        past, now = _weights(kept, row[_K, d], log2_e, one)
        row[_A, d] = past * row[_A, d] + now * row[_V, d]
        row[_B, d] = past * row[_B, d] + now
        row[_SCALE, d] = max(kept, row[_K, d])


# Python's error model would test every divisor for zero. Then the loops could not be vectorised.
@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _forward(begin, end, w, u, k, v, state, z, final):  # type: ignore[no-untyped-def]
    """Fills z and final. Shapes as in the op; state and final are (3, B, D)."""
    length, dim = k.shape[1:]
    tiles = (dim + TILE - 1) // TILE
    log2_e, one = k.dtype.type(_LOG2_E), k.dtype.type(1)
    for item in range(begin, end):
        b = item // tiles
        low = item % tiles * TILE
        width = min(TILE, dim - low)
        row = np.zeros((_OUT + 1, TILE), k.dtype)
        _load(row, _W, w, low, width)
        _load(row, _U, u, low, width)
        for i in range(3):
            _load(row, _A + i, state[i, b], low, width)
        for t in range(length):
            _load(row, _K, k[b, t], low, width)
            _load(row, _V, v[b, t], low, width)
            for d in range(TILE):
                past, now = _weights(row[_SCALE, d], row[_U, d] + row[_K, d], log2_e, one)
                row[_OUT, d] = (past * row[_A, d] + now * row[_V, d]) / (past * row[_B, d] + now)
            _store(row, _OUT, z[b, t], low, width)
            _advance(row, log2_e, one)
        for i in range(3):
            _store(row, _A + i, final[i, b], low, width)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _backward(begin, end, dz, dfinal, w, u, k, v, state, dw, du, dk, dv, dstate):  # type: ignore[no-untyped-def]
    """Fills dw and du (B, D), dk, dv and dstate (2, B, D). dfinal is (2, B, D)."""
    length, dim = k.shape[1:]
    tiles = (dim + TILE - 1) // TILE
    log2_e, one = k.dtype.type(_LOG2_E), k.dtype.type(1)
    for item in range(begin, end):
        b = item // tiles
        low = item % tiles * TILE
        width = min(TILE, dim - low)
        row = np.zeros((_DU + 1, TILE), k.dtype)
        _load(row, _W, w, low, width)
        _load(row, _U, u, low, width)
        for i in range(3):
            _load(row, _A + i, state[i, b], low, width)
        before = np.empty((length, 3, TILE), k.dtype)  # the state before each position
        for t in range(length):
            for i in range(3):
                _store(row, _A + i, before[t, i], 0, TILE)
            _load(row, _K, k[b, t], low, width)
            _load(row, _V, v[b, t], low, width)
            _advance(row, log2_e, one)
        _load(row, _DA, dfinal[0, b], low, width)
        _load(row, _DB, dfinal[1, b], low, width)
        for d in range(TILE):
            row[_UNITS, d] = -row[_SCALE, d]
        for t in range(length - 1, -1, -1):
            _load(row, _K, k[b, t], low, width)
            _load(row, _V, v[b, t], low, width)
            _load(row, _OUT, dz[b, t], low, width)
            for i in range(3):
                _load(row, _A + i, before[t, i], 0, TILE)
            for d in range(TILE):
                k_t = row[_K, d]
                v_t = row[_V, d]
                a = row[_A, d]
                b_sum = row[_B, d]
                scale = row[_SCALE, d]
                da = row[_DA, d]
                db = row[_DB, d]
                units = row[_UNITS, d]
                # Through the sums after this position. Both exponents are at most 0, as each later sum contains both terms.
                now = exp2((k_t + units) * log2_e)
                past = exp2((scale - row[_W, d] + units) * log2_e)
                row[_DW, d] -= past * (a * da + b_sum * db)
                dv_t = now * da
                dk_t = now * (v_t * da + db)
                # Through this position's output.
                ahead = row[_U, d] + k_t
                past, now = _weights(scale, ahead, log2_e, one)
                dtop = row[_OUT, d] / (past * b_sum + now)  # the gradient of the numerator, in units of exp(-largest)
                z = (past * a + now * v_t) / (past * b_sum + now)
                dnow = now * dtop * (v_t - z)
                row[_DU, d] += dnow
                row[_DK, d] = dk_t + dnow
                row[_DV, d] = dv_t + now * dtop
                # To the sums before it, in the larger of the two units.
                later = units - row[_W, d]
                here = -max(scale, ahead)
                from_later, from_here = _weights(later, here, log2_e, one)
                row[_DA, d] = from_later * da + from_here * dtop
                row[_DB, d] = from_later * db - from_here * dtop * z
                row[_UNITS, d] = max(later, here)
            _store(row, _DK, dk[b, t], low, width)
            _store(row, _DV, dv[b, t], low, width)
        _store(row, _DW, dw[b], low, width)
        _store(row, _DU, du[b], low, width)
        for d in range(width):
            back = exp2((row[_UNITS, d] + state[2, b, low + d]) * log2_e)
            dstate[0, b, low + d] = row[_DA, d] * back
            dstate[1, b, low + d] = row[_DB, d] * back


def _items(k: Tensor) -> int:
    """How many work items there are, each one sequence and one tile."""
    return k.shape[0] * -(-k.shape[2] // TILE)


class _WKV(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, w: Tensor, u: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Tensor
    ) -> tuple[Tensor, ...]:
        """The output z (B, L, D), and a, b and scale (B, D) after the last position."""
        state = torch.stack([a, b, scale])
        z, final = torch.empty_like(k), torch.empty_like(state)
        run(_forward, _items(k), w, u, k, v, state, z, final)
        ctx.save_for_backward(w, u, k, v, state)
        a, b, scale = (part.clone() for part in final)
        ctx.mark_non_differentiable(scale)
        return z, a, b, scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor, da: Tensor, db: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs, in their order; None for the scale."""
        w, u, k, v, state = ctx.saved_tensors
        dw, du, dstate = torch.empty_like(state[0]), torch.empty_like(state[0]), torch.empty_like(state[:2])
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        run(_backward, _items(k), dz.contiguous(), torch.stack([da, db]), w, u, k, v, state, dw, du, dk, dv, dstate)
        return dw.sum(0), du.sum(0), dk, dv, dstate[0], dstate[1], None


def wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """See `regbench.ops.wkv.wkv`. It computes in float64 if a tensor has it, else in float32."""
    inputs = (w, u, k, v, a, b, scale)
    if k.numel() == 0:
        return torch.empty_like(k), (a, b, scale)
    dtype = common_type(*inputs, least=torch.float32)
    z, *final = _WKV.apply(*(tensor.to(dtype).contiguous() for tensor in inputs))
    a, b, scale = final
    return z.to(k.dtype), (a, b, scale)
