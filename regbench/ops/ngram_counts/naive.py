"""N-gram counts as ICLL Eq. 97 writes them: all pairs of positions are compared, an (L, L) mask for each order."""

import torch
from torch import Tensor
from torch.nn import functional as F


def ngram_counts(tokens: Tensor, max_order: int, vocab_size: int) -> Tensor:
    """See `regbench.ops.ngram_counts.ngram_counts`."""
    length = tokens.shape[1]
    now = torch.arange(length, device=tokens.device)
    seen = now[None, :] <= now[:, None]  # token s has been read at t
    is_v = F.one_hot(tokens, vocab_size).double()
    counts = []
    for n in range(1, max_order + 1):
        match = seen.expand(len(tokens), -1, -1)
        for k in range(n - 1):  # the token k + 1 before s equals the token k before t
            before_s, before_t = _earlier(tokens, k + 1), _earlier(tokens, k)
            match = match & (before_t[:, :, None] == before_s[:, None, :]) & (before_s >= 0)[:, None, :]
        counts.append(match.double() @ is_v)
    return torch.stack(counts, 2).int()


def _earlier(tokens: Tensor, by: int) -> Tensor:
    """The token `by` places before each position, or -1: (B, L) -> (B, L)."""
    return F.pad(tokens, (by, 0), value=-1)[:, : tokens.shape[1]]
