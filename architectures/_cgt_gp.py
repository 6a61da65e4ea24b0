"""The Gaussian-process prior on y, and the divergence of CGT's encoder from it (CGT A.1; Zhmoginov et al. 2024, section 3.3).

The prior: every component of y is a Gaussian sequence with mean 0 and covariance

    K_ij = K^2 (nu delta_ij + (1 - nu) exp(-(i - j)^2 / (2 sigma^2))).

The encoder: y_i ~ N(mu_i, v_i), each position and component by itself. With n positions, for each component,

    2 D_KL = log|K| - sum_i log v_i - n + sum_ij (K^-1)_ij mu_i mu_j + sum_i (K^-1)_ii v_i.

The paper of 2024 prints it with sigma_i for v_i, but its encoder's density has sigma_i^2 as the variance: in the divergence
sigma_i must be read as the variance. (With standard deviations there, an encoder equal to the prior would be pushed away from
it wherever K_ii is not 1.) In its objective log q must have a minus. The later paper's text has lost both formulas.

A sequence of n positions has the leading n x n block of K as its prior. The inverse of each such block comes of one triangular
matrix: if K = C C^T, then the leading block of C^-1 is the inverse of C's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def covariance(length: int, scale: float, noise: float, width: float) -> Tensor:
    """K, (n, n) in float64. scale: K.  noise: nu.  width: sigma, in positions."""
    positions = torch.arange(length, dtype=torch.float64)
    smooth = torch.exp(-((positions[:, None] - positions) ** 2) / (2.0 * width**2))
    return scale**2 * (noise * torch.eye(length, dtype=torch.float64) + (1.0 - noise) * smooth)


class Prior(nn.Module):
    """The prior for sequences of up to `length` positions; everything that depends on K alone is computed here, once.

    noise must be above 0: without it K is singular to rounding.
    """

    whiten: Tensor
    """C^-1: (n, n), lower triangular."""
    log_determinant: Tensor
    """log|K| of the leading blocks: (n,), for 1, 2, ... positions."""
    precision: Tensor
    """Diagonals of the inverses of the leading blocks: (n, n), a row for 1, 2, ... positions; 0 past it."""

    def __init__(self, length: int, scale: float, noise: float, width: float) -> None:
        super().__init__()
        factor = torch.linalg.cholesky(covariance(length, scale, noise, width))
        whiten = torch.linalg.solve_triangular(factor, torch.eye(length, dtype=torch.float64), upper=False)
        # They follow from the options, so checkpoints do without them.
        self.register_buffer("whiten", whiten.float(), persistent=False)
        self.register_buffer("log_determinant", 2.0 * factor.diagonal().log().cumsum(0).float(), persistent=False)
        self.register_buffer("precision", (whiten**2).cumsum(0).float(), persistent=False)

    def divergence(self, mean: Tensor, log_variance: Tensor, lengths: Tensor) -> Tensor:
        """D_KL of the encoder from the prior in nats, all components together: (B, L, d), (B, L, d), (B,) -> (B,).

        Only the first `lengths` positions of a row count; each is at least 1.
        """
        length, components = mean.shape[1:]
        real = torch.arange(length, device=mean.device) < lengths[:, None]
        mean, log_variance = (torch.where(real[..., None], part, 0.0) for part in (mean, log_variance))
        squares = torch.where(real, (self.whiten[:length, :length] @ mean).square().sum(-1), 0.0)
        traces = self.precision[lengths - 1, :length] * log_variance.exp().sum(-1)
        fixed = self.log_determinant[lengths - 1] - lengths
        return ((squares + traces - log_variance.sum(-1)).sum(1) + components * fixed) / 2.0
