"""The n-gram head: static attention to what followed the earlier occurrences of the current n-gram (ICLL section 6)."""

from __future__ import annotations

from torch import Tensor

from regbench.ops.backend import Implementation, Op
from regbench.ops.ngram.index import INTEGERS, NGramIndex
from regbench.ops.ngram.stream import NGramState
from regbench.utils.errors import UserError

__all__ = ["NGramIndex", "NGramState", "ngram_head"]

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
        index: `NGramIndex(tokens)` of these tokens, where several heads share it.

    Returns:
        (B, L, D), in the type of `hidden`.

    >>> import torch
    >>> tokens, hidden = torch.tensor([[7, 8, 7, 9, 7]]), torch.tensor([[[1.0], [2.0], [4.0], [8.0], [16.0]]])
    >>> ngram_head(tokens, hidden).flatten().tolist()  # 8 then 8 and 9 have followed the earlier sevens
    [0.0, 0.0, 2.0, 0.0, 5.0]
    """
    if tokens.dtype not in INTEGERS or tokens.ndim != 2 or hidden.ndim != 3 or hidden.shape[:2] != tokens.shape:
        raise UserError(
            f"ngram_head needs tokens (B, L) of integers and hidden (B, L, D), not {tuple(tokens.shape)} of {tokens.dtype} and "
            f"{tuple(hidden.shape)}"
        )
    if order < 1 or shift < 0:  # else it would look ahead
        raise UserError(f"ngram_head needs order >= 1 and shift >= 0, not {order} and {shift}")
    index = NGramIndex(tokens) if index is None else index
    out: Tensor = OP.choose(backend, hidden.device)(index, hidden, order, shift)
    return out
