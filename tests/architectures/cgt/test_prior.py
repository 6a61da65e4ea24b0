"""The Gaussian-process prior: its kernels, and its divergence against torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from architectures.cgt.prior import Prior, covariance

SCALE, NOISE, WIDTH = 1.3, 0.2, 2.5


def encoder(length: int, components: int = 3, rows: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(rows, length, components, generator=generator)
    return mean, torch.randn(rows, length, components, generator=generator)


def test_the_kernel() -> None:
    found = covariance(7, SCALE, NOISE, WIDTH)
    for i in range(7):
        for j in range(7):
            smooth = math.exp(-((i - j) ** 2) / (2 * WIDTH**2))
            assert float(found[i, j]) == pytest.approx(SCALE**2 * (NOISE * (i == j) + (1 - NOISE) * smooth))


def test_the_divergence_is_that_of_the_distributions_at_every_length() -> None:
    prior = Prior(9, SCALE, NOISE, WIDTH)
    mean, log_variance = encoder(9)
    lengths = torch.tensor([9, 1, 4, 8])
    found = prior.divergence(mean, log_variance, lengths)
    for b, n in enumerate(lengths.tolist()):
        whole = MultivariateNormal(torch.zeros(n).double(), covariance(n, SCALE, NOISE, WIDTH))
        expected = 0.0
        for i in range(3):
            spread = log_variance[b, :n, i].exp().diag().double()
            expected += float(kl_divergence(MultivariateNormal(mean[b, :n, i].double(), spread), whole))
        assert float(found[b]) == pytest.approx(expected, rel=1e-4)


def test_padding_plays_no_part() -> None:
    prior = Prior(9, SCALE, NOISE, WIDTH)
    mean, log_variance = encoder(9)
    lengths = torch.tensor([5, 5, 5, 5])
    short = prior.divergence(mean[:, :5], log_variance[:, :5], lengths)
    torch.testing.assert_close(prior.divergence(mean, log_variance, lengths), short)
    mean[:, 5:], log_variance[:, 5:] = 1e6, 1e6
    torch.testing.assert_close(prior.divergence(mean, log_variance, lengths), short)
    mean.requires_grad_()
    prior.divergence(mean, log_variance, lengths).sum().backward()
    assert mean.grad is not None
    assert (mean.grad[:, 5:] == 0).all()


@pytest.mark.parametrize("length", [2, 37, 512])
def test_the_kernel_of_an_estimate(length: int) -> None:
    """CGT Eq. 1. Without noise its inverse has entries beside the diagonal only: what comes next depends on the last estimate."""
    k = covariance(length, SCALE, NOISE, 1.0, share=0.3)
    for i, j in ((0, 0), (0, 1), (1, length - 1), (length - 1, length - 1)):
        expected = NOISE * (i == j) + (1 - NOISE) * (0.3 + 0.7 / max(i, j, 1))
        assert float(k[i, j]) == pytest.approx(SCALE**2 * expected)
    assert float(torch.linalg.eigvalsh(k).min()) > 0
    for share in (0.3, 1.0):
        prior = Prior(length, SCALE, 1e-3, share=share)
        assert prior.whiten.isfinite().all()
    # Position 0 has no observation and repeats position 1, so without noise the kernel is that of the positions after it.
    sharp = covariance(length + 1, SCALE, 1e-15, 1.0, share=0.3)[1:, 1:]
    inverse = torch.linalg.inv(sharp)
    apart = (torch.arange(length)[:, None] - torch.arange(length)).abs() > 1
    assert float(inverse[apart].abs().max() if apart.any() else 0.0) < 1e-8 * float(inverse.abs().max())
    assert float(inverse.diagonal(1).abs().min()) > 1e-8 * float(inverse.abs().max())
