"""The long convolution as a sum over all pairs of positions: the reference for the fast implementation."""

from __future__ import annotations

import torch
from torch import Tensor


def long_conv(x: Tensor, kernel: Tensor) -> Tensor:
    """(B, L, D), (D, K) with K <= L -> (B, L, D). Time and memory grow as L^2."""
    length, width = x.shape[1], kernel.shape[1]
    lag = torch.arange(length, device=x.device)[:, None] - torch.arange(length, device=x.device)  # t - s
    inside = (lag >= 0) & (lag < width)
    toeplitz = kernel[:, lag.clamp(0, max(width - 1, 0))] * inside  # (D, L, L)
    dtype = torch.promote_types(x.dtype, kernel.dtype)
    return torch.einsum("dts,bsd->btd", toeplitz.to(dtype), x.to(dtype)).to(x.dtype)
