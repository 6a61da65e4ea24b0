"""Causal attention by PyTorch's fused kernels, which never hold the (L, L) weights."""

import torch
from torch import Tensor
from torch.nn import functional as F

LEAST = 64
"""Queries of a block, at least: of very small blocks each would cost a product of its own."""


def attention(q: Tensor, k: Tensor, v: Tensor, window: int = 0) -> Tensor:
    """See `regbench.ops.attention.attention`.

    With a window, time is cut into blocks of queries. A block sees its own keys and the window - 1 before them, so that time and
    memory grow as L.
    """
    length = q.shape[2]
    if not 0 < window < length:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    block, before = max(window, LEAST), window - 1
    after = -length % block
    count, width = (length + after) // block, before + block
    k, v = (F.pad(x, (0, 0, before, after)).unfold(2, width, block).mT for x in (k, v))  # (B, H, count, width, K)
    place = torch.arange(width, device=q.device) - torch.arange(block, device=q.device)[:, None]
    seen = ((place >= 0) & (place < window)).expand(count, block, width)
    first = torch.arange(width, device=q.device) >= before  # no key stands before the first block
    seen = torch.cat([seen[:1] & first, seen[1:]])
    out = F.scaled_dot_product_attention(F.pad(q, (0, 0, 0, after)).unflatten(2, (count, block)), k, v, attn_mask=seen)
    return out.flatten(2, 3)[:, :, :length]
