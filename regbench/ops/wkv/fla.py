"""WKV by the Triton kernel of flash-linear-attention, which computes in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def wkv_fla(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """See `regbench.ops.wkv.wkv`; not for float64."""
    from fla.ops.rwkv4 import fused_recurrent_rwkv4

    if k.numel() == 0:
        return torch.empty_like(k), (a, b, scale)
    dtype = k.dtype
    w, u, k, v, a, b, scale = (tensor.float().contiguous() for tensor in (w, u, k, v, a, b, scale.detach()))
    # It takes log w, and the state as (B, 3, 1, D).
    z, final = fused_recurrent_rwkv4(w.log(), u, k, v, torch.stack([a, b, scale], 1)[:, :, None])
    a, b, scale = final[:, :, 0].unbind(1)
    # It differentiates the scale too; ours is a choice of units, which none may feel. This factor of 1 takes back what the sums
    # lose where the scale grows.
    same = torch.exp(scale - scale.detach())
    return z.to(dtype), (a * same, b * same, scale.detach())
