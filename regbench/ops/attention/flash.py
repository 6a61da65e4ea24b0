"""Causal attention by the CUDA kernels of flash-attn, in half precision."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import common_type
from regbench.utils.errors import UserError

WIDEST = 256
"""The most channels of a head that the kernels take."""


def attention(q: Tensor, k: Tensor, v: Tensor, window: int = 0) -> Tensor:
    """See `regbench.ops.attention.attention`. Float32 is rounded to bfloat16, as the kernels take half precision alone."""
    from flash_attn import flash_attn_func

    width = max(q.shape[-1], v.shape[-1])
    if width > WIDEST:
        raise UserError(f"backend 'flash-attn' of attention takes heads of up to {WIDEST} channels, not {width}")
    if v.numel() == 0:
        return torch.empty_like(v)
    dtype = common_type(q, k, v)
    dtype = torch.bfloat16 if dtype == torch.float32 else dtype
    # The kernels take (B, L, H, K), with all heads of one width. Zeros change no product, and are cut off the result.
    given = (_widen(x.to(dtype), width).transpose(1, 2) for x in (q, k, v))
    deterministic = torch.are_deterministic_algorithms_enabled()
    seen = {"window_size": (window - 1, 0)} if window else {}
    out: Tensor = flash_attn_func(
        *given, softmax_scale=q.shape[-1] ** -0.5, causal=True, deterministic=deterministic, **seen
    )
    return out.transpose(1, 2)[..., : v.shape[-1]].to(v.dtype)


def _widen(x: Tensor, width: int) -> Tensor:
    """Zeros added behind the last dimension, up to this width."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
