"""The delta rule by PyTorch operations on any device. Time is cut into chunks, so memory grows as L.

Within a chunk, what the correction reads at a position depends on what it read at all positions before, by a triangular system
(Yang et al. 2024, arXiv 2406.06484, section 3.2: the UT transform, and the WY representation of a product of such steps). The
system is solved once for what the chunk itself writes, and once for the state at its start. Decays weight the pairs of positions
as in linear attention: every factor is a product of decays, and so at most one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import common_type
from regbench.ops.linear_attention.chunked import cut, decay_of_channels, decay_of_positions, uncut


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.delta_rule.delta_rule`. It takes the general form, and computes in float32 at least."""
    log_decay = q.new_zeros(q.shape[:3]) if log_decay is None else log_decay
    dtype = common_type(q, k, v, a, b, log_decay, state, least=torch.float32)
    queries, k, values, a, b, log_decay, state = (x.to(dtype) for x in (q, k, v, a, b, log_decay, state))

    # Half precision is too coarse for sums over a whole sequence.
    with torch.autocast(q.device.type, enabled=False):
        # Each of the two readers meets each of the two writers: (2, 1, B, H, N, C, K) and (1, 2, B, H, N, C, K).
        readers, writers, values = (
            torch.stack([cut(queries), cut(a)])[:, None],
            torch.stack([cut(k), cut(b)])[None],
            cut(values),
        )
        if log_decay.dim() == 3:
            scores, readers, writers, decay = decay_of_positions(readers, writers, cut(log_decay[..., None]))
        else:
            scores, readers, writers, decay = decay_of_channels(readers, writers, cut(log_decay))
        (q_k, q_b), (a_k, a_b) = scores.unbind(0)  # (B, H, N, C, C) each, the first reading what the second wrote
        (queries, a), (keys, b) = readers[:, 0].unbind(0), writers[0].unbind(0)
        # read = a S + tril(a_k) v + tril(a_b) read, both without the diagonal: a position reads before it writes.
        system = torch.eye(a_b.shape[-1], dtype=dtype, device=q.device) - a_b.tril(-1)
        right = torch.cat([a_k.tril(-1) @ values, a], -1)
        from_chunk, from_state = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True).split(
            [v.shape[3], q.shape[3]], -1
        )
        states, reads = [], []
        parts = (x.unbind(2) for x in (decay.mT, from_chunk, from_state, b.mT, keys.mT @ values))
        for decay_n, from_chunk_n, from_state_n, b_n, added_n in zip(*parts, strict=True):
            states.append(state)
            reads.append(from_chunk_n + from_state_n @ state)
            state = decay_n * state + b_n @ reads[-1] + added_n
        z = queries @ torch.stack(states, dim=2) + q_k @ values + q_b @ torch.stack(reads, dim=2)
    return uncut(z, q.shape[2]), state
