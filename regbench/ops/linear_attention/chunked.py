"""Linear attention by PyTorch operations on any device. Time is cut into chunks, so memory grows as L.

Within a chunk pairs of positions are weighted as in attention. The state passes from chunk to chunk (Sun et al. 2023, Eq. 7;
Yang et al. 2023, section 4). A pair has the weight exp(b_i - b_j), where b is the running sum of log decays. The usual way splits
it into exp(b_i) and exp(-b_j), to have a matrix product. Where decays are strong, the first underflows and the second overflows.
Here every factor is a product of decays, and so at most one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import common_type

CHUNK = 32
"""Positions in a chunk: a power of two, as chunks are built from halves."""


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`. It computes in float64 if a tensor has it, else in float32."""
    length = q.shape[2]
    if log_decay is None:
        log_decay = q.new_zeros(q.shape[1])
    state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]) if initial_state is None else initial_state
    inputs = (q, k, v, log_decay, state)
    dtype = common_type(*inputs, least=torch.float32)
    state = state.to(dtype)
    if length == 0:
        return torch.empty_like(v), state
    size = min(CHUNK, 1 << (length - 1).bit_length())

    def cut(x: Tensor) -> Tensor:
        """(B, H, L, *) -> (B, H, N, C, *). The last chunk is padded with zeros, which leave the state as it is."""
        return F.pad(x.to(dtype), (0, 0, 0, -length % size)).unflatten(2, (-1, size))

    # Half precision is too coarse for sums over a whole sequence.
    with torch.autocast(q.device.type, enabled=False):
        queries, keys, values = cut(q), cut(k), cut(v)
        if log_decay.dim() == 1:
            scores, queries, keys, decay = _decay_of_heads(queries, keys, log_decay.to(dtype), length)
        elif log_decay.dim() == 3:
            scores, queries, keys, decay = decay_of_positions(queries, keys, cut(log_decay[..., None]))
        else:
            scores, queries, keys, decay = decay_of_channels(queries, keys, cut(log_decay))
        states = []
        for decay_n, added_n in zip(decay.mT.unbind(2), (keys.mT @ values).unbind(2), strict=True):
            states.append(state)
            state = decay_n * state + added_n
        z = scores @ values + queries @ torch.stack(states, dim=2)
    return z.flatten(2, 3)[:, :, :length].to(v.dtype), state


def _decay_of_heads(q: Tensor, k: Tensor, log_decay: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same as `decay_of_channels`, for a log decay (H,): one matrix weights the scores of all chunks."""
    chunks, size = q.shape[2:4]
    # Finite, as -inf times no steps would be NaN.
    g = log_decay.clamp(min=torch.finfo(log_decay.dtype).min)[:, None, None, None]  # (H, 1, 1, 1)
    i = torch.arange(size, device=q.device)[:, None]
    filled = (length - size * torch.arange(chunks, device=q.device)).clamp(max=size)[:, None, None]  # (N, 1, 1)
    weights = (g * (i - i.T).clamp(min=0)).exp().tril()  # (H, 1, C, C)
    since_start = (g * (i + 1)).exp()  # (H, 1, C, 1)
    until_end = (g * (filled - 1 - i).clamp(min=0)).exp()  # (H, N, C, 1)
    return q @ k.mT * weights, q * since_start, k * until_end, (g * filled).exp()[None]


def decay_of_positions(q: Tensor, k: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same as `decay_of_channels`, for a log decay (..., C, 1): one matrix weights the scores of all pairs."""
    one = torch.ones_like(log_decay)
    weights, since_start, until_end, decay = decay_of_channels(one, one, log_decay)
    return q @ k.mT * weights, q * since_start, k * until_end, decay


def decay_of_channels(q: Tensor, k: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Applies the decays within each chunk.

    Blocks of one position are joined to blocks of two, then of four, up to the chunk. For pairs across the halves of a block,
    the query carries the decay since its half began, and the key the decay until its half ended.

    Args:
        q: (..., C, K), the queries.
        k: (..., C, K), the keys.
        log_decay: (..., C, K). All dimensions but the last two are broadcast.

    Returns:
        The decayed scores within each chunk (..., C, C), the queries with the decay since their chunk began (..., C, K), the
        keys with the decay until it ends (..., C, K), and the decay over each chunk (..., 1, K).
    """
    q, k, decay = (x.unsqueeze(-2) for x in (q, k, log_decay.exp()))  # (..., C, 1, K)
    scores = (q * k).sum(-1, keepdim=True)
    q = q * decay
    while scores.shape[-3] > 1:
        (q1, q2), (k1, k2), (decay1, decay2), (scores1, scores2) = (
            x.unflatten(-3, (-1, 2)).unbind(-3) for x in (q, k, decay, scores)
        )
        across = q2 @ k1.mT
        scores = torch.cat([F.pad(scores1, (0, across.shape[-1])), torch.cat([across, scores2], -1)], -2)
        q, k, decay = torch.cat([q1, q2 * decay1], -2), torch.cat([k1 * decay2, k2], -2), decay1 * decay2
    return scores.squeeze(-3), q.squeeze(-3), k.squeeze(-3), decay.squeeze(-3)
