"""The delta rule, one position at a time: the reference for the fast implementations."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.delta_rule import correction
from regbench.ops.linear_attention import channel_decay


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.delta_rule.delta_rule`. It runs on any device and in any floating type."""
    state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]) if initial_state is None else initial_state
    k, a, b = correction(k, beta, a, b)
    inputs = (q, k, v, a, b, channel_decay(log_decay, q))
    outputs = []
    # `unbind`, as an index at every position would make the backward pass build a (B, H, L, K) gradient for each.
    for q_t, k_t, v_t, a_t, b_t, g_t in zip(*(tensor.unbind(2) for tensor in inputs), strict=True):
        state = g_t.exp()[..., None] * state
        read = (a_t[..., None] * state).sum(-2)  # (B, H, V)
        state = state + b_t[..., None] * read[..., None, :] + k_t[..., None] * v_t[..., None, :]
        outputs.append((q_t[..., None] * state).sum(-2))  # (B, H, V)
    return torch.stack(outputs, dim=2) if outputs else torch.empty_like(v), state
