"""The terms of CGT's loss besides the prediction: the auxiliary loss, and the regularisers of y.

The auxiliary loss (CGT section 3.2; 2024, section 3.5 and Figures 2 and 6): y is frozen at the end of a random prefix, and x
alone predicts the tokens after it in a new pass. A window starts at a random position `start` of each row. Its first `context`
tokens (l_Delta) are read but not predicted. The next `horizon` tokens are predicted. Positions in the window count from 0, and
its first input is the separator: so a specialised model reads this text.

The regularisers make y slow, make it different between instances, or give it the distribution of a Gaussian process. `y[b, t]`
has read tokens[b, :t]. y[:, 0] has read nothing and is the same in all rows, so the element-wise terms start at 1. `real` marks
the positions of a row that are no padding. Where the papers write "proportional to", these terms are means over pairs of
neighbours or of instances, and over positions. So their weights mean the same at any length and batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Freeze = Literal["prefix", "context", "tail", "never"]
"""Which y the auxiliary loss uses in a window:

prefix: The y at the start of the window. A specialised model reads the window and nothing before it (2024, Fig. 6b).
context: The y at the end of the context. A specialised model reads the last part of its prompt again (2024, Fig. 6a).
tail: In the context each position's own y, after it the y at its end (2024, formula of section 4.2).
never: Each position's own y (2024, section 3.5, before the augmentations).
"""

Profile = Literal["uniform", "linear", "quadratic"]
"""How the regularisers weight positions."""


@dataclass(frozen=True)
class Windows:
    """One window of every row.

    Attributes:
        index: Positions in the row, (B, W).
        scored: Which of them are predicted, (B, W) bool.
        cut: The first position after the context, (B,).
    """

    index: Tensor
    scored: Tensor
    cut: Tensor

    def take(self, values: Tensor) -> Tensor:
        """The values in the windows: (B, L, ...) -> (B, W, ...)."""
        return values[torch.arange(len(values), device=values.device)[:, None], self.index]

    def frozen(self, y: Tensor, freeze: Freeze) -> Tensor:
        """The y for the windows, as `freeze` says: (B, L, d) -> (B, W, d), or (B, 1, d) for a constant y."""
        rows = torch.arange(len(y), device=y.device)
        if freeze == "prefix":
            return y[rows, self.index[:, 0]][:, None]
        if freeze == "context":
            return y[rows, self.cut][:, None]
        index = self.index if freeze == "never" else torch.minimum(self.index, self.cut[:, None])
        return y[rows[:, None], index]


def draw_windows(scored: Tensor, real: Tensor, *, horizon: int | None, context: int, latest: float) -> Windows:
    """A random window of every row, from torch's generator.

    The start is uniform over 0 .. latest n - context, where n is the row's length. At least one token follows the context if the
    row is long enough.

    Args:
        scored: Which positions the task scores, (B, L) bool.
        real: Which positions are no padding, (B, L) bool.
        horizon: Number of tokens to predict. None: all.
        context: Number of tokens that are read before them.
        latest: The share of a row within which the context ends.

    Returns:
        Windows of W = context + horizon positions, or of L if that is smaller.
    """
    batch, length = scored.shape
    lengths = real.sum(1)
    last = torch.minimum((latest * lengths).long() - context, lengths - 1 - context).clamp(min=0)
    start = (torch.rand(batch, device=scored.device) * (last + 1)).long().clamp(max=last)
    width = length if horizon is None else min(length, context + horizon)
    offset = torch.arange(width, device=scored.device)
    index = start[:, None] + offset
    inside = (index < length) & (offset >= context)
    index = index.clamp(max=length - 1)
    return Windows(index, inside & scored.gather(1, index), (start + context).clamp(max=length - 1))


def augment(y: Tensor, smooth: int, shift: int) -> Tensor:
    """A delayed moving average of y (2024, section 3.5, "y sequence augmentations").

    The paper does not say how it smoothed and shifted. Here each row has its own random width, 1..smooth positions, and its own
    random delay, 0..shift positions. Both are cut off at position 0. The result is causal.

    Args:
        y: (B, L, d).
        smooth: Largest width, in positions.
        shift: Largest delay, in positions.

    Returns:
        (B, L, d).
    """
    batch, length, _ = y.shape
    device = y.device
    width = 1 + (torch.rand(batch, 1, device=device) * smooth).long().clamp(max=smooth - 1)
    late = (torch.rand(batch, 1, device=device) * (shift + 1)).long().clamp(max=shift)
    end = (torch.arange(length, device=device) - late).clamp(min=0)
    begin = (end - width + 1).clamp(min=0)
    sums = torch.cat([torch.zeros_like(y[:, :1]), y.cumsum(1)], dim=1)
    rows = torch.arange(batch, device=device)[:, None]
    return (sums[rows, end + 1] - sums[rows, begin]) / (end + 1 - begin)[..., None]


def real_positions(scored: Tensor) -> Tensor:
    """The positions of each row up to its last scored one; the others count as padding. (B, L) bool -> (B, L) bool."""
    return scored.flip(1).cummax(1).values.flip(1)


def position_weights(profile: Profile, length: int, device: torch.device | None = None) -> Tensor:
    """omega, the weights of positions 0..length-1, (L,). Only their ratios matter.

    "quadratic" is s (s + 1). It is exact for the prior of CGT Eq. 1, the estimate of a mean that improves with each observation:
    its covariance is K_st = c + v / max(s, t), K^-1 is tridiagonal, and mu^T K^-1 mu is the sum of
    s (s + 1) (mu_{s+1} - mu_s)^2 / v and one last term. So the expansion of CGT A.3 is not needed.
    """
    s = torch.arange(length, device=device, dtype=torch.float32)
    if profile == "uniform":
        return torch.ones_like(s)
    return s if profile == "linear" else s * (s + 1.0)


def continuity(y: Tensor, real: Tensor, profile: Profile = "uniform") -> Tensor:
    """R_C: the mean of |n_t - n_{t-1}|^2 over neighbours, n = y / |y| (CGT section 3.4; 2024, section 3.2).

    Args:
        y: (B, L, d).
        real: Which positions are no padding, (B, L) bool.
        profile: A pair has the weight of its earlier position.

    Returns:
        A scalar in 0..4.
    """
    n = F.normalize(y[:, 1:], dim=-1)
    steps = (n[:, 1:] - n[:, :-1]).square().sum(-1)
    weights = real[:, 2:] * position_weights(profile, y.shape[1], y.device)[1:-1]
    return (weights * steps).sum() / weights.sum().clamp(min=1e-9)


def diversity(y: Tensor, real: Tensor, profile: Profile = "uniform") -> Tensor:
    """R_D: the mean of (n_t^a . n_t^b)^2 over pairs of different rows that both have a position t, n = y / |y|.

    It is the orthogonal projection loss of CGT section 3.4. Its terms a = b are 0, because n has length 1.

    Args:
        y: (B, L, d).
        real: Which positions are no padding, (B, L) bool.
        profile: How positions are weighted.

    Returns:
        A scalar in 0..1.
    """
    n = F.normalize(y[:, 1:], dim=-1).transpose(0, 1)
    both = real[:, 1:].T
    pairs = both[:, :, None] & both[:, None, :] & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    weights = pairs * position_weights(profile, y.shape[1], y.device)[1:, None, None]
    return (weights * (n @ n.transpose(1, 2)).square()).sum() / weights.sum().clamp(min=1e-9)


def moments(y: Tensor, covariance: Tensor) -> Tensor:
    """R_P: how far mean and covariance over the batch are from those of a Gaussian process (CGT A.2; 2024, Appendix B).

    1/N sum_s |mu_s|^2 + 1/N^2 sum_stij (<dy_si dy_tj> - K_st delta_ij)^2, dy = y - mu. The papers sample pairs (s, t) to save
    memory. Here all pairs count, and no (N d, N d) covariance is needed: with the rows of dy as a (B, N d) matrix Y,
    |Y^T Y / B|^2 = |Y Y^T / B|^2, and the product with K_st delta_ij is sum_b tr(dy_b^T K dy_b) / B.

    Args:
        y: (B, N, d).
        covariance: K, (N, N).

    Returns:
        A scalar.
    """
    batch, length, components = y.shape
    mean = y.mean(0)
    centred = y - mean
    rows = centred.flatten(1)
    squared = (rows @ rows.T / batch).square().sum()
    crossed = ((covariance @ centred) * centred).sum() / batch
    fixed = components * covariance.square().sum()
    return mean.square().sum() / max(length, 1) + (squared - 2.0 * crossed + fixed) / max(length, 1) ** 2


def moments_by_position(y: Tensor, variance: Tensor) -> Tensor:
    """R'_D: as `moments`, each position alone: the mean over s of |mu_s|^2 + |<dy_s dy_s^T> - v_s I|^2.

    CGT A.2; 2024, Appendix B, where v = 1.

    Args:
        y: (B, N, d).
        variance: v, (N,): K_ss.

    Returns:
        A scalar.
    """
    mean = y.mean(0)
    centred = (y - mean).transpose(0, 1)
    found = centred.transpose(1, 2) @ centred / y.shape[0]
    wanted = variance[:, None, None] * torch.eye(y.shape[2], device=y.device, dtype=y.dtype)
    return (mean.square().sum(-1) + (found - wanted).square().sum((1, 2))).sum() / max(y.shape[1], 1)
