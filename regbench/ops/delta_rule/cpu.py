"""The delta rule on the CPU: Numba kernels that run the recurrence itself, with the state in the nearest cache.

The forward pass stores the state at the start of every chunk. The backward pass runs each chunk again from there. The columns
of the state, the value channels, do not depend on each other: a tile of them passes through a chunk at once. Sequences, each of
one batch row and one head, are shared among threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from regbench.ops._numba import run
from regbench.ops.backend import common_type
from regbench.ops.linear_attention import channel_decay

CHUNK = 32
"""Positions between two stored states."""

TILE = 32
"""Value channels that a kernel computes at once."""


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.delta_rule.delta_rule`. It takes the general form, and computes in float32 at least."""
    inputs = (q, k, a, b, v, channel_decay(log_decay, q), state)
    dtype = common_type(*inputs, least=torch.float32)
    z, state = _DeltaRule.apply(*(tensor.to(dtype).flatten(0, 1).contiguous() for tensor in inputs))
    return z.unflatten(0, q.shape[:2]), state.unflatten(0, q.shape[:2])


class _DeltaRule(torch.autograd.Function):
    """Takes contiguous tensors in which batch and heads are one dimension, S."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, a: Tensor, b: Tensor, v: Tensor, log_decay: Tensor, initial: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(S, L, K) four times, (S, L, V), (S, L, K), (S, K, V) -> z (S, L, V) and the final state (S, K, V)."""
        sequences, length, width = q.shape
        decay = log_decay.exp()
        states = q.new_empty(sequences, -(-length // CHUNK) + 1, width, v.shape[2])
        states[:, 0] = initial
        z = torch.empty_like(v)
        run(_forward, sequences, q, k, a, b, v, decay, states, z)
        ctx.save_for_backward(q, k, a, b, v, decay, states)
        return z, states[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor, dfinal: Tensor) -> tuple[Tensor, ...]:
        q, k, a, b, v, decay, states = ctx.saved_tensors
        gradients = torch.zeros(5, *q.shape, dtype=q.dtype)  # of q, k, a, b and the log decay
        dv = torch.empty_like(v)
        dstate = dfinal.clone(memory_format=torch.contiguous_format)
        run(_backward, len(q), dz.contiguous(), q, k, a, b, v, decay, states, gradients, dv, dstate)
        dq, dk, da, db, dlog = gradients.unbind(0)
        return dq, dk, da, db, dv, dlog, dstate


# Rows of one working array. Loops over TILE have constant length, and channels past the last one are computed on zeros.
_V, _READ, _Z, _DV, _DREAD = range(5)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _forward(begin, end, q, k, a, b, v, decay, states, z):  # type: ignore[no-untyped-def]
    """Fills z (S, L, V) and states[:, 1:]. q, k, a, b, decay: (S, L, K); v: (S, L, V); states: (S, chunks + 1, K, V)."""
    length, width = q.shape[1:]
    dim = v.shape[2]
    for s in range(begin, end):
        row = np.zeros((3, TILE), q.dtype)
        state = np.zeros((width, TILE), q.dtype)
        for low in range(0, dim, TILE):
            channels = min(TILE, dim - low)
            state[:] = 0
            row[:] = 0
            for n in range(width):
                for d in range(channels):
                    state[n, d] = states[s, 0, n, low + d]
            for t in range(length):
                for d in range(channels):
                    row[_V, d] = v[s, t, low + d]
                for d in range(TILE):
                    row[_READ, d] = 0
                    row[_Z, d] = 0
                for n in range(width):
                    decay_n = decay[s, t, n]
                    a_n = a[s, t, n]
                    for d in range(TILE):
                        kept = decay_n * state[n, d]
                        state[n, d] = kept
                        row[_READ, d] += a_n * kept
                for n in range(width):
                    k_n = k[s, t, n]
                    b_n = b[s, t, n]
                    q_n = q[s, t, n]
                    for d in range(TILE):
                        new = state[n, d] + b_n * row[_READ, d] + k_n * row[_V, d]
                        state[n, d] = new
                        row[_Z, d] += q_n * new
                for d in range(channels):
                    z[s, t, low + d] = row[_Z, d]
                if (t + 1) % CHUNK == 0 or t + 1 == length:
                    for n in range(width):
                        for d in range(channels):
                            states[s, t // CHUNK + 1, n, low + d] = state[n, d]


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _backward(begin, end, dz, q, k, a, b, v, decay, states, gradients, dv, dstate):  # type: ignore[no-untyped-def]
    """Fills dv, and adds to gradients (5, S, L, K), those of q, k, a, b and the log decay.

    The chunks are run again from the last to the first, each from the state at its start. dstate (S, K, V) is at first the
    gradient of the final state, and in the end that of the initial state.
    """
    length, width = q.shape[1:]
    dim = v.shape[2]
    for s in range(begin, end):
        rows = np.zeros((CHUNK, 5, TILE), q.dtype)
        kept = np.zeros((CHUNK + 1, width, TILE), q.dtype)  # the decayed state of each position
        grad = np.zeros((width, TILE), q.dtype)
        for low in range(0, dim, TILE):
            channels = min(TILE, dim - low)
            rows[:] = 0
            kept[:] = 0
            grad[:] = 0
            for n in range(width):
                for d in range(channels):
                    grad[n, d] = dstate[s, n, low + d]
            for chunk in range(states.shape[1] - 2, -1, -1):
                start = chunk * CHUNK
                size = min(CHUNK, length - start)
                for n in range(width):
                    for d in range(channels):
                        kept[0, n, d] = states[s, chunk, n, low + d]
                for i in range(size):
                    t = start + i
                    for d in range(TILE):
                        rows[i, _READ, d] = 0
                        rows[i, _DV, d] = 0
                        rows[i, _DREAD, d] = 0
                    for d in range(channels):
                        rows[i, _V, d] = v[s, t, low + d]
                        rows[i, _Z, d] = dz[s, t, low + d]
                    for n in range(width):
                        decay_n = decay[s, t, n]
                        a_n = a[s, t, n]
                        for d in range(TILE):
                            decayed = decay_n * kept[i, n, d]
                            kept[i, n, d] = decayed
                            rows[i, _READ, d] += a_n * decayed
                    for n in range(width):
                        k_n = k[s, t, n]
                        b_n = b[s, t, n]
                        for d in range(TILE):
                            kept[i + 1, n, d] = kept[i, n, d] + b_n * rows[i, _READ, d] + k_n * rows[i, _V, d]
                for i in range(size - 1, -1, -1):
                    t = start + i
                    zero = q.dtype.type(0)
                    read_dz, v_dz = zero, zero
                    for d in range(TILE):
                        read_dz += rows[i, _READ, d] * rows[i, _Z, d]
                        v_dz += rows[i, _V, d] * rows[i, _Z, d]
                    for n in range(width):
                        q_n = q[s, t, n]
                        k_n = k[s, t, n]
                        b_n = b[s, t, n]
                        dq_n, dk_n, db_n = zero, zero, zero
                        for d in range(TILE):
                            g = grad[n, d] + q_n * rows[i, _Z, d]
                            grad[n, d] = g
                            dq_n += kept[i, n, d] * rows[i, _Z, d]
                            dk_n += g * rows[i, _V, d]
                            db_n += g * rows[i, _READ, d]
                            rows[i, _DV, d] += k_n * g
                            rows[i, _DREAD, d] += b_n * g
                        gradients[0, s, t, n] += dq_n + b_n * read_dz + k_n * v_dz
                        gradients[1, s, t, n] += dk_n
                        gradients[3, s, t, n] += db_n
                    for n in range(width):
                        a_n = a[s, t, n]
                        decay_n = decay[s, t, n]
                        da_n, dlog_n = zero, zero
                        for d in range(TILE):
                            g = grad[n, d] + a_n * rows[i, _DREAD, d]
                            da_n += kept[i, n, d] * rows[i, _DREAD, d]
                            dlog_n += kept[i, n, d] * g
                            grad[n, d] = decay_n * g
                        gradients[2, s, t, n] += da_n
                        gradients[4, s, t, n] += dlog_n
                    for d in range(channels):
                        dv[s, t, low + d] = rows[i, _DV, d]
            for n in range(width):
                for d in range(channels):
                    dstate[s, n, low + d] = grad[n, d]
