"""N-gram counts on any device: positions sorted by context, then running sums of the tokens that followed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.ngram.index import NGramIndex


def ngram_counts(tokens: Tensor, max_order: int, vocab_size: int) -> Tensor:
    """See `regbench.ops.ngram_counts.ngram_counts`."""
    batch, length = tokens.shape
    counts = torch.zeros(batch, length, max_order, vocab_size, dtype=torch.int32, device=tokens.device)
    if not counts.numel():
        return counts
    is_v = F.one_hot(tokens, vocab_size).int()
    counts[:, :, 0] = is_v.cumsum(1, dtype=torch.int32)
    index, follows = NGramIndex(tokens), F.pad(is_v[:, 1:], (0, 0, 0, 1))
    for n in range(1, min(max_order, length + 1)):
        counts[:, n - 1 :, n] = _followed(index.ranks(n), follows[:, n - 1 :])
    return counts


def _followed(context: Tensor, follows: Tensor) -> Tensor:
    """At each position, the sum of `follows` (B, M, V) over earlier positions of equal `context` (B, M): (B, M, V) int32."""
    m = context.shape[1]
    here = torch.arange(m, device=context.device)
    places = (context * m + here).argsort(1)
    context, places_v = context.gather(1, places), places[:, :, None].expand_as(follows)
    before = follows.gather(1, places_v)
    before = before.cumsum(1, dtype=torch.int32) - before
    begins = torch.ones_like(context, dtype=torch.bool)
    begins[:, 1:] = context[:, 1:] != context[:, :-1]
    begin = (here * begins).cummax(1).values  # where the run of equal contexts begins
    before -= before.gather(1, begin[:, :, None].expand_as(before))
    return torch.empty_like(before).scatter_(1, places_v, before)
