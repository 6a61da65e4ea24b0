"""N-gram counts: what has followed the current context, how often, at every position (ICLL Appendix D, Eq. 97-98)."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Form, Op
from regbench.ops.ngram.index import INTEGERS
from regbench.utils.errors import UserError

__all__ = ["ngram_counts"]

_OP = Op(
    "ngram_counts",
    {
        "cpu": Form("regbench.ops.ngram_counts.cpu:ngram_counts", ("cpu",)),
        "torch": Form("regbench.ops.ngram_counts.sorting:ngram_counts", ("cpu", "cuda")),
        "naive": Form("regbench.ops.ngram_counts.naive:ngram_counts", ("cpu", "cuda")),
    },
)


@torch.compiler.disable
def ngram_counts(tokens: Tensor, max_order: int, vocab_size: int, backend: str = "auto") -> Tensor:
    """How often each n-gram that begins with the current context occurs in the prefix.

    Entry [b, t, n - 1, v] is how often the n tokens "tokens[b, t - n + 2 : t + 1], then v" stand one after the other in
    tokens[b, : t + 1]: for n = 1 how often v occurs at all. Zeros where the prefix is shorter than the context. Every token
    counts like any other, separators too. Time and memory grow as the result, beside sorting in `torch`; with L squared in
    `naive` alone. There is nothing to differentiate.

    tokens: (B, L) of any integer type, all in [0, vocab_size).  Returns (B, L, max_order, vocab_size) int32.

    >>> import torch
    >>> ngram_counts(torch.tensor([[0, 1, 0, 2, 0]]), max_order=2, vocab_size=3)[0, -1].tolist()
    [[3, 1, 1], [0, 1, 1]]

    Raises:
        UserError: arguments that do not fit, or a backend that is not there.
    """
    if tokens.dtype not in INTEGERS:
        raise UserError(f"ngram_counts needs integer tokens, not {tokens.dtype}")
    if tokens.ndim != 2:
        raise UserError(f"ngram_counts needs tokens (B, L), not {tuple(tokens.shape)}")
    if max_order < 1:
        raise UserError(f"ngram_counts needs max_order >= 1, not {max_order}")
    if vocab_size < 1:
        raise UserError(f"ngram_counts needs vocab_size >= 1, not {vocab_size}")
    if tokens.numel():
        low, high = (int(end) for end in torch.aminmax(tokens))
        if low < 0 or high >= vocab_size:
            bad = low if low < 0 else high
            raise UserError(f"token {bad} is outside the vocabulary [0, {vocab_size})")
    out: Tensor = _OP.choose(backend, tokens.device)(tokens.detach().long(), max_order, vocab_size)
    return out
