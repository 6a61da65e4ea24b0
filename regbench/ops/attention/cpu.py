"""Causal attention with narrow heads on the CPU: Numba kernels that go through the keys of one query in vectors of positions.

PyTorch's kernel works on vectors of channels, 16 of them with AVX-512. With heads of 8 channels half of such a vector is empty.
From about 100 positions on it then takes twice as long as the kernels here. With 16 channels it is as fast. So it is taken there.

Keys and values lie channel by channel. So a vector has the same channel of many positions. The (L, L) weights are never held. The
backward pass computes a row of them again from the logarithm of its sum. Sequences, each of one batch row and one head, are
shared among threads.
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
from regbench.ops.attention import fused
from regbench.ops.backend import common_type

NARROW = 16
"""Heads with fewer channels take the kernels here."""

TILE = 16
"""The positions of a row are a multiple of this. The last of them are masked, so loops over a row have no remainder."""

UNROLL = 4
"""Channels that one loop over a row does at once. The last of them may be zeros."""

_LOG2_E = math.log2(math.e)


def attention(q: Tensor, k: Tensor, v: Tensor, window: int = 0) -> Tensor:
    """See `regbench.ops.attention.attention`. It computes in float64 if a tensor has it, else in float32.

    A subclass of Tensor may hold no elements, as those by which PyTorch traces and profiles: it is PyTorch's.
    """
    if max(q.shape[-1], v.shape[-1]) >= NARROW or type(q) is not Tensor:
        return fused.attention(q, k, v, window)
    dtype = common_type(q, k, v, least=torch.float32)
    flat = (tensor.to(dtype).flatten(0, 1).contiguous() for tensor in (q, k, v))
    z: Tensor = _Attention.apply(*flat, window or q.shape[2])
    return z.unflatten(0, q.shape[:2]).to(v.dtype)


class _Attention(torch.autograd.Function):
    """Takes contiguous tensors in which batch and heads are one dimension, S."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """(S, L, K), (S, L, K), (S, L, D), how many positions a query sees -> z (S, L, D)."""
        z, norms = torch.empty_like(v), q.new_empty(q.shape[:2])
        run(_forward, len(q), q, k, v, window, z, norms)
        ctx.save_for_backward(q, k, v, z, norms)
        ctx.window = window
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, z, norms = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
        run(_backward, len(q), dz.contiguous(), q, k, v, ctx.window, z, norms, dq, dk, dv)
        return dq, dk, dv, None


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _forward(begin, end, q, k, v, window, z, norms):  # type: ignore[no-untyped-def]
    """Fills z (S, L, D), and norms (S, L): the logarithm to base 2 of the sum by which each row of weights is divided."""
    length, width = q.shape[1:]
    dim = v.shape[2]
    scale, one = q.dtype.type(_LOG2_E / math.sqrt(width)), q.dtype.type(1)
    keys, values = _channels(width, length, q.dtype), _channels(dim, length, q.dtype)
    query, output = np.zeros(len(keys), q.dtype), np.zeros(len(values), q.dtype)
    row, lanes = np.zeros(keys.shape[1], q.dtype), np.zeros(TILE, q.dtype)
    for s in range(begin, end):
        _transpose(k[s], keys, length, width)
        _transpose(v[s], values, length, dim)
        for i in range(length):
            for n in range(width):
                query[n] = scale * q[s, i, n]
            start, stop = _scores(query, keys, i, window, row)
            largest = _largest(row, start, stop, lanes)
            total = _weights(row, start, stop, largest)
            norms[s, i] = largest + np.log2(total)
            _sums(row, start, stop, values, output)
            for d in range(dim):
                z[s, i, d] = output[d] * (one / total)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _backward(begin, end, dz, q, k, v, window, z, norms, dq, dk, dv):  # type: ignore[no-untyped-def]
    """Fills dq, dk (S, L, K) and dv (S, L, D).

    With weights p_j and scores s_j = <q, k_j> / sqrt(K), ds_j = p_j (<dz, v_j> - <dz, z>).
    """
    length, width = q.shape[1:]
    dim = v.shape[2]
    scale, zero = q.dtype.type(1 / math.sqrt(width)), q.dtype.type(0)
    to_base_2 = q.dtype.type(_LOG2_E)
    keys, values = _channels(width, length, q.dtype), _channels(dim, length, q.dtype)
    dkeys, dvalues = np.zeros_like(keys), np.zeros_like(values)
    query, scaled, dquery = np.zeros(len(keys), q.dtype), np.zeros(len(keys), q.dtype), np.zeros(len(keys), q.dtype)
    doutput = np.zeros(len(values), q.dtype)
    row, drow = np.zeros(keys.shape[1], q.dtype), np.zeros(keys.shape[1], q.dtype)
    for s in range(begin, end):
        _transpose(k[s], keys, length, width)
        _transpose(v[s], values, length, dim)
        dkeys[:] = 0
        dvalues[:] = 0
        for i in range(length):
            along = zero
            for d in range(dim):
                doutput[d] = dz[s, i, d]
                along += dz[s, i, d] * z[s, i, d]
            for n in range(width):
                query[n] = scale * q[s, i, n]
                scaled[n] = to_base_2 * query[n]
            start, stop = _scores(scaled, keys, i, window, row)
            _weights(row, start, stop, norms[s, i])
            _products(doutput, values, drow, start, stop)
            _gradients(row, along, drow, start, stop)
            _add(doutput, row, dvalues, start, stop)
            _add(query, drow, dkeys, start, stop)
            _sums(drow, start, stop, keys, dquery)
            for n in range(width):
                dq[s, i, n] = scale * dquery[n]
        _transpose(dkeys, dk[s], width, length)
        _transpose(dvalues, dv[s], dim, length)


@njit(cache=True)
def _transpose(source, target, rows, columns):  # type: ignore[no-untyped-def]
    """target[c, r] = source[r, c]. To assign a slice takes Numba seconds to compile."""
    for r in range(rows):
        for c in range(columns):
            target[c, r] = source[r, c]


@njit(cache=True)
def _channels(width, length, dtype):  # type: ignore[no-untyped-def]
    """Zeros (C, J) for a sequence channel by channel: C and J are the next multiples of UNROLL and TILE."""
    return np.zeros((-(-width // UNROLL) * UNROLL, -(-length // TILE) * TILE), dtype)


@njit(cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _scores(query, keys, i, window, row):  # type: ignore[no-untyped-def]
    """Fills the tiles of the row that position i sees: with its scores, and minus infinity before its window and after i.

    Returns where the first of them starts and the last one stops. They are unsigned: of a loop that begins at a number which may
    be negative, LLVM makes no vectors.
    """
    least = max(0, i + 1 - window)
    start, stop = np.uint64(least // TILE * TILE), np.uint64((i // TILE + 1) * TILE)
    _products(query, keys, row, start, stop)
    masked = row.dtype.type(-np.inf)
    for j in range(start, np.uint64(least)):
        row[j] = masked
    for j in range(np.uint64(i + 1), stop):
        row[j] = masked
    return start, stop


@njit(cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _products(vector, channels, row, start, stop):  # type: ignore[no-untyped-def]
    """row[j] = sum over c of vector[c] channels[c, j], for start <= j < stop."""
    zero = row.dtype.type(0)
    for j in range(start, stop):
        row[j] = zero
    for c in range(0, len(vector), UNROLL):
        a, b, x, y = vector[c], vector[c + 1], vector[c + 2], vector[c + 3]
        for j in range(start, stop):
            row[j] += a * channels[c, j] + b * channels[c + 1, j] + x * channels[c + 2, j] + y * channels[c + 3, j]


@njit(cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _largest(row, start, stop, lanes):  # type: ignore[no-untyped-def]
    """The largest of row[start:stop]. Where a score is NaN it may be another one: the sum of the weights is NaN all the same.

    LLVM makes a vector of a plain maximum only if it may assume that no number is NaN. So there is one maximum a lane first.
    """
    for c in range(TILE):
        lanes[c] = row[start + c]
    for tile in range(start + TILE, stop, TILE):
        for c in range(TILE):
            lanes[c] = lanes[c] if lanes[c] > row[tile + c] else row[tile + c]
    half = TILE // 2
    while half:
        for c in range(half):
            lanes[c] = lanes[c] if lanes[c] > lanes[c + half] else lanes[c + half]
        half //= 2
    return lanes[0]


@njit(cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _weights(row, start, stop, norm):  # type: ignore[no-untyped-def]
    """row[j] = 2^(row[j] - norm), for start <= j < stop. Returns their sum."""
    total = row.dtype.type(0)
    for j in range(start, stop):
        row[j] = exp2(row[j] - norm)
        total += row[j]
    return total


@njit(cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _gradients(row, along, drow, start, stop):  # type: ignore[no-untyped-def]
    """drow[j] = row[j] (drow[j] - along), for start <= j < stop."""
    for j in range(start, stop):
        drow[j] = row[j] * (drow[j] - along)


@njit(cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _sums(row, start, stop, channels, out):  # type: ignore[no-untyped-def]
    """out[c] = sum over start <= j < stop of row[j] channels[c, j]."""
    for c in range(0, len(out), UNROLL):
        a = b = x = y = row.dtype.type(0)
        for j in range(start, stop):
            a += row[j] * channels[c, j]
            b += row[j] * channels[c + 1, j]
            x += row[j] * channels[c + 2, j]
            y += row[j] * channels[c + 3, j]
        out[c], out[c + 1], out[c + 2], out[c + 3] = a, b, x, y


@njit(cache=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _add(vector, row, channels, start, stop):  # type: ignore[no-untyped-def]
    """channels[c, j] += vector[c] row[j], for start <= j < stop."""
    for c in range(len(vector)):
        share = vector[c]
        for j in range(start, stop):
            channels[c, j] += share * row[j]
