"""Linear attention, one position at a time: the reference for the fast implementations."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`. It runs on any device and in any floating type."""
    batch, heads, length, width = q.shape
    state = q.new_zeros(batch, heads, width, v.shape[-1]) if initial_state is None else initial_state
    if log_decay is None:
        log_decay = q.new_zeros(heads)
    if log_decay.dim() == 1:
        log_decay = log_decay[:, None, None].expand(batch, heads, length, width)
    outputs = []
    # `unbind`, as an index at every position would make the backward pass build a (B, H, L, K) gradient for each.
    for q_t, k_t, v_t, g_t in zip(*(tensor.unbind(2) for tensor in (q, k, v, log_decay)), strict=True):
        state = g_t.exp()[..., None] * state + k_t[..., None] * v_t[..., None, :]
        outputs.append((q_t[..., None] * state).sum(-2))  # (B, H, V)
    return torch.stack(outputs, dim=2) if outputs else torch.empty_like(v), state
