"""The Gaussian-process prior: its divergence against torch.distributions, sampling, and what the papers print."""

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


def test_the_divergence_is_what_sampling_says() -> None:
    """D_KL = E_q[log q(y) - log p(y)], from 200,000 samples of the encoder: within 4 standard errors."""
    n, samples = 5, 200_000
    mean, log_variance = encoder(n, components=1, rows=1)
    found = float(Prior(n, SCALE, NOISE, WIDTH).divergence(mean, log_variance, torch.tensor([n]))[0])
    mu, v = mean[0, :, 0].double(), log_variance[0, :, 0].exp().double()
    noise = torch.randn(samples, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = mu + v.sqrt() * noise
    k = covariance(n, SCALE, NOISE, WIDTH)
    log_q = -0.5 * ((y - mu) ** 2 / v + v.log() + math.log(2 * math.pi)).sum(1)
    log_p = -0.5 * ((y * torch.linalg.solve(k, y.T).T).sum(1) + k.logdet() + n * math.log(2 * math.pi))
    draws = log_q - log_p
    error = float(draws.std()) / samples**0.5
    assert abs(found - float(draws.mean())) < 4 * error
    assert error < 0.01 * found


def printed(mean: Tensor, sigma: Tensor, k: Tensor) -> float:
    """Half of the right-hand side as the paper of 2024 prints it, in its symbol sigma_i; one component."""
    inverse = torch.linalg.inv(k)
    twice = k.logdet() - sigma.log().sum() - len(mean) + mean @ inverse @ mean + inverse.diagonal() @ sigma
    return float(twice / 2)


def test_the_printed_formula_holds_with_sigma_as_the_variance_alone() -> None:
    mean, log_variance = encoder(6, components=1, rows=1)
    mu, v = mean[0, :, 0].double(), log_variance[0, :, 0].exp().double()
    k = covariance(6, SCALE, NOISE, WIDTH)
    found = float(Prior(6, SCALE, NOISE, WIDTH).divergence(mean, log_variance, torch.tensor([6]))[0])
    assert found == pytest.approx(printed(mu, v, k), rel=1e-5)
    assert found != pytest.approx(printed(mu, v.sqrt(), k), rel=0.02)


def test_read_with_standard_deviations_it_is_not_zero_at_the_prior_itself() -> None:
    mean, variance = torch.zeros(1).double(), torch.tensor([16.0]).double()
    prior = variance[:, None]
    assert printed(mean, variance, prior) == pytest.approx(0.0, abs=1e-12)
    assert printed(mean, variance.sqrt(), prior) == pytest.approx((math.log(16 / 4) - 1 + 4 / 16) / 2)  # 0.32, not 0
    assert printed(mean, variance, prior) < printed(mean, variance.sqrt(), prior)


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


def test_it_is_zero_at_the_prior_alone() -> None:
    white = Prior(6, SCALE, 1.0, WIDTH)  # with noise alone the encoder can be the prior
    mean, lengths = torch.zeros(1, 6, 2), torch.tensor([6])
    log_variance = torch.full((1, 6, 2), 2 * math.log(SCALE))
    assert float(white.divergence(mean, log_variance, lengths)) == pytest.approx(0.0, abs=1e-5)
    assert float(white.divergence(mean + 0.1, log_variance, lengths)) > 0.01


def test_smooth_means_cost_less_than_rough_ones() -> None:
    prior, lengths = Prior(64, 1.0, 0.03, 6.4), torch.tensor([64])
    t = torch.arange(64.0)
    flat = torch.zeros(1, 64, 1)
    costs = [
        float(prior.divergence(torch.sin(2 * math.pi * k * t / 64)[None, :, None], flat, lengths)) for k in (1, 4, 16)
    ]
    assert costs == sorted(costs)
    assert costs[2] - float(prior.divergence(flat, flat, lengths)) > 20 * (
        costs[0] - float(prior.divergence(flat, flat, lengths))
    )


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


def test_the_best_independent_encoder_is_not_at_zero() -> None:
    """At mean 0 and variance 1 / (K^-1)_ii the gradient is 0, and (log|K| + sum_i log (K^-1)_ii) / 2 nats are left."""
    k = covariance(8, SCALE, NOISE, WIDTH)
    best = -torch.linalg.inv(k).diagonal().log()
    mean = torch.zeros(1, 8, 1, requires_grad=True)
    log_variance = best.float().view(1, 8, 1).requires_grad_()
    found = Prior(8, SCALE, NOISE, WIDTH).divergence(mean, log_variance, torch.tensor([8]))[0]
    found.backward()
    assert mean.grad is not None
    assert log_variance.grad is not None
    torch.testing.assert_close(mean.grad, torch.zeros(1, 8, 1))
    torch.testing.assert_close(log_variance.grad, torch.zeros(1, 8, 1), atol=1e-4, rtol=0)
    assert float(found.detach()) == pytest.approx(float(k.logdet() - best.sum()) / 2, rel=1e-4)
    assert float(found.detach()) > 0


def test_its_tables_follow_from_the_options_and_stay_out_of_checkpoints() -> None:
    assert Prior(5, SCALE, NOISE, WIDTH).state_dict() == {}
