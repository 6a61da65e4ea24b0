"""Whether a change of score counts: the arithmetic. tests/benchmarks/verdicts.py simulates how often the test is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from regbench.metrics.metric import METRICS
from regbench.metrics.significance import (
    Change,
    Prior,
    Sample,
    Split,
    ahead,
    compare,
    compare_splits,
    default_prior,
    expected_elsewhere,
    require_level,
    seed_error,
    student_quantile,
    worst_seed,
)
from regbench.utils.errors import UserError

PRIOR = Prior(logit=True, spread=0.05, freedom=8.0, gap=0.25)
NONE = Prior(logit=True, spread=0.0, freedom=8.0)
"""No noise of seeds is expected."""


@pytest.mark.parametrize(
    ("level", "freedom", "quantile"),
    [
        (0.05, 1, 6.314),
        (0.05, 8, 1.8595),
        (0.025, 13, 2.160),
        (0.001, 1, 318.31),
        (0.001, 8, 4.501),
        (0.001, 120, 3.160),
    ],
)
def test_the_quantile_is_students(level: float, freedom: int, quantile: float) -> None:
    """Values of the tables in textbooks."""
    assert student_quantile(level, freedom) == pytest.approx(quantile, rel=2e-4)


def test_the_scale_is_that_of_the_score() -> None:
    """Of an accuracy the logit, which has a floor where all is solved; of an error the logarithm."""
    assert PRIOR.at(0.8, 10**9) == pytest.approx(0.05 * 0.8 * 0.2)
    assert PRIOR.at(1.0, 499) == pytest.approx(0.05 * 0.001 * 0.999)
    assert PRIOR.at(0.0, 499) == pytest.approx(PRIOR.at(1.0, 499))
    assert PRIOR.model_copy(update={"logit": False}).at(3.0, 499) == pytest.approx(0.15)
    assert [default_prior(METRICS[name]).logit for name in ("token_accuracy", "tvd", "nll", "mse")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_seed_error_pools_what_was_found_with_what_was_expected() -> None:
    then, now = [0.80, 0.82], [0.70, 0.72, 0.74]
    error, freedom = seed_error([then, now], PRIOR, 500, same=True)
    variance = (8 * PRIOR.at(0.765, 500) ** 2 + 2 * 0.01**2 + 2 * 0.02**2) / (8 + 3)
    assert (error, freedom) == (pytest.approx((variance * (1 / 2 + 1 / 3)) ** 0.5), 11)
    one, other = (8 * PRIOR.at(0.81, 500) ** 2 + 2 * 0.01**2) / 9, (8 * PRIOR.at(0.72, 500) ** 2 + 2 * 0.02**2) / 10
    error, freedom = seed_error([then, now], PRIOR, 500, same=False)
    assert (error, freedom) == (pytest.approx((one / 2 + other / 3) ** 0.5), 9), "of the two the smaller"
    assert seed_error([[0.8], [0.8]], PRIOR, 500, same=True) == (pytest.approx(PRIOR.at(0.8, 500) * 2**0.5), 8)


def test_of_two_modes_what_was_expected_takes_nothing_away() -> None:
    """Whether seeds learn is no normal spread."""
    seeds = [0.99, 0.98, 0.3]
    assert PRIOR.gap_in(seeds) == pytest.approx(0.64)
    assert PRIOR.gap_in([0.9, 0.7, 0.5]) is PRIOR.gap_in([0.9]) is NONE.gap_in(seeds) is None
    error, freedom = seed_error([seeds], PRIOR, 500, same=True)
    assert (error, freedom) == (pytest.approx(np.std(seeds, ddof=1) / 3**0.5), 2)
    assert seed_error([seeds, [0.99]], PRIOR, 500, same=True)[1] == 2


def test_what_is_the_seeds_own_counts_once() -> None:
    """Seeds that answer by chance: their spread is all there is, and the error over instances adds nothing to it."""
    rng, counts = np.random.default_rng(0), np.full(500, 20)

    def sample() -> Sample:
        sums = rng.binomial(20, 0.8, (3, 500)).astype(float)
        return Sample.of((sums.sum(1) / counts.sum()).tolist(), sums, counts)

    one, other = sample(), sample()
    whole = compare(
        Sample(one.seeds, one.instances), Sample(other.seeds, other.instances), counts, PRIOR, higher_is_better=True
    )
    assert one.own + other.own == pytest.approx(whole.instances**2, rel=0.2)
    assert compare(one, other, counts, PRIOR, higher_is_better=True).instances < 0.5 * whole.instances
    assert Sample.of([0.8], np.ones((1, 500)), counts).own == 0.0, "one seed does not tell"


def test_the_spread_of_what_was_not_trained_says_nothing_about_seeds() -> None:
    """As over a language model's draws of tokens: the trained side's noise is the same, however far they are apart."""
    run, counts = Sample([0.560, 0.561, 0.562], np.full(50, 0.561)), np.ones(50, int)
    near, far = (
        compare(Sample(seeds, np.full(50, 0.5), trained=False), run, counts, PRIOR, higher_is_better=True)
        for seeds in ([0.499, 0.5, 0.501], [0.4, 0.5, 0.6])
    )
    assert near.seeds == far.seeds > 0.0


def test_the_instance_error_is_that_of_the_paired_differences() -> None:
    """With equal lengths it is the textbook's paired standard error; what both models find hard adds nothing."""
    rng = np.random.default_rng(0)
    hard, difference, counts = rng.normal(size=50), rng.normal(size=50), np.full(50, 7)
    then, now = 7 * hard, 7 * (hard + difference)
    change = compare(Sample([0.5], then), Sample([0.6], now), counts, PRIOR, higher_is_better=True)
    assert change.instances == pytest.approx(stats.sem(difference))


def test_the_instance_error_is_scorings_own() -> None:
    """Of lengths that differ: as the standard error of a score, here of the differences against nothing."""
    from regbench.results import ScoreRecord

    rng = np.random.default_rng(1)
    counts = rng.integers(3, 30, size=40)
    sums = rng.normal(size=40) * counts
    change = compare(Sample([0.5], np.zeros(40)), Sample([0.6], sums), counts, PRIOR, higher_is_better=True)
    assert change.instances == pytest.approx(ScoreRecord.of(sums, counts).stderr)


@pytest.mark.parametrize("trained", [(True, True), (True, False), (False, True), (False, False)])
def test_either_way_round_p_is_the_same(trained: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(2)
    counts = rng.integers(3, 30, size=40)
    one, other = (
        Sample([score - 0.01, score, score + 0.02], counts * rng.normal(score, 0.1, size=40), trained=of)
        for score, of in zip((0.3, 0.9), trained, strict=True)
    )
    there, back = (compare(*pair, counts, PRIOR, higher_is_better=True) for pair in ((one, other), (other, one)))
    assert there.change == -back.change
    assert there.noise == pytest.approx(back.noise)
    assert there.p == pytest.approx(back.p)


def test_of_one_instance_nothing_is_significant() -> None:
    counts = np.array([0, 7, 0])
    change = compare(Sample([0.1], 0.1 * counts), Sample([0.9], 0.9 * counts), counts, PRIOR, higher_is_better=True)
    assert (change.p, change.better, change.worse, change.noise) == (1.0, False, False, np.inf)
    assert not worst_seed(Sample([0.9, 0.9], 0.9 * counts), [0.1], counts, PRIOR, higher_is_better=True).worse
    split = Split(0.9 * counts, counts, np.zeros((3, 0)))
    assert expected_elsewhere(split, split) == (pytest.approx(0.9), 0.0), "elsewhere the scores must agree"


def test_the_same_run_has_not_changed() -> None:
    sample = Sample([0.8], np.array([3.0, 4.0, 5.0]))
    change = compare(sample, sample, np.array([4, 5, 6]), PRIOR, higher_is_better=True)
    assert (change.change, change.instances) == (0.0, 0.0)
    assert not change.worse
    assert not change.better
    certain = compare(sample, sample, np.array([4, 5, 6]), NONE, higher_is_better=True)
    assert certain.noise == 0.0
    assert not certain.worse
    assert (certain.p, Change(0.1, 0.0, 0.0, 9, 9, 0.001).p) == (1.0, 0.0)


def test_of_an_error_less_is_better() -> None:
    then, now = Sample([0.3], np.full(9, 0.3)), Sample([0.5], np.full(9, 0.5))
    ones = np.ones(9, dtype=int)
    assert compare(then, now, ones, PRIOR, higher_is_better=True).better
    assert compare(then, now, ones, PRIOR, higher_is_better=False).worse
    assert compare(then, now, ones, PRIOR, higher_is_better=False).change == pytest.approx(-0.2)


def test_degrees_of_freedom_are_those_of_the_larger_part() -> None:
    ones = np.ones(100, dtype=int)
    rng = np.random.default_rng(0)
    shift = rng.normal(size=100)
    of_seeds = compare(Sample([0.5], shift), Sample([0.5], shift), ones, PRIOR, higher_is_better=True)
    assert of_seeds.freedom == pytest.approx(8)
    of_instances = compare(Sample([0.5], shift), Sample([0.5], -shift), ones, NONE, higher_is_better=True)
    assert of_instances.freedom == pytest.approx(99)


@pytest.mark.parametrize("unit", [1e-90, 1e90])
def test_the_unit_of_a_score_does_not_matter(unit: float) -> None:
    """A squared error has no upper limit: one of 1e80 in a file must not end in an overflow."""
    plain, scaled = (
        compare(
            Sample([0.5 * u, 0.6 * u], u * np.array([1.0, 2.0, 4.0])),
            Sample([0.7 * u, 0.9 * u], u * np.array([3.0, 2.0, 5.0])),
            np.array([2, 4, 6]),
            PRIOR.model_copy(update={"logit": False, "gap": None}),
            higher_is_better=False,
        )
        for u in (1.0, unit)
    )
    assert (scaled.freedom, scaled.p) == pytest.approx((plain.freedom, plain.p))


def test_on_two_splits_the_errors_of_both_count() -> None:
    """Without controls nothing is paired, and the score then is what is expected now."""
    rng = np.random.default_rng(0)
    then, now = (Split(7 * (0.5 + 0.1 * rng.normal(size=n)), np.full(n, 7), np.empty((n, 0))) for n in (50, 80))
    value, error = expected_elsewhere(then, now)
    assert value == pytest.approx(then.sums.sum() / 350)
    assert error == pytest.approx(np.hypot(stats.sem(then.sums / 7), stats.sem(now.sums / 7)))
    higher, lower = (
        compare_splits((0.5, 0.02), 0.4, 50, higher_is_better=higher, level=0.001) for higher in (True, False)
    )
    assert (higher.change, lower.change) == (pytest.approx(-0.1), pytest.approx(0.1))
    assert (higher.noise, higher.seeds, higher.freedom) == (0.02, 0.0, 49)


def test_controls_tell_how_hard_a_split_is() -> None:
    """The score is twice the first control and less the second. The third never varies, the last is the first once more.

    One split is far easier.
    """
    rng = np.random.default_rng(0)

    def split(instances: int, ease: float, noise: float) -> Split:
        counts = rng.integers(5, 10, instances)
        first, second = ease + rng.normal(size=instances), rng.normal(size=instances)
        own = 2 * first - second + noise * rng.normal(size=instances)
        again = first + 1e-13 * rng.normal(size=instances)
        controls = np.stack([first, second, np.full(instances, 0.3), again], 1)
        return Split(own * counts, counts, controls * counts[:, None])

    easy, hard = split(300, 1.0, 0.0), split(200, 0.0, 0.0)
    value, error = expected_elsewhere(easy, hard)
    assert value == pytest.approx(hard.sums.sum() / hard.counts.sum(), abs=1e-9)
    assert error < 1e-9
    off = []
    for _ in range(300):
        easy, hard = split(300, 1.0, 0.5), split(200, 0.0, 0.5)
        value, error = expected_elsewhere(easy, hard)
        off.append((hard.sums.sum() / hard.counts.sum() - value) / error)
    assert abs(np.mean(off)) < 4 / np.sqrt(300)
    assert np.std(off) == pytest.approx(1.0, abs=0.15)


def test_the_slopes_are_those_of_the_fresh_split() -> None:
    """The score was five times the control, as a claim can say, and is twice the control now."""
    rng = np.random.default_rng(0)
    then, now = rng.normal(size=100), rng.normal(size=80)
    value, _ = expected_elsewhere(
        Split(5 * then, np.ones(100), then[:, None]), Split(2 * now, np.ones(80), now[:, None])
    )
    assert value == pytest.approx(5 * then.mean() + 2 * (now.mean() - then.mean()))


@pytest.mark.parametrize("level", [0.0, 0.5])
def test_a_wrong_level(level: float) -> None:
    with pytest.raises(UserError, match="level must be above 0 and below 0.5"):
        require_level(level)


def test_few_seeds_beside_many_instances_keep_their_heavy_tails() -> None:
    """Where instances are most of the noise, far out a change is still as likely as the few seeds alone make it."""
    change = Change(0.0, 0.02, 0.01, 60.0, 3.0, 0.0005)
    assert change.allowed == pytest.approx(student_quantile(0.0005, 3.0) * 0.01)
    assert Change(change.allowed, 0.02, 0.01, 60.0, 3.0, 0.0005).p == pytest.approx(0.001)
    near = Change(0.04, 0.02, 0.01, 60.0, 3.0, 0.025)
    assert near.allowed == pytest.approx(student_quantile(0.025, 60.0) * near.noise)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ([0.9] * 3, [0.9, 0.9, 0.1]),
        ([0.9] * 3, [0.9, 0.1, 0.1]),
        ([0.9] * 2, [0.9, 0.1]),
        ([0.9] * 5, [0.9, 0.9, 0.9, 0.1, 0.1]),
        ([0.9], [0.1]),
        ([0.91, 0.9, 0.89], [0.9, 0.9, 0.82]),
    ],
)
def test_a_seed_that_collapses_is_found(then: list[float], now: list[float]) -> None:
    assert alone(then, now).worse
    assert not alone(then, now, higher_is_better=False).worse
    assert alone([1 - x for x in then], [1 - x for x in now], higher_is_better=False).worse


def alone(
    then: Sequence[float], now: Sequence[float], noise: float = 0.001, prior: Prior = PRIOR, **options: Any
) -> Change:
    """`worst_seed` where each of 100 instances has 10 positions, and their mean scores spread by ten times `noise`."""
    each = np.random.default_rng(5).normal(size=100)
    each = 10 * noise * (each - each.mean()) / each.std(ddof=1)
    sample = Sample(list(then), 10 * (np.mean(then) + each))
    return worst_seed(sample, now, np.full(100, 10), prior, **{"higher_is_better": True, **options})


def test_a_seed_alone_has_the_noise_of_the_earlier_ones() -> None:
    change = alone([0.8, 0.7, 0.6], [0.65, 0.55], 0.03, level=0.01)
    variance = (8 * PRIOR.at(0.7, 100) ** 2 + 0.02) / (8 + 2)
    assert change.change == pytest.approx(-0.15)
    assert change.seeds == pytest.approx((variance * 4 / 3) ** 0.5)
    assert change.instances == pytest.approx(0.03)
    assert (change.freedom, change.level) == (10, 0.005)
    assert not alone([0.8, 0.7, 0.6], [0.5]).worse, "seeds that spread allow more"


def test_where_seeds_often_fail_one_more_that_does_is_no_news() -> None:
    """That three have learned says little of the next one on a board of coin tosses."""
    coins = PRIOR.model_copy(update={"learning": 2.0})
    assert alone([0.9] * 3, [0.1]).worse
    assert not alone([0.9] * 3, [0.1], prior=coins).worse
    assert alone([0.9] * 3, [0.7], prior=coins).worse, "on the same side of the gap it is"


def entry(*seeds: float) -> Sample:
    """Of 100 instances with one position each, all as good as the mean."""
    return Sample(list(seeds), np.full(100, np.mean(seeds)))


def test_all_pairs_of_a_board_are_tested_together() -> None:
    """A difference that counts by itself need not among thirty entries."""
    ones = np.ones(100, int)
    near, far = entry(0.792, 0.802, 0.782), entry(0.768, 0.778, 0.758)
    change = compare(near, far, ones, PRIOR, higher_is_better=True, level=0.025)
    assert change.worse
    assert ahead([near, far], ones, PRIOR, higher_is_better=True).tolist() == [[False, True], [False, False]]
    assert ahead([near, far], ones, PRIOR, higher_is_better=False).tolist() == [[False, False], [True, False]]
    board = [near, far, *(entry(0.78 + x, 0.79 + x, 0.77 + x) for x in np.linspace(-0.01, 0.01, 28))]
    assert not ahead(board, ones, PRIOR, higher_is_better=True).any()
    best = entry(0.95, 0.95, 0.96)
    assert ahead([*board, best], ones, PRIOR, higher_is_better=True).sum(1).tolist() == [0] * 30 + [30]
    for few in ([], [near]):
        assert not ahead(few, ones, PRIOR, higher_is_better=True).any()
    solved = entry(1.0, 1.0, 1.0)
    assert not ahead([solved, solved], ones, NONE, higher_is_better=True).any()


@pytest.mark.parametrize(("learning", "counts"), [(0.05, True), (2.0, False)])
def test_entries_on_either_side_of_a_gap_must_learn_more_or_less_often(learning: float, counts: bool) -> None:
    """Three of three against none of three: on a board of coin tosses both are one and the same."""
    prior, ones = PRIOR.model_copy(update={"learning": learning}), np.ones(100, int)
    learned, not_learned, two_of_three = entry(0.99, 0.98, 0.99), entry(0.25, 0.26, 0.25), entry(0.99, 0.98, 0.25)
    found = ahead([learned, not_learned, two_of_three], ones, prior, higher_is_better=True)
    assert found[0, 1] == counts
    assert found.sum() == counts, "two of three are level with both"
    errors = [Sample([1 - x for x in one.seeds], 1 - one.instances) for one in (learned, not_learned)]
    assert ahead(errors, ones, prior, higher_is_better=False)[0, 1] == counts
