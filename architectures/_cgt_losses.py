"""What CGT asks of y besides prediction: to be slow, to differ between instances, to be distributed as a given process.

`y[b, t]` is what is known after tokens[b, :t]; y[:, 0] has seen nothing and is the same for all, so the element-wise terms
begin at 1. `real` marks the positions of a row that are no padding. Where the papers write "proportional to", these are means:
over the pairs of neighbours, or the pairs of instances, and over positions. So their weights mean the same at any length and
batch size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Profile = Literal["uniform", "linear", "quadratic"]


def real_positions(scored: Tensor) -> Tensor:
    """Where a row is no padding, as far as the scored positions tell: up to its last. (B, L) bool -> (B, L) bool."""
    return scored.flip(1).cummax(1).values.flip(1)


def position_weights(profile: Profile, length: int, device: torch.device | None = None) -> Tensor:
    """omega: how much positions 0..length-1 count, (L,); only their ratios matter.

    quadratic: s (s + 1). With the covariance c + v / max(s, t) of an estimate of a mean that gets better with every observation
    (CGT Eq. 1), K^-1 is tridiagonal, and mu^T K^-1 mu is the sum of s (s + 1) (mu_{s+1} - mu_s)^2 / v and a last term: so this
    is what that prior gives exactly (the expansion of CGT A.3, for kernels that fall off quickly, is not needed).
    """
    s = torch.arange(length, device=device, dtype=torch.float32)
    if profile == "uniform":
        return torch.ones_like(s)
    return s if profile == "linear" else s * (s + 1.0)


def continuity(y: Tensor, real: Tensor, profile: Profile = "uniform") -> Tensor:
    """R_C: the mean of |n_t - n_{t-1}|^2 over real neighbours, n = y / |y|. (B, L, d), (B, L) -> scalar in 0..4.

    CGT section 3.4; Zhmoginov et al. 2024, section 3.2. A pair counts with the weight of its earlier position.
    """
    n = F.normalize(y[:, 1:], dim=-1)
    steps = (n[:, 1:] - n[:, :-1]).square().sum(-1)
    weights = real[:, 2:] * position_weights(profile, y.shape[1], y.device)[1:-1]
    return (weights * steps).sum() / weights.sum().clamp(min=1e-9)


def diversity(y: Tensor, real: Tensor, profile: Profile = "uniform") -> Tensor:
    """R_D: the mean of (n_t^a . n_t^b)^2 over pairs of different rows that are both real at t. (B, L, d), (B, L) -> 0..1.

    The orthogonal projection loss of CGT section 3.4, whose terms a = b are 0 by the normalisation.
    """
    n = F.normalize(y[:, 1:], dim=-1).transpose(0, 1)
    both = real[:, 1:].T
    pairs = both[:, :, None] & both[:, None, :] & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    weights = pairs * position_weights(profile, y.shape[1], y.device)[1:, None, None]
    return (weights * (n @ n.transpose(1, 2)).square()).sum() / weights.sum().clamp(min=1e-9)


def moments(y: Tensor, covariance: Tensor) -> Tensor:
    """R_P: how far mean and covariance over the batch are from a Gaussian process. (B, N, d), (N, N) -> scalar.

    1/N sum_s |mu_s|^2 + 1/N^2 sum_stij (<dy_si dy_tj> - K_st delta_ij)^2, dy = y - mu (CGT A.2; 2024, Appendix B). The papers
    sample pairs (s, t) to afford it. Expanded, the square needs no (N d, N d) covariance: with the rows of dy as a (B, N d)
    matrix Y, |Y^T Y / B|^2 = |Y Y^T / B|^2, and the product with K_st delta_ij is sum_b tr(dy_b^T K dy_b) / B.
    """
    batch, length, components = y.shape
    mean = y.mean(0)
    centred = y - mean
    rows = centred.flatten(1)
    squared = (rows @ rows.T / batch).square().sum()
    crossed = ((covariance @ centred) * centred).sum() / batch
    fixed = components * covariance.square().sum()
    return mean.square().sum() / max(length, 1) + (squared - 2.0 * crossed + fixed) / max(length, 1) ** 2


def moments_by_position(y: Tensor, variance: float) -> Tensor:
    """R'_D: the same without what ties positions together: the mean over s of |mu_s|^2 + |<dy_s dy_s^T> - v I|^2.

    (B, N, d) -> scalar. CGT A.2; 2024, Appendix B, which has v = 1.
    """
    mean = y.mean(0)
    centred = (y - mean).transpose(0, 1)
    found = centred.transpose(1, 2) @ centred / y.shape[0]
    wanted = variance * torch.eye(y.shape[2], device=y.device, dtype=y.dtype)
    return (mean.square().sum(-1) + (found - wanted).square().sum((1, 2))).sum() / max(y.shape[1], 1)
