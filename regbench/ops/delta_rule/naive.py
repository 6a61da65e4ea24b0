"""The delta rule, one position at a time: the reference for the fast implementations."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.linear_attention import channel_decay


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.delta_rule.delta_rule`. It takes the general form, on any device and in any floating type."""
    inputs = (q, k, v, a, b, channel_decay(log_decay, q))
    outputs = []
    # `unbind`, as an index at every position would make the backward pass build a (B, H, L, K) gradient for each.
    for q_t, k_t, v_t, a_t, b_t, g_t in zip(*(tensor.unbind(2) for tensor in inputs), strict=True):
        state = g_t.exp()[..., None] * state
        read = (a_t[..., None] * state).sum(-2)  # (B, H, V)
        state = state + b_t[..., None] * read[..., None, :] + k_t[..., None] * v_t[..., None, :]
        outputs.append((q_t[..., None] * state).sum(-2))  # (B, H, V)
    return torch.stack(outputs, dim=2) if outputs else torch.empty_like(v), state
