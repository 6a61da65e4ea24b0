"""Whether two scores differ by more than chance: of models trained then and models trained now, on the same test split.

Two things vary even where nothing was changed. Both are in the standard error of the change, as the root of the sum of squares.

*Seeds.* Two trainings that differ in a seed, or in the rounding of one sum, end at different scores. A handful of seeds tells
little about their spread. So the variance found is averaged with one that is expected beforehand. Each counts as much as it has
degrees of freedom: the moderated t of Smyth 2004, "Linear models and empirical Bayes methods", section 3. What is expected, and
how much it counts, is fitted to the seeds of all entries of a board (`regbench.leaderboard.spread`). The scale is one on which
spreads are alike: the logit of an accuracy, the logarithm of an error.

Each side has a spread of its own, as two architectures need not spread alike. The test takes the smaller degrees of freedom of
the two: the sum of two such estimates has heavier tails than one with all of them. Of two trainings of one configuration
(`same`) the spread is one, and all seeds estimate it.

*Two modes.* Where some seeds learn and some do not, neighbours are further apart than `Prior.gap`. No normal spread describes
this. So the variance of such seeds is at least the one that was found, and what was expected adds no degrees of freedom.

*Instances.* Every instance is answered then and now. The error is that of the mean of the paired differences. The part of it that
is the seeds' own is left out where it is known (`Sample.own`): the spread of the scores has it already.

*A seed alone.* Where a seed collapses, the spread over seeds grows with it, and the mean would excuse its own fall. So
`worst_seed` holds each new seed against the earlier ones alone: against their mean, and with the noise of their seeds and
instances.

A change counts when it is more standard errors away from 0 than Student's t reaches with probability `level`, on one side.
Seeds are not paired: one changed bit is enough to make two trainings with the same seed as different as any others.
`docs/verdicts.md` has the simulated rates of false alarms, and the differences that are found.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, stdtr, stdtrit

from regbench.metrics.metric import Metric
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.settings import Strict

SIGNIFICANCE = 0.05
"""Two-sided. A difference with a larger p-value counts as chance."""

SURE = 0.01
"""Two-sided. With a larger probability chance explains that one entry learns more often than another. With this one ranges of
ranks hold on simulated boards of coin tosses, too."""

_DRAWS = 4000
"""Boards of equal entries that are drawn."""

LEVEL = 0.001
"""How often a test may fail although nothing is wrong: once in a thousand."""


class Prior(Strict):
    """What is expected of the seeds of one score on one track, before any is seen."""

    logit: bool  # whether the scale is the logit of the score. Else it is the logarithm
    spread: float  # the standard deviation over seeds, on this scale
    freedom: float  # how many degrees of freedom it counts as
    # two neighbouring seeds that are further apart, in the score's unit, have not learned the same. None: it is not
    # known
    gap: float | None = None
    # a. The probability that a seed learns is drawn from Beta(a, a). Near 0 nearly always all seeds learn, or none
    learning: float = 0.02

    def at(self, score: float, instances: int) -> float:
        """The spread at a score, in its unit. On the scale of the logit half an instance is right and half an instance is wrong.

        So the spread has a floor where all is solved.
        """
        if not self.logit:
            return self.spread * abs(score)
        score = (score * instances + 0.5) / (instances + 1)
        return self.spread * score * (1.0 - score)

    def gap_in(self, seeds: Sequence[float]) -> float | None:
        """The middle of the widest gap between neighbouring seeds. None where all seeds have learned the same."""
        wide, low = max(((b - a, a) for a, b in itertools.pairwise(sorted(seeds))), default=(0.0, 0.0))
        return low + wide / 2 if self.gap is not None and wide > self.gap else None

    def learned(self, seeds: Sequence[float], sign: int) -> int | None:
        """How many seeds are on the better side of a gap; `sign` is that of the metric. None where all have learned the same."""
        cut = self.gap_in(seeds)
        return None if cut is None else sum(sign * (x - cut) > 0 for x in seeds)


def default_prior(metric: Metric) -> Prior:
    """What is expected on a track whose board has few entries or none: fitted to the main scores of all boards together."""
    if metric.limits == (0.0, 1.0):
        return Prior(logit=True, spread=0.037, freedom=0.67, gap=1 / 3)
    return Prior(logit=False, spread=0.0019, freedom=0.78)


@dataclass(frozen=True)
class Sample:
    """The scores of some trained models."""

    seeds: Sequence[float]  # (K,), the score of each seed
    instances: NDArray[np.float64]  # (N,), the sum over each instance's positions, averaged over seeds
    trained: bool = True  # whether another seed would give another score. False of a baseline
    own: float = 0.0  # the part of the squared error over instances that is the seeds' own. 0 where it is not known
    # the standard error over instances, where `instances` is empty because they are not known one by one
    error: float | None = None

    @classmethod
    def of(
        cls, seeds: Sequence[float], sums: FloatArray, counts: NDArray[np.integer[Any]], trained: bool = True
    ) -> Self:
        """A sample with the part that is the seeds' own; `sums` (K, N) are those of each seed, `counts` (N,) the positions."""
        mean = sums.mean(0)
        errors = [_paired_error(one - mean, counts) for one in sums] if len(sums) > 1 and trained else []
        own = sum(error**2 for error in errors) / (len(sums) * max(1, len(sums) - 1))
        return cls(seeds, mean, trained, own if math.isfinite(own) else 0.0)

    @property
    def mean(self) -> float:
        """The mean score over seeds."""
        return statistics.fmean(self.seeds)

    def error_from(self, other: Sample, counts: NDArray[np.integer[Any]]) -> float:
        """The standard error over instances of the difference, paired where both are known instance by instance."""
        if self.error is None and other.error is None:
            return _paired_error(self.instances - other.instances, counts)
        errors = (_paired_error(s.instances, counts) if s.error is None else s.error for s in (self, other))
        return math.hypot(*errors)


@dataclass(frozen=True)
class Change:
    """The way from an expected score to the one that came out."""

    change: float  # the difference in the score's unit. Positive is better
    instances: float  # the part of its standard error that comes from instances
    seeds: float  # the part of its standard error that comes from seeds
    freedom: float  # degrees of freedom of the whole standard error
    of_seeds: float  # degrees of freedom of the part from seeds
    level: float  # the probability with which chance alone may be called a change, on one side

    @property
    def noise(self) -> float:
        """The standard error of the change."""
        return math.hypot(self.instances, self.seeds)

    @property
    def allowed(self) -> float:
        """The largest change that chance explains: the noise of both, or that of the few seeds alone, which has heavier tails."""
        alone = student_quantile(self.level, self.of_seeds) * self.seeds if self.seeds else 0.0
        return max(student_quantile(self.level, self.freedom) * self.noise, alone)

    @property
    def p(self) -> float:
        """The two-sided p-value: how often chance alone gives so large a change."""
        if self.noise == 0.0:
            return float(self.change == 0.0)
        alone = stdtr(self.of_seeds, -abs(self.change) / self.seeds) if self.seeds else 0.0
        return 2.0 * max(float(stdtr(self.freedom, -abs(self.change) / self.noise)), float(alone))

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
    prior: Prior,
    *,
    higher_is_better: bool,
    level: float = LEVEL,
    same: bool = False,
) -> Change:
    """Compares two scores that are means over the positions of the same instances: of models trained then, and now.

    `counts` (N,) are the numbers of positions of each instance. Those without any do not count. Of one instance nothing is
    significant. `level` is the probability with which chance alone may be called a change, on one side. With `same` both are
    trainings of one configuration, whose seeds spread alike.
    """
    change, n = got.mean - expected.mean, int(np.count_nonzero(counts))
    # The spread of what was not trained, such as over a language model's draws of tokens, says nothing about trainings.
    seeds, freedom = seed_error([one.seeds for one in (expected, got) if one.trained], prior, n, same=same)
    instances = got.error_from(expected, counts)
    if math.isinf(instances):  # one instance tells nothing of others
        return Change(change if higher_is_better else -change, instances, seeds, 1, 1, level)
    exponent = math.frexp(max(seeds, instances))[1]  # fourth powers of a very large score would overflow
    own = math.ldexp(expected.own, -2 * exponent) + math.ldexp(got.own, -2 * exponent)
    one, other = math.ldexp(seeds, -exponent), math.ldexp(instances, -exponent)
    other = math.sqrt(max(0.0, other**2 - own))
    total, both = one**2 + other**2, freedom
    if total > 0.0:  # of a sum of two variances, by Satterthwaite
        both = total**2 / (one**4 / freedom + other**4 / (n - 1))
    return Change(change if higher_is_better else -change, math.ldexp(other, exponent), seeds, both, freedom, level)


def worst_seed(
    expected: Sample,
    got: Sequence[float],
    counts: NDArray[np.integer[Any]],
    prior: Prior,
    *,
    higher_is_better: bool,
    level: float = LEVEL,
) -> Change:
    """Compares the worst of some seeds with the earlier ones. Its own score does not count as noise.

    `level` is the probability with which chance alone may call any of the seeds worse. The rest is as in `compare`.
    """
    mean = expected.mean
    variance, freedom = _variance([expected.seeds], prior, int(np.count_nonzero(counts)))
    seeds = math.sqrt(variance * (1 + 1 / len(expected.seeds)))
    worst = min(got) if higher_is_better else max(got)
    change = worst - mean if higher_is_better else mean - worst
    a, k = prior.learning, len(expected.seeds)
    if prior.gap_in([*expected.seeds, worst]) is not None and len(got) * a / (k + 2 * a) > SIGNIFICANCE:
        seeds = math.inf  # that all K seeds learned does not say that another one will
    # A score near its best, such as an NLL near 0, is that of a few instances: there seeds differ by more than a share of it.
    return Change(change, _paired_error(expected.instances, counts), seeds, freedom, freedom, level / len(got))


def ahead(
    samples: Sequence[Sample], counts: NDArray[np.integer[Any]], prior: Prior, *, higher_is_better: bool
) -> NDArray[np.bool_]:
    """Which of the E entries of a board are ahead of which: (E, E), whether i is ahead of j.

    All pairs are tested together. With a probability of at most `SIGNIFICANCE` any two that are equal are called different. So
    ranges of ranks that follow hold for all entries at once: they are the simultaneous confidence sets of Mogstad, Romano, Shaikh
    and Wilhelm 2024, "Inference for Ranks". Boards of equal entries are drawn, with the standard errors and degrees of freedom of
    this one. The largest change of each is noted, as a multiple of the allowed one. A pair that is above nearly all of these
    counts, and the rest is tested without it, until none is left that counts (Romano and Wolf 2005).

    Two entries on either side of a gap must also differ in how often a seed learns: with three seeds each, one in 32 pairs of
    coin tosses has 3 of 3 against 0 of 3. How likely that is on this board, its `Prior.learning` says.
    """
    found = np.zeros((len(samples), len(samples)), bool)
    pairs = np.array(list(itertools.combinations(range(len(samples)), 2)), int).reshape(-1, 2)
    changes = [compare(samples[i], samples[j], counts, prior, higher_is_better=higher_is_better) for i, j in pairs]
    n, rng, left = int(np.count_nonzero(counts)), np.random.default_rng(0), np.arange(len(pairs))
    errors, freedom = np.array([seed_error([one.seeds], prior, n, same=True) for one in samples]).reshape(-1, 2).T
    by_seeds = errors * rng.standard_t(freedom, (_DRAWS, len(samples)))
    drawn = np.diff(by_seeds[:, pairs])[..., 0]
    drawn += np.array([one.instances for one in changes]) * rng.normal(size=drawn.shape)
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing varies
        size, drawn = (np.abs(x) / [one.allowed for one in changes] for x in ([c.change for c in changes], drawn))
    while len(left):
        counted = size[left] > np.quantile(np.nan_to_num(drawn[:, left]).max(1), 1 - SIGNIFICANCE)
        for k in left[counted]:
            worse, better = pairs[k] if changes[k].change > 0 else pairs[k][::-1]
            found[better, worse] = 2 * _unsure(samples[better].seeds, samples[worse].seeds, prior) < SURE
        left = left[~counted] if counted.any() else left[:0]
    return found


def _unsure(better: Sequence[float], worse: Sequence[float], prior: Prior) -> float:
    """The probability that the entry with more seeds on the better side of a gap does not learn more often. 0 without a gap."""
    cut = prior.gap_in([*better, *worse])
    if cut is None:
        return 0.0
    above = [sum(x > cut for x in seeds) for seeds in (better, worse)]
    if statistics.fmean(better) < statistics.fmean(worse):  # of an error less is better
        above = [len(better) - above[0], len(worse) - above[1]]
    return _not_more_often(prior.learning, above[0], len(better), above[1], len(worse))


@lru_cache(maxsize=1024)
def _not_more_often(a: float, more: int, of: int, fewer: int, of_fewer: int) -> float:
    """P(p <= q): `more` of `of` seeds learned with probability p, and `fewer` of `of_fewer` with q, both from Beta(a, a)."""
    q = betaincinv(a + fewer, a + of_fewer - fewer, (np.arange(1000) + 0.5) / 1000)
    return float(betainc(a + more, a + of - more, q).mean())


def require_level(level: float) -> None:
    """Checks a caller's level."""
    if not 0.0 < level < 0.5:
        raise UserError(f"level must be above 0 and below 0.5, not {level}")


@dataclass(frozen=True)
class Split:
    """How the same predictors scored on the N instances of one split."""

    sums: FloatArray  # (N,), the sum over each instance's positions
    counts: NDArray[np.integer[Any]]  # (N,), the number of positions of each instance
    # (N, K), the same sums of K other predictors, which tell how hard each instance is. K may be 0
    controls: FloatArray


def expected_elsewhere(then: Split, now: Split) -> tuple[float, float]:
    """What predictors that scored so on the one split are expected to score on another that shares no instance with it.

    A split is a draw, and some are easier than others. So the score is moved by what the controls score on both splits, times
    the slopes of a linear regression (the control variates of Glasserman 2003, "Monte Carlo Methods in Financial Engineering",
    section 4.1). The slopes are those of `now`: whoever claims `then` has no hand in them.

    Gives the expected score, and the standard error of its difference from the score on `now`.
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

    `expected` and its number of `instances` are those of `expected_elsewhere`; `level` is as in `compare`.
    """
    change = got - expected[0]
    return Change(change if higher_is_better else -change, expected[1], 0.0, max(1, instances - 1), math.inf, level)


def seed_error(sides: Sequence[Sequence[float]], prior: Prior, instances: int, *, same: bool) -> tuple[float, float]:
    """Estimates the standard error of the difference of two means over seeds.

    `sides` are the scores of each seed, for each of the two that was trained. They are `same` if both are trainings of one
    configuration, whose seeds spread alike. Gives the standard error and its degrees of freedom.
    """
    found = [_variance(sides if same else [side], prior, instances) for side in sides]
    error = math.sqrt(sum(variance / len(side) for (variance, _), side in zip(found, sides, strict=True)))
    return error, min((freedom for _, freedom in found), default=math.inf)


def _variance(sides: Sequence[Sequence[float]], prior: Prior, instances: int) -> tuple[float, float]:
    """The variance over seeds that these have in common, and its degrees of freedom."""
    freedom = sum(len(seeds) - 1 for seeds in sides)
    squares = sum((x - statistics.fmean(seeds)) ** 2 for seeds in sides for x in seeds)
    expected = prior.at(statistics.fmean(statistics.fmean(seeds) for seeds in sides), instances) ** 2
    variance = (prior.freedom * expected + squares) / (prior.freedom + freedom)
    if any(prior.gap_in(seeds) is not None for seeds in sides):
        return max(variance, squares / freedom), min(len(seeds) - 1 for seeds in sides if len(seeds) > 1)
    return variance, prior.freedom + freedom


def student_quantile(level: float, freedom: float) -> float:
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
