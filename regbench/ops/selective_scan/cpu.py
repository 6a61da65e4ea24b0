"""The selective scan on the CPU: Numba kernels that never hold a (B, L, D, N) array.

A work item is one sequence and one tile of `TILE` channels, in both passes. Time is cut into chunks of `CHUNK` positions. The
forward pass stores the state at the start of every chunk, which takes N / CHUNK times the memory of x. The backward pass goes
through the chunks from the last to the first, and runs each again from its start. For one state index n at a time, all that a
chunk needs fits in the nearest caches (24 KB and 56 KB), and the tile fills the vector registers.

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

CHUNK = 32
"""Positions between two stored states."""

TILE = 64
"""Channels that a kernel computes at once."""

_LOG2_E, _LN_2 = math.log2(math.e), math.log(2)

# The working set of a chunk is one array with rows at constant distances. So LLVM knows, without a check for each pair, that the
# rows do not overlap. First the rows of each position, then those of the current state index.
_DELTA, _U, _Y, _DECAY, _KEPT, _DU, _DDELTA = range(7)
_RATE, _STATE, _GRAD, _DRATE = range(4)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _forward(begin, end, x, delta, A, B, C, D, states, y):  # type: ignore[no-untyped-def]
    """Fills y and states[:, 1:]. Shapes as in the op, but A (N, D) and states (B, chunks + 1, N, D)."""
    length, dim = x.shape[1:]
    n_state = A.shape[0]
    tiles = (dim + TILE - 1) // TILE
    for item in range(begin, end):
        b = item // tiles
        low = item % tiles * TILE
        width = min(TILE, dim - low)
        # Channels past the last one are computed too, on zeros. So loops have constant length and no remainder.
        steps = np.zeros((CHUNK, 3, TILE), x.dtype)
        row = np.zeros((2, TILE), x.dtype)
        for chunk in range(states.shape[1] - 1):
            start = chunk * CHUNK
            size = min(CHUNK, length - start)
            for t in range(size):
                for d in range(width):
                    steps[t, _DELTA, d] = delta[b, start + t, low + d]
                    steps[t, _U, d] = delta[b, start + t, low + d] * x[b, start + t, low + d]
                    steps[t, _Y, d] = D[low + d] * x[b, start + t, low + d]
            for n in range(n_state):
                for d in range(width):
                    row[_RATE, d] = A[n, low + d] * _LOG2_E  # exp(delta A) is 2^(delta rate)
                    row[_STATE, d] = states[b, chunk, n, low + d]
                for t in range(size):
                    b_t = B[b, start + t, n]
                    c_t = C[b, start + t, n]
                    for d in range(TILE):
                        decay = exp2(steps[t, _DELTA, d] * row[_RATE, d])
                        h = decay * row[_STATE, d] + steps[t, _U, d] * b_t
                        row[_STATE, d] = h
                        steps[t, _Y, d] += h * c_t
                for d in range(width):
                    states[b, chunk + 1, n, low + d] = row[_STATE, d]
            for t in range(size):
                for d in range(width):
                    y[b, start + t, low + d] = steps[t, _Y, d]


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _backward(begin, end, dy, x, delta, A, B, C, D, states, dx, ddelta, dA, dB, dC, dD, dstate):  # type: ignore[no-untyped-def]
    """Fills dx, ddelta, dB and dC (tiles, B, L, N), and adds to dA (B, N, D) and dD (B, D).

    dstate (B, N, D) is at first the gradient of the final state, and in the end that of the initial state.
    """
    length, dim = x.shape[1:]
    n_state = A.shape[0]
    tiles = (dim + TILE - 1) // TILE
    for item in range(begin, end):
        b = item // tiles
        tile = item % tiles
        low = tile * TILE
        width = min(TILE, dim - low)
        steps = np.zeros((CHUNK, 7, TILE), x.dtype)
        row = np.zeros((4, TILE), x.dtype)
        for chunk in range(states.shape[1] - 2, -1, -1):
            start = chunk * CHUNK
            size = min(CHUNK, length - start)
            for t in range(size):
                for d in range(width):
                    steps[t, _DELTA, d] = delta[b, start + t, low + d]
                    steps[t, _U, d] = delta[b, start + t, low + d] * x[b, start + t, low + d]
                    steps[t, _Y, d] = dy[b, start + t, low + d]
                    steps[t, _DU, d] = 0
                    steps[t, _DDELTA, d] = 0
            for n in range(n_state):
                for d in range(width):
                    row[_RATE, d] = A[n, low + d] * _LOG2_E  # exp(delta A) is 2^(delta rate)
                    row[_STATE, d] = states[b, chunk, n, low + d]
                    row[_GRAD, d] = dstate[b, n, low + d]
                    row[_DRATE, d] = dA[b, n, low + d]
                for t in range(size):
                    b_t = B[b, start + t, n]
                    for d in range(TILE):
                        decay = exp2(steps[t, _DELTA, d] * row[_RATE, d])
                        kept = decay * row[_STATE, d]
                        steps[t, _DECAY, d] = decay
                        steps[t, _KEPT, d] = kept
                        row[_STATE, d] = kept + steps[t, _U, d] * b_t
                for t in range(size - 1, -1, -1):
                    b_t = B[b, start + t, n]
                    c_t = C[b, start + t, n]
                    db = x.dtype.type(0)
                    dc = x.dtype.type(0)
                    for d in range(TILE):
                        u = steps[t, _U, d]
                        kept = steps[t, _KEPT, d]
                        dh = row[_GRAD, d] + c_t * steps[t, _Y, d]
                        db += dh * u
                        dc += (kept + u * b_t) * steps[t, _Y, d]
                        steps[t, _DU, d] += dh * b_t
                        dlog = dh * kept  # the gradient of delta_t A
                        steps[t, _DDELTA, d] += dlog * row[_RATE, d]
                        row[_DRATE, d] += dlog * steps[t, _DELTA, d]
                        row[_GRAD, d] = dh * steps[t, _DECAY, d]
                    dB[tile, b, start + t, n] = db
                    dC[tile, b, start + t, n] = dc
                for d in range(width):
                    dstate[b, n, low + d] = row[_GRAD, d]
                    dA[b, n, low + d] = row[_DRATE, d]
            for t in range(size):
                for d in range(width):
                    x_t = x[b, start + t, low + d]
                    du = steps[t, _DU, d]
                    dx[b, start + t, low + d] = delta[b, start + t, low + d] * du + D[low + d] * steps[t, _Y, d]
                    ddelta[b, start + t, low + d] = steps[t, _DDELTA, d] * _LN_2 + x_t * du
                    dD[b, low + d] += x_t * steps[t, _Y, d]


def _items(x: Tensor) -> int:
    """How many work items there are, each one sequence and one tile."""
    return x.shape[0] * -(-x.shape[2] // TILE)


class _SelectiveScan(torch.autograd.Function):
    """Takes contiguous tensors, with A (N, D) and the states (B, N, D)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, initial: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output y (B, L, D) and the final state (B, N, D)."""
        batch, length, dim = x.shape
        states = x.new_empty(batch, -(-length // CHUNK) + 1, A.shape[0], dim)
        states[:, 0] = initial
        y = torch.empty_like(x)
        run(_forward, _items(x), x, delta, A, B, C, D, states, y)
        ctx.save_for_backward(x, delta, A, B, C, D, states)
        return y, states[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor, ...]:
        x, delta, A, B, C, D, states = ctx.saved_tensors
        dx, ddelta = torch.empty_like(x), torch.empty_like(x)
        dA, dD = torch.zeros_like(states[:, 0]), x.new_zeros(x.shape[0], x.shape[2])
        dB, dC = x.new_empty(2, -(-x.shape[2] // TILE), *B.shape)
        dstate = dfinal.clone(memory_format=torch.contiguous_format)
        run(_backward, _items(x), dy.contiguous(), x, delta, A, B, C, D, states, dx, ddelta, dA, dB, dC, dD, dstate)
        return dx, ddelta, dA.sum(0), dB.sum(0), dC.sum(0), dD.sum(0), dstate


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.selective_scan.selective_scan`. It computes in float64 if a tensor has it, else in float32."""
    if initial_state is None:
        initial_state = x.new_zeros(x.shape[0], *A.shape)
    if D is None:
        D = x.new_zeros(x.shape[2])
    inputs = (x, delta, A.t(), B, C, D, initial_state.mT)
    dtype = common_type(*inputs, least=torch.float32)
    y, final = _SelectiveScan.apply(*(tensor.to(dtype).contiguous() for tensor in inputs))
    return y.to(x.dtype), final.mT
