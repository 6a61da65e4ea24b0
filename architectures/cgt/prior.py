"""The Gaussian-process prior of y, and the divergence of CGT's encoder from it (CGT A.1; 2024, section 3.3).

The prior: every component of y is a Gaussian sequence with mean 0 and covariance

    K_ij = K^2 (nu delta_ij + (1 - nu) exp(-(i - j)^2 / (2 sigma^2))).

With `share` the smooth part is that of CGT Eq. 1, the covariance of an estimate that improves with each observation.

The encoder: y_i ~ N(mu_i, v_i), independent for each position and component. With n positions, for each component,

    2 D_KL = log|K| - sum_i log v_i - n + sum_ij (K^-1)_ij mu_i mu_j + sum_i (K^-1)_ii v_i.

The paper of 2024 prints sigma_i in the place of v_i. Its encoder has the variance sigma_i^2, but in the divergence sigma_i must
be the variance itself. (With standard deviations the divergence would not be smallest at the prior where K_ii is not 1.) In its
objective log q needs a minus sign. The text of the later paper has lost both formulas.

The prior of a sequence of n positions is the leading n x n block of K. One triangular matrix gives the inverses of all blocks:
if K = C C^T, the leading block of C^-1 is the inverse of the leading block of C.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def covariance(length: int, scale: float, noise: float, width: float, share: float | None = None) -> Tensor:
    """The covariance matrix of the prior.

    Args:
        length: Number of positions, n.
        scale: K.
        noise: nu.
        width: sigma, in positions.
        share: None: the smooth kernel above. Otherwise that of a running mean of observations, which the width says nothing
            of: c + (1 - c) / max(i, j, 1) with c = share (CGT Eq. 1).

    Returns:
        (n, n), float64.
    """
    positions = torch.arange(length, dtype=torch.float64)
    if share is None:
        smooth = torch.exp(-((positions[:, None] - positions) ** 2) / (2.0 * width**2))
    else:
        smooth = share + (1.0 - share) / torch.maximum(positions[:, None], positions).clamp(min=1.0)
    return scale**2 * (noise * torch.eye(length, dtype=torch.float64) + (1.0 - noise) * smooth)


class Prior(nn.Module):
    """The prior of sequences of up to `length` positions. What depends on K alone is computed once, in the constructor.

    `noise` must be above 0. Without noise K is singular in floating point.

    Attributes:
        whiten: C^-1, (n, n), lower triangular.
        log_determinant: log|K| of the leading blocks of 1, 2, ... n positions, (n,).
        precision: Diagonals of the inverses of the leading blocks, (n, n), one block a row, then 0.
        deviation: The standard deviation of each position, (n,).
    """

    whiten: Tensor
    log_determinant: Tensor
    precision: Tensor
    deviation: Tensor

    def __init__(self, length: int, scale: float, noise: float, width: float = 1.0, share: float | None = None) -> None:
        super().__init__()
        whole = covariance(length, scale, noise, width, share)
        factor = torch.linalg.cholesky(whole)
        whiten = torch.linalg.solve_triangular(factor, torch.eye(length, dtype=torch.float64), upper=False)
        # They follow from the options, so they are not in checkpoints.
        self.register_buffer("whiten", whiten.float(), persistent=False)
        self.register_buffer("log_determinant", 2.0 * factor.diagonal().log().cumsum(0).float(), persistent=False)
        self.register_buffer("precision", (whiten**2).cumsum(0).float(), persistent=False)
        self.register_buffer("deviation", whole.diagonal().sqrt().float(), persistent=False)

    def divergence(self, mean: Tensor, log_variance: Tensor, lengths: Tensor) -> Tensor:
        """D_KL of the encoder from the prior, summed over components.

        Args:
            mean: mu, (B, L, d).
            log_variance: log v, (B, L, d).
            lengths: Number of positions of each row that count, at least 1, (B,).

        Returns:
            (B,), in nats.
        """
        length, components = mean.shape[1:]
        real = torch.arange(length, device=mean.device) < lengths[:, None]
        mean, log_variance = (torch.where(real[..., None], part, 0.0) for part in (mean, log_variance))
        squares = torch.where(real, (self.whiten[:length, :length] @ mean).square().sum(-1), 0.0)
        traces = self.precision[lengths - 1, :length] * log_variance.exp().sum(-1)
        fixed = self.log_determinant[lengths - 1] - lengths
        return ((squares + traces - log_variance.sum(-1)).sum(1) + components * fixed) / 2.0

    def by_component(self, mean: Tensor, log_variance: Tensor, lengths: Tensor) -> Tensor:
        """`divergence` of each component: (B, L, d), (B, L, d), (B,) -> (B, d), in nats."""
        pairs = zip(mean.split(1, dim=-1), log_variance.split(1, dim=-1), strict=True)
        return torch.stack([self.divergence(m, v, lengths) for m, v in pairs], dim=-1)

    def least(self, lengths: Tensor) -> Tensor:
        """The smallest divergence of one component, (B,) -> (B,) in nats: mean 0 and variances 1 / (K^-1)_ii.

        It is above 0, as the encoder's positions are independent and the prior's are not (2024, section 3.3).
        """
        rows = self.precision[lengths - 1]
        logs = torch.where(rows > 0.0, rows.clamp(min=1e-30).log(), 0.0).sum(1)
        return (self.log_determinant[lengths - 1] + logs) / 2.0
