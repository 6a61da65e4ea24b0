"""Causal attention as the formula is written: (L, L) scores, a mask, a softmax."""

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """See `regbench.ops.attention.attention`. ICLL A.1."""
    return attention_weights(q, k) @ v


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """A_ij, how much position i attends to position j: (B, H, L, K), (B, H, L, K) -> (B, H, L, L). Rows sum to 1."""
    length = q.shape[2]
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)
