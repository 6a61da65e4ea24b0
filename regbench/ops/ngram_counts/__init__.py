"""N-gram counts: how often each token has followed the current context, at every position (ICLL Appendix D, Eq. 97-98)."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Implementation, Op
from regbench.ops.ngram.index import INTEGERS
from regbench.utils.errors import UserError

__all__ = ["ngram_counts"]

OP = Op(
    "ngram_counts",
    {
        "cpu": Implementation("regbench.ops.ngram_counts.cpu:ngram_counts", ("cpu",)),
        "torch": Implementation("regbench.ops.ngram_counts.sorting:ngram_counts", ("cpu", "cuda")),
        "naive": Implementation("regbench.ops.ngram_counts.naive:ngram_counts", ("cpu", "cuda")),
    },
)


@torch.compiler.disable
def ngram_counts(tokens: Tensor, max_order: int, vocab_size: int, backend: str = "auto") -> Tensor:
    """How often each n-gram that begins with the current context occurs in the prefix.

    Separators count like any other token. Time and memory grow as the result, beside sorting in `torch`; in `naive` alone they
    grow as L^2. The result has no gradient.

    Args:
        tokens: (B, L), uint8 or a signed integer type, all in [0, vocab_size).
        max_order: the longest n-grams, N.
        vocab_size: V.
        backend: "auto" or an implementation of this op.

    Returns:
        Counts (B, L, N, V), int32. Entry [b, t, n - 1, v] counts where in tokens[b, : t + 1] the n - 1 tokens
        tokens[b, t - n + 2 : t + 1] are followed by v. For n = 1 it is how often v occurs at all. It is zero where the prefix
        is shorter than n - 1 tokens.

    >>> import torch
    >>> ngram_counts(torch.tensor([[0, 1, 0, 2, 0]]), max_order=2, vocab_size=3)[0, -1].tolist()
    [[3, 1, 1], [0, 1, 1]]
    """
    if tokens.dtype not in INTEGERS or tokens.ndim != 2:
        raise UserError(f"ngram_counts needs tokens (B, L) of integers, not {tuple(tokens.shape)} of {tokens.dtype}")
    if tokens.numel():
        low, high = (int(end) for end in torch.aminmax(tokens))
        if low < 0 or high >= vocab_size:  # a kernel would write outside of its arrays
            raise UserError(f"token {low if low < 0 else high} is outside the vocabulary [0, {vocab_size})")
    out: Tensor = OP.choose(backend, tokens.device)(tokens.detach().long(), max_order, vocab_size)
    return out
