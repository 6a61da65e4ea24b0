"""The n-gram head: static attention to what followed the earlier occurrences of the current n-gram (ICLL section 6)."""

from __future__ import annotations

from torch import Tensor

from regbench.ops.backend import Implementation, Op
from regbench.ops.ngram.index import INTEGERS, NGramIndex
from regbench.ops.ngram.stream import NGramState
from regbench.utils.errors import UserError

__all__ = ["NGramIndex", "NGramState", "ngram_head", "ngram_index"]

OP = Op(
    "ngram_head",
    {
        "triton": Implementation("regbench.ops.ngram.triton:ngram_head", ("cuda",), "triton", "pip install triton"),
        "cpu": Implementation("regbench.ops.ngram.cpu:ngram_head", ("cpu",)),
        "naive": Implementation("regbench.ops.ngram.naive:ngram_head", ("cpu", "cuda")),
    },
)


def ngram_head(
    tokens: Tensor,
    hidden: Tensor,
    order: int = 1,
    shift: int = 1,
    backend: str = "auto",
    index: NGramIndex | None = None,
) -> Tensor:
    """N-gram head: A(n) h of ICLL Eq. 12-13, as Fig. 8 implements it.

    Position i gets the mean of `hidden[j + shift]` over all j with j + shift < i where the `order` tokens that end at j equal
    those that end at i. Without such a j it gets zeros. Time and memory grow as B L D, beside sorting B L numbers; in `naive`
    alone they grow as L^2.

    Args:
        tokens: (B, L), uint8 or a signed integer type.
        hidden: (B, L, D).
        order: how many tokens must match, n of Eq. 12.
        shift: how far behind an occurrence the head looks; 1 is the token that followed.
        backend: "auto" or an implementation of this op.
        index: `ngram_index(tokens)` of these tokens, where several heads share it.

    Returns:
        (B, L, D), in the type of `hidden`.

    >>> import torch
    >>> tokens, hidden = torch.tensor([[7, 8, 7, 9, 7]]), torch.tensor([[[1.0], [2.0], [4.0], [8.0], [16.0]]])
    >>> ngram_head(tokens, hidden).flatten().tolist()  # 8 then 8 and 9 have followed the earlier sevens
    [0.0, 0.0, 2.0, 0.0, 5.0]
    """
    _check_tokens(tokens)
    if order < 1:
        raise UserError(f"ngram_head needs order >= 1, the number of tokens that must match, not {order}")
    if shift < 0:
        raise UserError(f"ngram_head needs shift >= 0, since it may not look ahead, not {shift}")
    if hidden.ndim != 3 or hidden.shape[:2] != tokens.shape:
        raise UserError(
            f"ngram_head needs tokens (B, L) and hidden (B, L, D), not {tuple(tokens.shape)} and {tuple(hidden.shape)}"
        )
    if not hidden.is_floating_point():
        raise UserError(f"ngram_head needs hidden of a floating-point type, not {hidden.dtype}")
    if tokens.device != hidden.device:
        raise UserError(f"ngram_head needs tokens and hidden on one device, not {tokens.device} and {hidden.device}")
    if index is None:
        index = NGramIndex(tokens)
    elif (index.tokens.shape, index.tokens.device) != (tokens.shape, tokens.device):
        raise UserError(
            f"ngram_head needs the index of its own tokens {tuple(tokens.shape)} on {tokens.device}, "
            f"not of {tuple(index.tokens.shape)} on {index.tokens.device}"
        )
    out: Tensor = OP.choose(backend, hidden.device)(index, hidden, order, shift)
    return out


def ngram_index(tokens: Tensor) -> NGramIndex:
    """Which positions of `tokens` (B, L) share an n-gram: computed once for all heads and orders."""
    _check_tokens(tokens)
    return NGramIndex(tokens)


def _check_tokens(tokens: Tensor) -> None:
    if tokens.dtype not in INTEGERS:
        raise UserError(f"ngram_head needs integer tokens, not {tokens.dtype}")
    if tokens.ndim != 2:
        raise UserError(f"ngram_head needs tokens (B, L), not {tuple(tokens.shape)}")
