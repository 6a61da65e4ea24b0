"""Linear attention on the CPU.

Where decays differ by key channel, and the state is not `WIDE`, Numba kernels run the recurrence itself, with the state in the
nearest cache. Elsewhere the chunked form is up to twice as fast.

The forward pass of the kernels stores the state at the start of every chunk. The backward pass runs each chunk again from
there. Sequences, each of one batch row and one head, are shared among threads.
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
from regbench.ops.linear_attention import chunked

CHUNK = 32
"""Positions between two stored states."""

TILE = 32
"""Value channels that a kernel computes at once."""

WIDE = 64 * 128
"""From so many numbers of a state on matrix products are faster than the kernels: by 1.4 at 64 x 128, by 1.8 at 256 x 256."""


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, initial_state: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """See `regbench.ops.linear_attention.linear_attention`. It computes in float64 if a tensor has it, else in float32."""
    final = initial_state is not None
    if initial_state is not None and not initial_state.requires_grad and not initial_state.any():
        initial_state = None  # that of an empty past
    if log_decay is None or log_decay.dim() < 4 or q.shape[3] * v.shape[3] >= WIDE:
        return chunked.linear_attention(q, k, v, log_decay, initial_state, final)
    if initial_state is None:
        initial_state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    inputs = (q, k, v, log_decay, initial_state)
    dtype = common_type(*inputs, least=torch.float32)
    z, state = _LinearAttention.apply(*(tensor.to(dtype).flatten(0, 1).contiguous() for tensor in inputs))
    return z.unflatten(0, q.shape[:2]).to(v.dtype), state.unflatten(0, q.shape[:2])


class _LinearAttention(torch.autograd.Function):
    """Takes contiguous tensors in which batch and heads are one dimension, S."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        """(S, L, K), (S, L, K), (S, L, V), (S, L, K), (S, K, V) -> z (S, L, V) and the final state (S, K, V)."""
        sequences, length, width = q.shape
        decay = log_decay.exp()
        states = q.new_empty(sequences, -(-length // CHUNK) + 1, width, v.shape[2])
        states[:, 0] = initial
        z = torch.empty_like(v)
        run(_forward, sequences, q, k, v, decay, states, z)
        ctx.save_for_backward(q, k, v, decay, states)
        return z, states[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor, dfinal: Tensor) -> tuple[Tensor, ...]:
        q, k, v, decay, states = ctx.saved_tensors
        dq, dk, dlog = torch.zeros_like(q), torch.zeros_like(q), torch.zeros_like(q)
        dv = torch.empty_like(v)
        dstate = dfinal.clone(memory_format=torch.contiguous_format)
        run(_backward, len(q), dz.contiguous(), q, k, v, decay, states, dq, dk, dv, dlog, dstate)
        return dq, dk, dv, dlog, dstate


# One row of the state at a time, S[n, low : low + TILE], passes through the positions of a chunk. The working set is one array
# with rows at constant distances. So LLVM knows, without a check for each pair, that the rows do not overlap.
_V, _Z, _KEPT, _DV = range(4)
_STATE, _GRAD = range(2)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _forward(begin, end, q, k, v, decay, states, z):  # type: ignore[no-untyped-def]
    """Fills z (S, L, V) and states[:, 1:]. q, k, decay: (S, L, K); v: (S, L, V); states: (S, chunks + 1, K, V)."""
    length, width = q.shape[1:]
    dim = v.shape[2]
    for s in range(begin, end):
        # Channels past the last one are computed too, on zeros. So loops have constant length and no remainder.
        steps = np.zeros((CHUNK, 2, TILE), q.dtype)
        row = np.zeros((1, TILE), q.dtype)
        for chunk in range(states.shape[1] - 1):
            start = chunk * CHUNK
            size = min(CHUNK, length - start)
            for low in range(0, dim, TILE):
                channels = min(TILE, dim - low)
                steps[:] = 0
                for t in range(size):
                    for d in range(channels):
                        steps[t, _V, d] = v[s, start + t, low + d]
                for n in range(width):
                    for d in range(channels):
                        row[_STATE, d] = states[s, chunk, n, low + d]
                    for t in range(size):
                        a_t = decay[s, start + t, n]
                        k_t = k[s, start + t, n]
                        q_t = q[s, start + t, n]
                        for d in range(TILE):
                            state = a_t * row[_STATE, d] + k_t * steps[t, _V, d]
                            row[_STATE, d] = state
                            steps[t, _Z, d] += q_t * state
                    for d in range(channels):
                        states[s, chunk + 1, n, low + d] = row[_STATE, d]
                for t in range(size):
                    for d in range(channels):
                        z[s, start + t, low + d] = steps[t, _Z, d]


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _backward(begin, end, dz, q, k, v, decay, states, dq, dk, dv, dlog, dstate):  # type: ignore[no-untyped-def]
    """Fills dv, and adds to dq, dk and dlog, the gradient of the log decay.

    The chunks are run again from the last to the first, each from the state at its start. dstate (S, K, V) is at first the
    gradient of the final state, and in the end that of the initial state.
    """
    length, width = q.shape[1:]
    dim = v.shape[2]
    for s in range(begin, end):
        steps = np.zeros((CHUNK, 4, TILE), q.dtype)
        row = np.zeros((2, TILE), q.dtype)
        for chunk in range(states.shape[1] - 2, -1, -1):
            start = chunk * CHUNK
            size = min(CHUNK, length - start)
            for low in range(0, dim, TILE):
                channels = min(TILE, dim - low)
                steps[:] = 0
                row[:] = 0
                for t in range(size):
                    for d in range(channels):
                        steps[t, _V, d] = v[s, start + t, low + d]
                        steps[t, _Z, d] = dz[s, start + t, low + d]
                for n in range(width):
                    for d in range(channels):
                        row[_STATE, d] = states[s, chunk, n, low + d]
                        row[_GRAD, d] = dstate[s, n, low + d]
                    for t in range(size):
                        a_t = decay[s, start + t, n]
                        k_t = k[s, start + t, n]
                        for d in range(TILE):
                            kept = a_t * row[_STATE, d]
                            steps[t, _KEPT, d] = kept
                            row[_STATE, d] = kept + k_t * steps[t, _V, d]
                    for t in range(size - 1, -1, -1):
                        a_t = decay[s, start + t, n]
                        k_t = k[s, start + t, n]
                        q_t = q[s, start + t, n]
                        dq_t = q.dtype.type(0)
                        dk_t = q.dtype.type(0)
                        dlog_t = q.dtype.type(0)
                        for d in range(TILE):
                            kept = steps[t, _KEPT, d]
                            grad = row[_GRAD, d] + q_t * steps[t, _Z, d]
                            dq_t += (kept + k_t * steps[t, _V, d]) * steps[t, _Z, d]
                            dk_t += grad * steps[t, _V, d]
                            dlog_t += grad * kept
                            steps[t, _DV, d] += k_t * grad
                            row[_GRAD, d] = a_t * grad
                        dq[s, start + t, n] += dq_t
                        dk[s, start + t, n] += dk_t
                        dlog[s, start + t, n] += dlog_t
                    for d in range(channels):
                        dstate[s, n, low + d] = row[_GRAD, d]
                for t in range(size):
                    for d in range(channels):
                        dv[s, start + t, low + d] = steps[t, _DV, d]
