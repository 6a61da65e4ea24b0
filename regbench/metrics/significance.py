"""Whether two scores differ by more than chance: of models trained then and models trained now, on the same test split.

Two things vary even where nothing was changed. Both are in the standard error of the change, as the root of the sum of squares.

*Seeds.* Two trainings that differ in a seed, or in the rounding of one sum, end at different scores. With K and K' trainings
the means differ by s sqrt(1/K + 1/K'). A handful of seeds tells little about their spread s, and one seed tells nothing. So the
spread found is pooled with one expected beforehand, which counts as `SEED_NOISE_WEIGHT` degrees of freedom (the moderated t of
Smyth 2004, "Linear models and empirical Bayes methods", section 3). Thanks to this weight, seeds that agree by chance do not
make every change significant, and the spread never counts as zero.

*Instances.* Every instance is answered then and now. The error is that of the mean of the paired differences, which is far less
than that of either score. It counts although the split stays the same: a change may help some instances as much as it hurts
others. Part of the seeds' effect on single instances is counted twice in this way, on the safe side.

*A seed alone.* Where a seed collapses, the spread over seeds grows with it, and the mean would excuse its own fall. So
`worst_seed` holds each new seed against the earlier ones alone: against their mean, and with the noise of their seeds and
instances.

A change counts when it is more standard errors away from 0 than Student's t reaches with probability `level`, on one side.
Seeds are not paired: one changed bit is enough to make two trainings with the same seed as different as any others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError

LEVEL = 0.001
"""How often a test may fail although nothing is wrong, if its seeds spread as expected: once in a thousand."""

SEED_NOISE = 0.008
"""The spread over seeds that is expected beforehand: a standard deviation, as a share of the score.

It is the largest of three that were measured on `pfa-small-v1`, root mean squares over four scores: 0.006 for 24 LSTMs and 0.008
for 12 Mambas of width 32 trained on 250,000 tokens (single scores 0.004 to 0.010), 0.006 for architectures trained on all 8
million. Then such LSTMs and Mambas were drawn and compared, one with one or three with three. At level 0.05 between 0 and 6 % of
the tests failed, depending on the score. At level 0.001 none of 1,500 failed.
"""

SEED_NOISE_WEIGHT = 8
"""How many degrees of freedom the expected spread counts as.

One seed against one may then fall by 6.4 times the expected spread (5 % of the score), three against three by 3.1 times (2.5 %).
A test also fails for its worst seed. If the true spread is twice the expected one, one test in 80 fails for nothing with one
seed, and one in 56 with three. If it is three times the expected one, one in 16 fails with either. Half the weight would let one
seed fall by 10 times the spread. Twice the weight would more than double the false alarms at twice the expected spread.
"""


@dataclass(frozen=True)
class Sample:
    """The scores of some trained models.

    Attributes:
        seeds: (K,), the score of each seed.
        instances: (N,), the sum over each instance's positions, averaged over seeds.
        trained: Whether another seed would give another score. False of a baseline.
    """

    seeds: Sequence[float]
    instances: NDArray[np.float64]
    trained: bool = True

    @property
    def mean(self) -> float:
        """The mean score over seeds."""
        return statistics.fmean(self.seeds)


@dataclass(frozen=True)
class Change:
    """The way from an expected score to the one that came out.

    Attributes:
        change: The difference in the score's unit. Positive is better.
        instances: The part of its standard error that comes from instances.
        seeds: The part of its standard error that comes from seeds.
        freedom: Degrees of freedom of the whole standard error.
        level: The probability with which chance alone may be called a change, on one side.
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
        """The largest change that chance explains."""
        return student_quantile(self.level, self.freedom) * self.noise

    @property
    def p(self) -> float:
        """The two-sided p-value: how often chance alone gives so large a change."""
        if self.noise == 0.0:
            return float(self.change == 0.0)
        return 2.0 * float(stdtr(self.freedom, -abs(self.change) / self.noise))

    @property
    def worse(self) -> bool:
        """Whether the score fell by more than chance explains."""
        return self.change < -self.allowed

    @property
    def better(self) -> bool:
        """Whether the score rose by more than chance explains."""
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
    """Compares two scores that are means over the positions of the same instances.

    Args:
        expected: The models trained then.
        got: The models trained now.
        counts: (N,), the number of positions of each instance. Those without any do not count. Of one instance nothing is
            significant.
        higher_is_better: Whether the score is better when it is higher.
        level: The probability with which chance alone may be called a change, on one side.
        seed_noise: The spread over seeds that is expected beforehand, in the score's unit. By default it is the
            `expected_spread` of the scores that were trained.

    Raises:
        UserError: The level is no probability below one half, or seed_noise is negative.
    """
    require_noise(level, seed_noise)
    change = got.mean - expected.mean
    of_trained = [sample.mean for sample in (expected, got) if sample.trained]
    prior = expected_spread(*of_trained) if seed_noise is None else seed_noise
    # The spread of what was not trained, such as over a language model's draws of tokens, says nothing about trainings.
    then, now = (sample.seeds if sample.trained else [sample.mean] for sample in (expected, got))
    seeds, freedom = seed_error(then, now, prior)
    parts = [(1 / len(then), expected.trained), (1 / len(now), got.trained)]
    seeds *= math.sqrt(sum(part for part, trained in parts if trained) / sum(part for part, _ in parts))
    instances = _paired_error(got.instances - expected.instances, counts)
    if math.isinf(instances):  # one instance tells nothing of others
        return Change(change if higher_is_better else -change, instances, seeds, 1, level)
    exponent = math.frexp(max(seeds, instances))[1]  # fourth powers of a very large score would overflow
    one, other = math.ldexp(seeds, -exponent), math.ldexp(instances, -exponent)
    total = one**2 + other**2
    if total > 0.0:  # of a sum of two variances, by Satterthwaite
        freedom = max(1, int(total**2 / (one**4 / freedom + other**4 / (np.count_nonzero(counts) - 1))))
    return Change(change if higher_is_better else -change, instances, seeds, freedom, level)


def worst_seed(
    expected: Sample,
    got: Sequence[float],
    counts: NDArray[np.integer[Any]],
    *,
    higher_is_better: bool,
    level: float = LEVEL,
    seed_noise: float | None = None,
) -> Change:
    """Compares the worst of some seeds with the earlier ones. Its own score does not count as noise.

    Args:
        expected: The models trained then.
        got: The score of each seed now.
        counts: (N,), the number of positions of each instance.
        higher_is_better: Whether the score is better when it is higher.
        level: The probability with which chance alone may call any of the seeds worse.
        seed_noise: As in `compare`.

    Raises:
        UserError: As in `compare`.
    """
    require_noise(level, seed_noise)
    mean = expected.mean
    prior = expected_spread(mean) if seed_noise is None else seed_noise
    seeds, freedom = seed_error(expected.seeds, [mean], prior)
    change = min(x - mean if higher_is_better else mean - x for x in got)
    # A score near its best, such as an NLL near 0, is that of a few instances: there seeds differ by more than a share of it.
    return Change(change, _paired_error(expected.instances, counts), seeds, freedom, level / len(got))


def require_noise(level: float = LEVEL, seed_noise: float | None = None) -> None:
    """Checks what a caller of `compare` says of the noise.

    Raises:
        UserError: The level is no probability below one half, or seed_noise is negative.
    """
    if not 0.0 < level < 0.5:
        raise UserError(f"level must be above 0 and below 0.5, not {level}")
    if seed_noise is not None and not (seed_noise >= 0.0 and math.isfinite(seed_noise)):
        raise UserError(f"seed_noise must be 0 or more, not {seed_noise}")


@dataclass(frozen=True)
class Split:
    """How the same predictors scored on the N instances of one split.

    Attributes:
        sums: (N,), the sum over each instance's positions.
        counts: (N,), the number of positions of each instance.
        controls: (N, K), the same sums of K other predictors, which tell how hard each instance is. K may be 0.
    """

    sums: FloatArray
    counts: NDArray[np.integer[Any]]
    controls: FloatArray


def expected_elsewhere(then: Split, now: Split) -> tuple[float, float]:
    """What predictors that scored so on the one split are expected to score on another that shares no instance with it.

    A split is a draw, and some are easier than others. So the score is moved by what the controls score on both splits, times
    the slopes of a linear regression (the control variates of Glasserman 2003, "Monte Carlo Methods in Financial Engineering",
    section 4.1). The slopes are those of `now`: whoever claims `then` has no hand in them.

    Returns:
        The expected score, and the standard error of its difference from the score on `now`.
    """
    near, own = _off_mean(now.controls, now.counts), _off_mean(now.sums, now.counts)
    near[:, np.abs(near).max(0, initial=0.0) < 1e-9 * now.counts.mean()] = 0.0  # what never varies tells nothing
    solve = np.linalg.pinv(near, rcond=1e-9)
    slopes = solve @ own
    move = now.controls.sum(0) / now.counts.sum() - then.controls.sum(0) / then.counts.sum()
    errors = [_paired_error(one.sums - one.controls @ slopes, one.counts) for one in (then, now)]
    errors = [error if math.isfinite(error) else 0.0 for error in errors]  # of one instance the scores must agree
    of_slopes = np.linalg.norm((move @ solve) * (own - near @ slopes))
    return float(then.sums.sum() / then.counts.sum() + move @ slopes), math.hypot(*errors, of_slopes)


def compare_splits(
    expected: tuple[float, float], got: float, instances: int, *, higher_is_better: bool, level: float
) -> Change:
    """Compares a score on a split with the one that is expected there.

    Args:
        expected: The expected score and the standard error of the difference, as `expected_elsewhere` gives them.
        got: The score.
        instances: How many the expectation rests on.
        higher_is_better: Whether the score is better when it is higher.
        level: The probability with which chance alone may be called a change, on one side.
    """
    change = got - expected[0]
    return Change(change if higher_is_better else -change, expected[1], 0.0, max(1, instances - 1), level)


def expected_spread(*scores: float) -> float:
    """The spread over seeds that is expected beforehand: `SEED_NOISE` times the mean size of the scores, or 0 without any.

    All scores count alike, so that a comparison has the same p whichever of them is named first.
    """
    return SEED_NOISE * float(np.mean(np.abs(scores))) if scores else 0.0


def seed_error(expected: Sequence[float], got: Sequence[float], prior: float) -> tuple[float, int]:
    """Estimates the standard error of the difference of two means over seeds.

    Args:
        expected: The score of each seed then.
        got: The score of each seed now.
        prior: The spread over seeds that is expected beforehand, in the score's unit.

    Returns:
        The standard error and its degrees of freedom.
    """
    freedom = len(expected) + len(got) - 2
    squares = sum((x - statistics.fmean(part)) ** 2 for part in (expected, got) for x in part)
    variance = (SEED_NOISE_WEIGHT * prior**2 + squares) / (SEED_NOISE_WEIGHT + freedom)
    return math.sqrt(variance * (1 / len(expected) + 1 / len(got))), SEED_NOISE_WEIGHT + freedom


def student_quantile(level: float, freedom: int) -> float:
    """The value that Student's t with `freedom` degrees of freedom exceeds with probability `level`."""
    return float(-stdtrit(freedom, level))


def _paired_error(difference: FloatArray, counts: NDArray[np.integer[Any]]) -> float:
    """The standard error over instances of the ratio sum(difference) / sum(counts). Infinity where fewer than two count."""
    some = counts > 0
    difference, counts, n = difference[some], counts[some], int(some.sum())
    if n < 2:
        return math.inf
    return float(np.sqrt((_off_mean(difference, counts) ** 2).sum() / (n * (n - 1))) / counts.mean())


def _off_mean(sums: FloatArray, counts: NDArray[np.integer[Any]]) -> FloatArray:
    """Sums (N,) or (N, K) less what each instance's positions would have at the mean score."""
    off: FloatArray = sums - np.multiply.outer(counts, sums.sum(0) / counts.sum())
    return off
