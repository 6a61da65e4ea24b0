"""Causal attention as the formula is written: (L, L) scores, a mask, a softmax."""

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, window: int = 0) -> Tensor:
    """See `regbench.ops.attention.attention`. ICLL A.1."""
    return attention_weights(q, k, window) @ v


def attention_weights(q: Tensor, k: Tensor, window: int = 0) -> Tensor:
    """A_ij, how much position i attends to position j: (B, H, L, K), (B, H, L, K) -> (B, H, L, L). Rows sum to 1."""
    length = q.shape[2]
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    if window:
        hidden = hidden | hidden.new_ones(length, length).tril(-window)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1)
