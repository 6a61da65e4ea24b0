"""WKV by the Triton kernel of flash-linear-attention, which computes in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """See `regbench.ops.wkv.wkv`. It takes no float64."""
    from fla.ops.rwkv4 import fused_recurrent_rwkv4

    if k.numel() == 0:
        return torch.empty_like(k), (a, b, scale)
    dtype = k.dtype
    w, u, k, v, a, b, scale = (tensor.float().contiguous() for tensor in (w, u, k, v, a, b, scale.detach()))
    # The kernel takes log w, and the state as (B, 3, 1, D).
    z, final = fused_recurrent_rwkv4(w.log(), u, k, v, torch.stack([a, b, scale], 1)[:, :, None])
    a, b, scale = final[:, :, 0].unbind(1)
    # The kernel differentiates the scale, too. Here it is only a unit, and has no gradient. This factor of 1 cancels what the
    # sums lose as the scale grows.
    same = torch.exp(scale - scale.detach())
    return z.to(dtype), (a * same, b * same, scale.detach())
