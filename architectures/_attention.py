"""What the mixers with softmax attention share: attention that goes on from the keys and values of earlier positions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.attention import attention

Cache = tuple[Tensor, Tensor]
"""Keys (B, H, t, K) and values (B, H, t, V): of all positions so far, or of the last window - 1."""


def empty_cache(
    batch: int, n_heads: int, widths: tuple[int, int], device: torch.device | None, dtype: torch.dtype | None
) -> Cache:
    """The cache before the first position, for keys and values of these widths."""
    keys, values = (torch.zeros(batch, n_heads, 0, width, device=device, dtype=dtype) for width in widths)
    return keys, values


def attend(q: Tensor, k: Tensor, v: Tensor, cache: Cache, window: int = 0) -> tuple[Tensor, Cache]:
    """Causal softmax attention of L positions that follow on those of a cache.

    Args:
        q: (B, H, L, K).
        k: (B, H, L, K).
        v: (B, H, L, V).
        cache: the keys and values before them.
        window: as in the op `attention`.

    Returns:
        z (B, H, L, V), and the cache after them.
    """
    past, length = cache[0].shape[2], q.shape[2]
    keys, values = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
    if not past:
        z = attention(q, k, v, window=window)
    else:
        total = past + length
        behind = torch.arange(past, total, device=q.device)[:, None] - torch.arange(total, device=q.device)
        z = F.scaled_dot_product_attention(q, keys, values, attn_mask=(behind >= 0) & (behind < (window or total)))
    first = max(0, past + length + 1 - window) if window else 0
    return z, (keys[:, :, first:], values[:, :, first:])
