"""WKV, one position at a time: the reference for the fast implementations."""

from __future__ import annotations

import torch
from torch import Tensor


def wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """See `regbench.ops.wkv.wkv`. It runs on any device and in any floating type."""
    scale = scale.detach()
    outputs = []
    # `unbind`, as an index at every position would make the backward pass build a (B, L, D) gradient for each.
    for k_i, v_i in zip(k.unbind(1), v.unbind(1), strict=True):
        largest = torch.maximum(scale, u + k_i).detach()
        past, now = torch.exp(scale - largest), torch.exp(u + k_i - largest)
        outputs.append((past * a + now * v_i) / (past * b + now))
        largest = torch.maximum(scale - w, k_i).detach()
        past, now = torch.exp(scale - w - largest), torch.exp(k_i - largest)
        a, b, scale = past * a + now * v_i, past * b + now, largest
    return torch.stack(outputs, dim=1) if outputs else torch.empty_like(k), (a, b, scale)
