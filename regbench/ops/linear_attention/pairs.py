"""Linear attention over all pairs of positions, as attention has it (Sun et al. 2023, Eq. 5). A short sequence costs least so.

Queries come in blocks, and keys after the end of a block are left out: half of the products are of pairs that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

NOTHING = -1000.0
"""The exponential of this log decay is zero in float64, too. Less could make differences of sums NaN."""


def running_sum(log_decay: Tensor) -> Tensor:
    """b_t = log a_1 + ... + log a_t, (..., L) -> (..., L) in float64.

    The weight of a pair is exp(b_i - b_j). Where decays are strong, b is so large that float32 would round the difference.
    """
    return log_decay.double().clamp(min=NOTHING).cumsum(-1)


def weights_of(b: Tensor, begin: int, end: int, dtype: torch.dtype) -> Tensor:
    """exp(b_i - b_j) for begin <= i < end and j < end, zero for j > i: (..., L) -> (..., end - begin, end)."""
    # No gradient passes through the diagonal: where decays are strong, its rounding would be all that is left.
    return (b[..., begin:end, None] - b[..., None, :end]).tril(begin - 1).to(dtype).exp().tril(begin)


def reader(k: Tensor, v: Tensor, log_decay: Tensor, final: bool) -> tuple[Callable[[Tensor], Tensor], Any]:
    """See `regbench.ops.linear_attention.chunked.reader`. Here nothing is before the first position."""
    length = k.shape[2]
    b = running_sum(log_decay[:, None].expand(-1, length)[None] if log_decay.dim() == 1 else log_decay)
    size = 32 if length <= 256 else 64  # measured on one core
    with torch.no_grad():
        weights = [_weights(b, begin, min(begin + size, length), k.dtype) for begin in range(0, length, size)]
    state = (k * weights_of(b, length - 1, length, k.dtype).mT).mT @ v if final else None
    return lambda q: _Pairs.apply(q, k, v, b, *weights), state


def _weights(b: Tensor, begin: int, end: int, dtype: torch.dtype) -> Tensor:
    """The same without gradients, and with an exponential for each position in the place of one for each pair."""
    weights = b.new_empty(*b.shape[:-1], end - begin, end, dtype=dtype)
    first = b[..., begin : begin + 1]  # between the two, so that both exponents are at most zero
    since, until = (b[..., begin:end] - first).exp().to(dtype), (first - b[..., :begin]).exp().to(dtype)
    torch.mul(since[..., None], until[..., None, :], out=weights[..., :begin])
    weights[..., begin:] = weights_of(b[..., begin:end], 0, end - begin, dtype)
    return weights


class _Pairs(torch.autograd.Function):
    """z (B, H, L, V) of q, k (B, H, L, K) and v, with the weights of each block of queries, which follow from b."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, b: Tensor, *weights: Tensor) -> Tensor:
        """Of b (B or 1, H, L). A block has the weights (B or 1, H, queries, keys until its end)."""
        ctx.shape = q.shape[:2]
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        z, scores, end = torch.empty_like(v), [], 0
        for weights_n in weights:
            begin, end = end, weights_n.shape[-1]
            scores.append(torch.bmm(q[:, begin:end], k[:, :end].mT))
            scores[-1].unflatten(0, ctx.shape).mul_(weights_n)
            z[:, begin:end] = torch.bmm(scores[-1], v[:, :end])
        ctx.save_for_backward(q, k, v, b, *weights, *scores)
        return z.unflatten(0, ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        """The weight of a pair times its gradient is added to that of b_i, and taken from that of b_j."""
        q, k, v, b, *saved = ctx.saved_tensors
        blocks, dz = len(saved) // 2, dz.flatten(0, 1)
        dq, dk, dv, db = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.zeros_like(b)
        # The last block first: it has all keys, and so it writes what the others add to.
        for weights, scores in zip(reversed(saved[:blocks]), reversed(saved[blocks:]), strict=True):
            size, end = weights.shape[-2:]
            begin, beta = end - size, int(end < q.shape[1])
            dv[:, :end].baddbmm_(scores.mT, dz[:, begin:end], beta=beta)
            dscores = torch.bmm(dz[:, begin:end], v[:, :end].mT)
            if ctx.needs_input_grad[3]:
                change = (dscores * scores).unflatten(0, ctx.shape)
                change.diagonal(begin, -2, -1).zero_()
                db[..., begin:end] += change.sum(-1).sum_to_size(*b.shape[:2], size)
                db[..., :end] -= change.sum(-2).sum_to_size(*b.shape[:2], end)
            dscores.unflatten(0, ctx.shape).mul_(weights)
            dq[:, begin:end] = torch.bmm(dscores, k[:, :end])
            dk[:, :end].baddbmm_(dscores.mT, q[:, begin:end], beta=beta)
        return *(x.unflatten(0, ctx.shape) for x in (dq, dk, dv)), db, *[None] * blocks
