"""The selective scan, one position at a time: the reference for the fast implementations."""

from __future__ import annotations

import torch
from torch import Tensor


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.selective_scan.selective_scan`. It runs on any device and in any floating type."""
    h = x.new_zeros(x.shape[0], *A.shape) if initial_state is None else initial_state  # (B, D, N)
    outputs = []
    # `unbind`, as an index at every position would make the backward pass build a (B, L, D) gradient for each.
    for x_t, delta_t, B_t, C_t in zip(x.unbind(1), delta.unbind(1), B.unbind(1), C.unbind(1), strict=True):
        h = torch.exp(delta_t[:, :, None] * A) * h + (delta_t * x_t)[:, :, None] * B_t[:, None, :]
        y_t = (h * C_t[:, None, :]).sum(-1)  # (B, D)
        outputs.append(y_t if D is None else y_t + D * x_t)
    return torch.stack(outputs, dim=1) if outputs else torch.empty_like(x), h
