"""N-gram counts on the CPU: the row of the context's last occurrence, plus one for the token that followed it there."""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor

from regbench.ops._numba import run


def ngram_counts(tokens: Tensor, max_order: int, vocab_size: int) -> Tensor:
    """See `regbench.ops.ngram_counts.ngram_counts`."""
    batch, length = tokens.shape
    counts = torch.zeros(batch, length, max_order, vocab_size, dtype=torch.int32)
    if counts.numel():
        longer = torch.empty(batch, length, vocab_size, dtype=torch.int32)
        context = torch.empty(batch, 2, length, dtype=torch.int32)
        last = torch.empty(batch, length, dtype=torch.int32)
        run(_count, batch, tokens.contiguous(), longer, context, last, counts)
    return counts


@njit(cache=True, nogil=True)
def _count(begin, end, tokens, longer, context, last, counts):  # type: ignore[no-untyped-def]
    """Fills counts (B, L, N, V), which hold zeros. The contexts of each length are numbered in the order in which they occur.

    Of tokens (B, L). The rest is scratch: `longer` (B, L, V) is the number of a shorter context with one token added, -1 where it
    has not occurred; `context` (B, 2, L) that of the context that ends at each position, for two lengths in turn; and `last` (B,
    L) where each context ended last.
    """
    length, orders, vocab = counts.shape[1:]
    for row in range(begin, end):
        for t in range(length):  # the empty context ends everywhere
            context[row, 0, t] = 0
            for v in range(vocab):
                counts[row, t, 0, v] = counts[row, t - 1, 0, v] if t > 0 else 0
            counts[row, t, 0, tokens[row, t]] += 1
        for n in range(1, orders):
            shorter, now = context[row, (n - 1) % 2], context[row, n % 2]
            met = 0
            for c in range(length):
                for v in range(vocab):
                    longer[row, c, v] = -1
            for t in range(n - 1, length):
                parent = shorter[t - 1] if t > 0 else 0
                c = longer[row, parent, tokens[row, t]]
                if c < 0:
                    c = longer[row, parent, tokens[row, t]] = met
                    met += 1
                else:
                    for v in range(vocab):
                        counts[row, t, n, v] = counts[row, last[row, c], n, v]
                    counts[row, t, n, tokens[row, last[row, c] + 1]] += 1
                now[t] = c
                last[row, c] = t
