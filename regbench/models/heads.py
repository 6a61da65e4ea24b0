"""What mixers with several heads share: a head's width, the way from channels to heads and back, and a start for attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regbench.utils.errors import UserError


def head_width(width: int, n_heads: int, *, of: str = "d_model", by: str = "n_heads", rotary: bool = False) -> int:
    """How many channels each of `n_heads` has of the `width` that they share. Messages call the two numbers `of` and `by`.

    A UserError if there are no channels, they cannot be shared equally, or rotary positions, which turn pairs of channels, meet
    an odd number.
    """
    if width < 1:
        raise UserError(f"{of} ({width}) must be 1 or more")
    if width % n_heads:
        raise UserError(f"{of} ({width}) must be a multiple of {by} ({n_heads})")
    if rotary and width // n_heads % 2:
        raise UserError(f"rotary positions need an even head width, not {width // n_heads}")
    return width // n_heads


def full(x: Tensor) -> Tensor:
    """In float32, or in float64 where it is so already: half precision is too coarse for gates and norms."""
    return x if x.dtype == torch.float64 else x.float()


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(B, L, H K) -> (B, H, L, K). A UserError if the heads cannot share the channels equally."""
    head_width(x.shape[-1], n_heads, of="the width")
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, L, K) -> (B, L, H K)."""
    return x.transpose(1, 2).flatten(2)


def start_alike(query: Tensor, key: Tensor) -> None:
    """Makes queries and keys begin with the same weights ("mimetic": Trockman and Kolter 2023, arXiv:2305.09828).

    For a normalised x, <q_i, k_i> / sqrt(d_k) then begins at about 3 sqrt(d_k). So at first a position reads from positions that
    are like it. With a softmax this is sharp, but not saturated. Both weights are (d_k of all heads, D): those of the queries are
    drawn anew, and those of the keys become a copy.
    """
    with torch.no_grad():
        nn.init.normal_(query, std=(3 / query.shape[1]) ** 0.5)
        key.copy_(query)
