"""Linear attention, one position at a time: the reference for the fast implementations."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.linear_attention import channel_decay


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`. It runs on any device and in any floating type."""
    state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]) if initial_state is None else initial_state
    inputs = (q, k, v, channel_decay(log_decay, q))
    outputs = []
    # `unbind`, as an index at every position would make the backward pass build a (B, H, L, K) gradient for each.
    for q_t, k_t, v_t, g_t in zip(*(tensor.unbind(2) for tensor in inputs), strict=True):
        state = g_t.exp()[..., None] * state + k_t[..., None] * v_t[..., None, :]
        outputs.append((q_t[..., None] * state).sum(-2))  # (B, H, V)
    return torch.stack(outputs, dim=2) if outputs else torch.empty_like(v), state


def linear_attention_weights(q: Tensor, k: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """The coefficients A_ij with z_i = sum over j <= i of A_ij v_j: A_ij = sum over channels of q_i k_j a_(j+1) ... a_i.

    They may be negative, and their rows need not sum to 1. It gives (B, H, L, L).
    """
    length = q.shape[2]
    past = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    if log_decay is None or log_decay.dim() == 1:
        weights = (q @ k.mT) * past
        if log_decay is None:
            return weights
        steps = torch.arange(length, device=q.device)
        distance = (steps[:, None] - steps).clamp(min=0)
        return weights * (log_decay[:, None, None] * distance).exp()
    weights = q.new_zeros(*q.shape[:3], length)
    total = log_decay.cumsum(2)
    for channel in range(q.shape[-1]):  # one at a time: all together are (B, H, L, L, K)
        c = total[..., channel]
        decay = (c[..., :, None] - c[..., None, :]).masked_fill(~past, float("-inf")).exp()
        weights = weights + q[..., channel, None] * k[..., None, :, channel] * decay
    return weights
