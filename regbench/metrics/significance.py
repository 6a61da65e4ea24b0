"""Whether a score has changed: models trained then and models trained now, on the same test split, against what chance does.

Two things vary though nothing was changed for the worse, and both enter the standard error of the change in quadrature.

*Seeds.* Two trainings that differ in a seed, or in the rounding of one sum, end at different scores. With K and K' trainings
the means differ by s sqrt(1/K + 1/K'). The spread s of a handful of seeds is itself badly known, and of one seed not at all; so
the spread found is pooled with one expected beforehand, which weighs as much as `SEED_NOISE_WEIGHT` degrees of freedom found
(the moderated t of Smyth 2004, "Linear models and empirical Bayes methods", section 3). The weight keeps seeds that happen to
agree from making any change a significant one, and it is why the spread never counts as zero.

*Instances.* Every instance is answered then and now: the standard error of the mean of the paired differences, which is far less
than that of either score. It is there although the split stays the same, since a change that moves successes from some instances
to others is none for the worse. Part of the seeds' effect on single instances is thereby counted twice, on the safe side.

A change counts when it is more standard errors away from 0 than Student's t reaches with probability `level`, one-sided.
Seeds in common are not paired: one changed bit is enough for them to have no more in common than any others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.utils.errors import UserError

LEVEL = 0.001
"""How often a test that nothing is wrong with may fail, if its seeds spread as expected: once in a thousand."""

SEED_NOISE = 0.008
"""The spread over seeds expected beforehand: a standard deviation, as a share of the score.

Measured on `pfa-small-v1`, root mean squares over four scores: 0.006 for 24 LSTMs and 0.008 for 12 Mambas of width 32 trained on
250,000 tokens (single scores 0.004 to 0.010), 0.006 for the README's architectures trained on all 8 million. The largest is
taken. Of these LSTMs and Mambas, one drawn against one other or three against three, at level 0.05 between 0 and 6 % of the
tests failed, depending on the score, and at level 0.001 none of 1,500.
"""

SEED_NOISE_WEIGHT = 8
"""How many degrees of freedom the expected spread is worth.

One seed against one may then fall by 6.4 times the expected spread (5 % of the score), three against three by 3.1 times (2.5 %).
Where the true spread is twice the expected, one test in 70 with one seed and one in 150 with three fail for nothing; where it is
three times, one in 15 and one in 60. Half the weight would let one seed fall by 10 times the spread; twice the weight would more
than double the false alarms of a spread twice the expected.
"""


@dataclass(frozen=True)
class Sample:
    """What is compared: the score of each seed, (K,), and of each instance the sum over its positions, the seeds' mean, (N,)."""

    seeds: Sequence[float]
    instances: NDArray[np.float64]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seeds)


@dataclass(frozen=True)
class Change:
    """From the expected score to the one got, in the score's unit; positive is better.

    instances, seeds: the standard errors of the change from either source.  freedom: degrees of freedom of the two together.
    """

    change: float
    instances: float
    seeds: float
    freedom: int
    level: float

    @property
    def noise(self) -> float:
        """The standard error of the change."""
        return math.hypot(self.instances, self.seeds)

    @property
    def allowed(self) -> float:
        """How large a change may be and still be put down to chance."""
        return student_quantile(self.level, self.freedom) * self.noise

    @property
    def worse(self) -> bool:
        return self.change < -self.allowed

    @property
    def better(self) -> bool:
        return self.change > self.allowed


def compare(
    expected: Sample,
    got: Sample,
    counts: NDArray[np.integer[Any]],
    *,
    higher_is_better: bool,
    level: float = LEVEL,
    seed_noise: float | None = None,
) -> Change:
    """The change of a score that is a mean over positions; counts: (N,), each instance's number of them.

    seed_noise: the spread over seeds expected beforehand, in the score's unit; by default `SEED_NOISE` of the expected score.

    Raises:
        UserError: a level that is no probability below one half, or a negative seed_noise.
    """
    if not 0.0 < level < 0.5:
        raise UserError(f"level must be above 0 and below 0.5, not {level}")
    if seed_noise is not None and not (seed_noise >= 0.0 and math.isfinite(seed_noise)):
        raise UserError(f"seed_noise must be 0 or more, not {seed_noise}")
    change = got.mean - expected.mean
    prior = SEED_NOISE * abs(expected.mean) if seed_noise is None else seed_noise
    seeds, freedom = seed_error(expected.seeds, got.seeds, prior)
    instances = _paired_error(got.instances - expected.instances, counts)
    total = seeds**2 + instances**2
    if total > 0.0:  # of a sum of two variances, by Satterthwaite
        freedom = max(1, int(total**2 / (seeds**4 / freedom + instances**4 / max(1, len(counts) - 1))))
    return Change(change if higher_is_better else -change, instances, seeds, freedom, level)


def seed_error(expected: Sequence[float], got: Sequence[float], prior: float) -> tuple[float, int]:
    """The standard error of the difference of two means over seeds, and its degrees of freedom; prior: see `SEED_NOISE`."""
    freedom = len(expected) + len(got) - 2
    squares = sum((x - statistics.fmean(part)) ** 2 for part in (expected, got) for x in part)
    variance = (SEED_NOISE_WEIGHT * prior**2 + squares) / (SEED_NOISE_WEIGHT + freedom)
    return math.sqrt(variance * (1 / len(expected) + 1 / len(got))), SEED_NOISE_WEIGHT + freedom


def student_quantile(level: float, freedom: int) -> float:
    """What Student's t with `freedom` degrees of freedom exceeds with probability `level` < 1/2."""
    low, high = 0.0, 1.0
    while _student_tail(high, freedom) > level:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2
        if _student_tail(middle, freedom) > level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_tail(t: float, freedom: int) -> float:
    """P(T > t) for t >= 0, by the finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = (cosine if odd else 1.0) if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    inside = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    return (1.0 - inside) / 2.0


def _paired_error(difference: NDArray[np.float64], counts: NDArray[np.integer[Any]]) -> float:
    """The standard error over instances of sum(difference) / sum(counts), as of a ratio."""
    n = len(counts)
    if n < 2:
        return 0.0
    residual = difference - difference.sum() / counts.sum() * counts
    return float(np.sqrt((residual**2).sum() / (n * (n - 1))) / counts.mean())
