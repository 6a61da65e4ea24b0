"""Rotary positions: queries and keys are turned by their position, so that products tell only how far apart they are."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, start: int = 0, base: float = 10_000.0) -> Tensor:
    """Rotary position embedding: turns the pair (c, c + K/2) at position t by the angle t * base^(-2c/K). (B, H, L, K).

    Su et al. (2021), arXiv 2104.09864, Eq. 34.

    start: the position of the first of the L.
    """
    half = x.shape[-1] // 2
    frequency = base ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    positions = torch.arange(start, start + x.shape[2], device=x.device, dtype=torch.float64)
    angle = positions[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
