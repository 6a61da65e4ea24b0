"""The fast forms of linear attention. All cut time into chunks, so memory grows as L.

The usual chunk form weighs a pair of positions by exp(b_i - b_j), with b the running sum of log decays, and splits it into
exp(b_i) and exp(-b_j) to have a matrix product: the first underflows and the second overflows where decays are strong. In the
first two forms here every factor is a product of decays, at most one.

- `linear_attention_cpu`: Numba kernels that run the recurrence itself with the state in the nearest cache.
- `linear_attention_chunked`: PyTorch operations on any device. Pairs within a chunk are weighed as in attention, and the state
  goes on from chunk to chunk (Sun et al. 2023, Eq. 7; Yang et al. 2023, section 4).
- `linear_attention_fla`: the Triton kernels of flash-linear-attention.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regbench.errors import UserError

CHUNK = 32
"""Positions in a chunk: a power of two, as chunks are built by halves."""

TILE = 32
"""Value channels that a CPU kernel carries at once."""


def linear_attention_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`; computes in float64 if a tensor has it, else in float32."""
    if log_decay is None:
        log_decay = q.new_zeros(q.shape[1])
    if log_decay.dim() == 1:
        log_decay = log_decay[:, None, None].expand(q.shape)
    if initial_state is None:
        initial_state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    inputs = (q, k, v, log_decay, initial_state)
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in inputs) else torch.float32
    z, state = _LinearAttention.apply(*(tensor.to(dtype).flatten(0, 1).contiguous() for tensor in inputs))
    return z.unflatten(0, q.shape[:2]).to(v.dtype), state.unflatten(0, q.shape[:2])


class _LinearAttention(torch.autograd.Function):
    """Takes contiguous tensors in which batch and heads are one dimension, S."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        sequences, length, width = q.shape
        decay = log_decay.exp()
        states = q.new_empty(sequences, -(-length // CHUNK) + 1, width, v.shape[2])
        states[:, 0] = initial
        z = torch.empty_like(v)
        _run(_forward, q, k, v, decay, states, z)
        ctx.save_for_backward(q, k, v, decay, states)
        return z, states[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor, dfinal: Tensor) -> tuple[Tensor, ...]:
        q, k, v, decay, states = ctx.saved_tensors
        dq, dk, dlog = torch.zeros_like(q), torch.zeros_like(q), torch.zeros_like(q)
        dv = torch.empty_like(v)
        dstate = dfinal.clone(memory_format=torch.contiguous_format)
        _run(_backward, dz.contiguous(), q, k, v, decay, states, dq, dk, dv, dlog, dstate)
        return dq, dk, dv, dlog, dstate


def _run(kernel: Any, *tensors: Tensor) -> None:
    """Calls a kernel on the sequences, shared out among as many threads as PyTorch would use.

    They are Python's threads, as OpenMP's wait for each other in a busy loop: where other programs hold the cores, it would
    take many times as long as the kernels themselves.
    """
    arrays = [tensor.detach().numpy() for tensor in tensors]
    threads = min(torch.get_num_threads(), len(arrays[0]))
    if threads <= 1:
        kernel(*arrays)
        return
    with ThreadPoolExecutor(threads) as pool:
        parts = zip(*(np.array_split(array, threads) for array in arrays), strict=True)
        for done in [pool.submit(kernel, *part) for part in parts]:
            done.result()


# Of the state, one row at a time, S[n, low : low + TILE], goes through the positions of a chunk. The working set is one array
# whose rows lie at constant distances: this is how LLVM knows, without a check for every pair, that they do not overlap.
_V, _Z, _KEPT, _DV = range(4)
_STATE, _GRAD = range(2)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _forward(q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, states: np.ndarray, z: np.ndarray) -> None:
    """Fills z (S, L, V) and states[:, 1:]. q, k, decay: (S, L, K); v: (S, L, V); states: (S, chunks + 1, K, V)."""
    length, width = q.shape[1:]
    dim = v.shape[2]
    for s in range(q.shape[0]):
        # Channels past the last one are computed too, on zeros: loops of constant length need no remainder.
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
def _backward(
    dz: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    states: np.ndarray,
    dq: np.ndarray,
    dk: np.ndarray,
    dv: np.ndarray,
    dlog: np.ndarray,
    dstate: np.ndarray,
) -> None:
    """Fills dv, and adds to dq, dk and dlog, the gradient of the log decay.

    Each chunk, from the last to the first, is run again from the state at its start. dstate (S, K, V) comes in as the gradient
    of the final state and leaves as that of the initial one.
    """
    length, width = q.shape[1:]
    dim = v.shape[2]
    for s in range(q.shape[0]):
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


def linear_attention_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`; computes in float64 if a tensor has it, else in float32."""
    length = q.shape[2]
    if log_decay is None:
        log_decay = q.new_zeros(q.shape[1])
    state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]) if initial_state is None else initial_state
    inputs = (q, k, v, log_decay, state)
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in inputs) else torch.float32
    state = state.to(dtype)
    if length == 0:
        return torch.empty_like(v), state
    size = min(CHUNK, 1 << (length - 1).bit_length())

    def cut(x: Tensor) -> Tensor:
        """(B, H, L, *) -> (B, H, N, C, *). Zeros fill the last chunk: they add nothing to the state, and do not decay it."""
        return F.pad(x.to(dtype), (0, 0, 0, -length % size)).unflatten(2, (-1, size))

    # Sums over a whole sequence are not for half precision.
    with torch.autocast(q.device.type, enabled=False):
        queries, keys, values = cut(q), cut(k), cut(v)
        if log_decay.dim() == 1:
            scores, queries, keys, decay = _decay_of_heads(queries, keys, log_decay.to(dtype), length)
        else:
            scores, queries, keys, decay = _decay_of_channels(queries, keys, cut(log_decay))
        states = []
        for decay_n, added_n in zip(decay.mT.unbind(2), (keys.mT @ values).unbind(2), strict=True):
            states.append(state)
            state = decay_n * state + added_n
        z = scores @ values + queries @ torch.stack(states, dim=2)
    return z.flatten(2, 3)[:, :, :length].to(v.dtype), state


def _decay_of_heads(q: Tensor, k: Tensor, log_decay: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `_decay_of_channels` returns, for a log decay (H,): one matrix weighs the scores of all chunks."""
    chunks, size = q.shape[2:4]
    g = log_decay[:, None, None, None]  # (H, 1, 1, 1)
    i = torch.arange(size, device=q.device)[:, None]
    filled = (length - size * torch.arange(chunks, device=q.device)).clamp(max=size)[:, None, None]  # (N, 1, 1)
    weights = (g * (i - i.T).clamp(min=0)).exp().tril()  # (H, 1, C, C)
    since_start = (g * (i + 1)).exp()  # (H, 1, C, 1)
    until_end = (g * (filled - 1 - i).clamp(min=0)).exp()  # (H, N, C, 1)
    return q @ k.mT * weights, q * since_start, k * until_end, (g * filled).exp()[None]


def _decay_of_channels(q: Tensor, k: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(B, H, N, C, K) each -> the decayed scores within each chunk (B, H, N, C, C), the queries decayed since their chunk
    began and the keys until it ends (B, H, N, C, K), and the decay over each chunk (B, H, N, 1, K).

    Blocks of one position are joined to blocks of two, of four, and on to the chunk. From one half of a block to the other, a
    query carries the decay since its half began and a key the decay until its half ended.
    """
    q, k, decay = (x.unsqueeze(4) for x in (q, k, log_decay.exp()))  # (B, H, N, C, 1, K)
    scores = (q * k).sum(-1, keepdim=True)
    q = q * decay
    while scores.shape[3] > 1:
        (q1, q2), (k1, k2), (decay1, decay2), (scores1, scores2) = (
            x.unflatten(3, (-1, 2)).unbind(4) for x in (q, k, decay, scores)
        )
        across = q2 @ k1.mT
        scores = torch.cat([F.pad(scores1, (0, across.shape[-1])), torch.cat([across, scores2], -1)], -2)
        q, k, decay = torch.cat([q1, q2 * decay1], -2), torch.cat([k1 * decay2, k2], -2), decay1 * decay2
    return scores.squeeze(3), q.squeeze(3), k.squeeze(3), decay.squeeze(3)


def linear_attention_fla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`; not for float64.

    Raises:
        UserError: a tensor is float64.
    """
    if any(tensor.dtype == torch.float64 for tensor in (q, k, v)):
        raise UserError("backend 'fla' of linear_attention does not compute in float64")
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla

    given: dict[str, Any] = {name: x.transpose(1, 2).contiguous() for name, x in (("q", q), ("k", k), ("v", v))}
    if initial_state is not None:
        given["initial_state"] = initial_state.float()
    if log_decay is None:
        kernel = chunk_simple_gla
    elif log_decay.dim() == 1:
        # Not as `g_gamma`, through which no gradient flows.
        kernel, given["g"] = chunk_simple_gla, log_decay.float().expand(given["q"].shape[:3]).contiguous()
    else:
        kernel, given["g"] = chunk_gla, log_decay.transpose(1, 2).contiguous()
    z, state = kernel(**given, scale=1.0, output_final_state=True)
    return z.transpose(1, 2), state
