"""The n-gram head as Fig. 8 of the ICLL paper writes it: an (L, L) mask, normalised by row.

Eq. 12 of the paper is one position behind: as printed, it compares the n tokens before position i, and leaves out token i.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.ngram.index import NGramIndex


def ngram_head(index: NGramIndex, hidden: Tensor, order: int, shift: int) -> Tensor:
    """See `regbench.ops.ngram.ngram_head`; the tokens are those of the index."""
    attend = ngram_matches(index.tokens, order, shift)
    return ngram_weights(attend, torch.promote_types(hidden.dtype, torch.float32)).to(hidden.dtype) @ hidden


def ngram_matches(tokens: Tensor, order: int, shift: int = 1) -> Tensor:
    """Which positions an n-gram head attends to: tokens (B, L) -> (B, L, L) bool, a row for each position that looks back."""
    length = tokens.shape[1]
    same = tokens[:, :, None] == tokens[:, None, :]
    match = same
    for _ in range(order - 1):  # match[i, j] becomes same[i, j] and match[i - 1, j - 1]
        match = same & F.pad(match, (1, 0, 1, 0))[:, :length, :length]
    earlier = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril(-1)
    return F.pad(match, (shift, 0))[:, :, :length] & earlier


def ngram_weights(attend: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A(n) of ICLL Eq. 12: (B, L, L) bool -> (B, L, L). A row is uniform over what it attends to, or zero if that is nothing."""
    return attend.to(dtype) / attend.sum(2, keepdim=True).clamp(min=1)
