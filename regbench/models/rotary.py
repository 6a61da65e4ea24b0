"""Rotary positions: queries and keys are rotated by their position, so that products depend only on the distance between them."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10_000.0
"""How slowly the last pair of channels turns."""


def rotate(x: Tensor, start: int = 0) -> Tensor:
    """Rotates the channels (c, c + K/2) at position t by the angle t * BASE^(-2c/K). Su et al. (2021), arXiv 2104.09864, Eq. 34.

    (B, H, L, K) with an even K -> (B, H, L, K). `start` is the position of the first of the L.
    """
    half = x.shape[-1] // 2
    frequency = BASE ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    positions = torch.arange(start, start + x.shape[2], device=x.device, dtype=torch.float64)
    angle = positions[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
