"""Linear attention by PyTorch operations on any device. Time is cut into chunks, so memory grows as L.

Within a chunk pairs of positions are weighted as in attention. The state passes from chunk to chunk (Sun et al. 2023, Eq. 7;
Yang et al. 2023, section 4). A pair has the weight exp(b_i - b_j), where b is the running sum of log decays. The usual way splits
it into exp(b_i) and exp(-b_j), to have a matrix product. Where decays are strong, the first underflows and the second overflows.
Here every factor is a product of decays, and so at most one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import common_type
from regbench.ops.linear_attention import pairs

CHUNK = 32
"""Positions in a chunk where decays differ by channel: a power of two, as chunks are built from halves."""

SHORT = 2.4
"""How many times more products all pairs of a short sequence may take than chunks do, measured: they need no states."""


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, initial_state: Tensor | None, final: bool | None = None
) -> tuple[Tensor, Tensor | None]:
    """See `regbench.ops.linear_attention.linear_attention`. It computes in float64 if a tensor has it, else in float32.

    `final`: whether the final state is needed; None: if there is an initial one.
    """
    final = initial_state is not None if final is None else final
    if log_decay is None:
        log_decay = q.new_zeros(q.shape[1])
    dtype = common_type(q, k, v, log_decay, initial_state, least=torch.float32)
    queries, keys, values, log_decay = (x.to(dtype) for x in (q, k, v, log_decay))
    state = None if initial_state is None else initial_state.to(dtype)
    # Half precision is too coarse for sums over a whole sequence.
    with torch.autocast(q.device.type, enabled=False):
        if log_decay.dim() < 4:
            read, state = reader(keys, values, log_decay, state, final)
            z = read(queries)
        else:
            queries, keys, values, log_decay = (cut(x) for x in (queries, keys, values, log_decay))
            scores, queries, keys, decay = decay_of_channels(queries, keys, log_decay)
            states, state = _states(decay, keys.mT @ values, state)
            z = uncut(scores @ values + queries @ states, q.shape[2])
    return z.to(v.dtype), state


def reader(
    k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, final: bool = True
) -> tuple[Callable[[Tensor], Tensor], Any]:
    """Linear attention whose queries come later, and more than once: what does not depend on them is computed once.

    Takes keys (B, H, L, K), values (B, H, L, V), a log decay (H,) or (B, H, L), and the state (B, H, K, V) before the first
    position, or None for zeros, all of one type. Gives the function from queries (B, H, L, K) to z (B, H, L, V), and the final
    state, if it is needed or costs nothing.
    """
    length, most = k.shape[2], chunk_of(k.shape[3], v.shape[3])
    if state is None and 0 < length <= SHORT * (most + k.shape[3] * v.shape[3] / (k.shape[3] + v.shape[3])):
        return pairs.reader(k, v, log_decay, final)
    keys, values = cut(k, most), cut(v, most)
    if log_decay.dim() == 1:
        log_decay = log_decay[None, :, None].expand(-1, -1, length)
    weights, since_start, until_end, decay = _weights_of_positions(cut(log_decay[..., None], most))
    added = (keys * until_end).mT @ values
    states, state = _states(decay, added, state)

    def read(q: Tensor) -> Tensor:
        queries = cut(q, most)
        z = (queries @ keys.mT * weights) @ values + queries * since_start @ states
        return uncut(z, length)

    return read, state


def chunk_of(width: int, values: int) -> int:
    """Positions in a chunk where one matrix weights all its pairs, for a state of width x values numbers.

    A chunk costs its square, and a state each. The larger the state, the longer is the chunk that costs least: measured on one
    core, 16 for 16 x 16 numbers, 64 from 64 x 64 on.
    """
    return min(max(1 << int(math.log2(width * values) / 2), 16), 64)


def cut(x: Tensor, most: int = CHUNK) -> Tensor:
    """(B, H, L, *) -> (B, H, N, C, *), at least one chunk. Zeros fill the first one. They leave the state as it is."""
    length = x.shape[2]
    size = min(most, 1 << max(length - 1, 0).bit_length())
    chunks = max(1, -(-length // size))
    return F.pad(x, (0, 0, chunks * size - length, 0)).unflatten(2, (chunks, size))


def uncut(x: Tensor, length: int) -> Tensor:
    """(B, H, N, C, *) -> (B, H, L, *), without what filled the first chunk."""
    x = x.flatten(2, 3)
    return x[:, :, x.shape[2] - length :]


def _states(decay: Tensor, added: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and the last one.

    `decay` (..., N, 1, K) is that over each chunk, `added` (B, H, N, K, V) what each adds.
    """
    states, state = [], torch.zeros_like(added[:, :, 0]) if state is None else state
    for decay_n, added_n in zip(decay.mT.unbind(2), added.unbind(2), strict=True):
        states.append(state)
        state = decay_n * state + added_n
    return torch.stack(states, dim=2), state


def _weights_of_positions(log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For a log decay (..., C, 1): the decay between all pairs (..., C, C), since the chunk began, until it ends, over it."""
    b = pairs.running_sum(log_decay[..., 0])
    weights = pairs.weights_of(b, 0, b.shape[-1], log_decay.dtype)
    since_start = b.exp().to(log_decay.dtype)[..., None]
    return weights, since_start, weights[..., -1:, :].mT, since_start[..., -1:, :]


def decay_of_positions(q: Tensor, k: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same as `decay_of_channels`, for a log decay (..., C, 1): one matrix weights the scores of all pairs."""
    weights, since_start, until_end, decay = _weights_of_positions(log_decay)
    return q @ k.mT * weights, q * since_start, k * until_end, decay


def decay_of_channels(q: Tensor, k: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Applies the decays within each chunk, to q, k and log_decay (..., C, K), broadcast in all dimensions but the last two.

    Blocks of one position are joined to blocks of two, then of four, up to the chunk. For pairs across the halves of a block, the
    query carries the decay since its half began, and the key the decay until its half ended.

    Gives the decayed scores within each chunk (..., C, C), the queries with the decay since their chunk began (..., C, K), the
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
