"""How often the tests behind verdicts are wrong, and what they find: simulated, and written into docs/verdicts.md.

A simulated board has 27 entries that are equal. Each entry has seeds of its own, and each seed answers 500 instances of 20
positions by chance. The board's prior is fitted to it, as to a real one.

    python -m tests.benchmarks.verdicts
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from regbench.leaderboard.entry import Entry
from regbench.leaderboard.spread import fit_prior, kept_spread
from regbench.leaderboard.store import stored_in
from regbench.metrics.metric import METRICS
from regbench.metrics.significance import (
    SIGNIFICANCE,
    Prior,
    Sample,
    Split,
    ahead,
    compare,
    compare_splits,
    expected_elsewhere,
    worst_seed,
)
from regbench.tracks import load_track
from regbench.utils.arrays import FloatArray
from tests.helpers.documents import ROOT

ENTRIES, INSTANCES, POSITIONS = 27, 500, 20
COUNTS = np.full(INSTANCES, POSITIONS)
METRIC = METRICS["token_accuracy"]
CHANCE, SOLVED, MEAN = 0.25, 0.99, 0.8
PAGE = ROOT / "docs" / "verdicts.md"
BOARD = PAGE.parent.parent / "leaderboard"

Draw = Callable[[np.random.Generator, tuple[int, int]], FloatArray]
"""Draws what each seed of each entry can do: the probability of a right answer, (E, K)."""


def normal(spread: float) -> Draw:
    """Seeds that spread normally."""
    return lambda rng, shape: np.clip(rng.normal(MEAN, spread, shape), 0.001, 0.999)


def two_modes(share: float) -> Draw:
    """Seeds that learn, or do not. Those that do differ a little."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        level = np.where(rng.random(shape) < share, SOLVED, CHANCE)
        return np.asarray(np.clip(level + rng.normal(0, 0.004, shape), 0.001, 0.9995))

    return draw


def unlike(freedom: float) -> Draw:
    """Entries whose seeds spread unlike, as on the real boards: most by 0.005, some by far more."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        spread = 0.005 * np.sqrt(freedom / rng.chisquare(freedom, (shape[0], 1)))
        return np.clip(rng.normal(MEAN, np.minimum(spread, 0.1), shape), 0.001, 0.999)

    return draw


SPREADS: dict[str, Draw] = {
    **{f"{spread:g}": normal(spread) for spread in (0.0, 0.004, 0.0068, 0.0136, 0.03, 0.1)},
    "unlike, most near 0.005": unlike(1.0),
    **{f"two modes, {share:g} learn": two_modes(share) for share in (0.33, 0.5, 0.67, 0.85)},
}


def boards(draw: Draw, seeds: int, number: int) -> Iterator[tuple[list[Sample], list[Sample], Prior]]:
    """Simulated boards of equal entries: their samples, those of a second training, and the prior that is fitted to the first."""
    rng = np.random.default_rng(seeds)
    for _ in range(number):
        ability = draw(rng, (ENTRIES, 2 * seeds))[..., None]
        each = np.clip(ability + rng.normal(0, 0.4, INSTANCES) * ability * (1 - ability), 0.0, 1.0)
        sums = rng.binomial(POSITIONS, each).astype(np.float64)
        first, second = (
            [Sample.of((own.sum(1) / COUNTS.sum()).tolist(), own, COUNTS) for own in part]
            for part in (sums[:, :seeds], sums[:, seeds:])
        )
        yield first, second, fit_prior([one.seeds for one in first], METRIC, INSTANCES, (1.0 - CHANCE) / 3)


@dataclass(frozen=True)
class Rates:
    """What comes of simulated boards at a level of 0.05.

    Attributes:
        pair: How often two equal entries are called different.
        found: The difference that is found in 80 % of the pairs.
        first: The share of equal entries whose range of ranks excludes rank 1.
        board: The share of boards on which any range is wrong.
        again: How often a second training of an entry is called different.
        fixture: How often a test of score regression fails, by the mean or by the worst of its seeds.
    """

    pair: float
    found: float
    first: float
    board: float
    again: float
    fixture: float


def rates(draw: Draw, seeds: int, number: int) -> Rates:
    """Simulates boards."""
    pair, least, first, again, fixture = [], [], [], [], []
    options = {"higher_is_better": True, "level": SIGNIFICANCE / 2}
    for samples, second, prior in boards(draw, seeds, number):
        first.append(ahead(samples, COUNTS, prior, higher_is_better=True).any(0))
        for one, other in itertools.combinations(samples, 2):
            change = compare(one, other, COUNTS, prior, **options)
            pair.append(change.worse or change.better)
            least.append(change.allowed - change.change)
        for one, other in zip(samples, second, strict=True):
            same = compare(one, other, COUNTS, prior, **options, same=True)
            again.append(same.worse or same.better)
            # A record has the sums averaged over seeds.
            then, now = (Sample(each.seeds, each.instances) for each in (one, other))
            mean = compare(then, now, COUNTS, prior, **options, same=True)
            fixture.append(mean.worse or worst_seed(then, now.seeds, COUNTS, prior, **options).worse)
    wrong = np.array(first)
    found = (pair, wrong, wrong.any(1), again, fixture)
    of_pairs, *means = (float(np.mean(one)) for one in found)
    return Rates(of_pairs, float(np.quantile(least, 0.8)), *means)


def challenge_rate(number: int) -> float:
    """How often a challenge at a level of 0.05 finds weights worse on fresh instances, which an n-gram model finds as hard."""
    rng, worse = np.random.default_rng(0), 0

    def split() -> Split:
        ease = rng.normal(0.0, 0.1, INSTANCES)
        own, control = (rng.binomial(POSITIONS, np.clip(mean + ease, 0, 1)) for mean in (MEAN, 0.5))
        return Split(own.astype(np.float64), COUNTS, control.astype(np.float64)[:, None])

    for _ in range(number):
        then, now = split(), split()
        got = float(now.sums.sum() / COUNTS.sum())
        options = {"higher_is_better": True, "level": SIGNIFICANCE}
        worse += compare_splits(expected_elsewhere(then, now), got, INSTANCES, **options).worse
    return worse / number


def resampled(entries: list[Entry], prior: Prior, seeds: int, number: int) -> float:
    """How often two draws from an entry's own seeds are called different, on a board's entries."""
    rng, different = np.random.default_rng(0), []
    for entry in entries:
        metric = load_track(entry.track).metrics[entry.metrics[0]]
        scores = np.array([seed.scores[metric.name].value for seed in entry.result.seeds])
        sums = np.array([one[metric.name] for one in entry.instances.sums], np.float64)
        counts = entry.instances.counts_of(metric.name)
        for _ in range(number):
            one, other = (
                Sample.of(scores[drawn].tolist(), sums[drawn], counts)
                for drawn in rng.integers(len(scores), size=(2, seeds))
            )
            change = compare(
                one, other, counts, prior, higher_is_better=metric.higher_is_better, level=SIGNIFICANCE / 2
            )
            different.append(change.worse or change.better)
    return float(np.mean(different))


def simulated(number: int = 100) -> str:
    """The table of simulated boards."""
    rows = []
    for name, draw in SPREADS.items():
        three, five = (rates(draw, seeds, number) for seeds in (3, 5))
        cells = [
            f"{one:.3f}, {other:.3f}" if max(one, other) < 1.0 - CHANCE else "none"
            for one, other in zip(*(vars(found).values() for found in (three, five)), strict=True)
        ]
        rows.append([name, *cells])
        print(" | ".join(rows[-1]), flush=True)
    heads = ["spread over seeds", "pair", "found in 80 %", "rank 1 excluded", "a range wrong", "reproduced", "fixture"]
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def of_boards(number: int = 30) -> str:
    """The table of the real boards: what is expected of their seeds, and their own seeds drawn again."""
    known, rows = kept_spread(BOARD), []
    for folder in sorted((BOARD / "entries").iterdir()):
        entries = [stored.entry for stored in stored_in(folder)]
        main = load_track(folder.name).metrics[entries[0].metrics[0]]
        prior = known[entries[0].result.track.digest][main.name]
        values = [[seed.scores[main.name].value for seed in entry.result.seeds] for entry in entries]
        middle = float(np.median([np.mean(one) for one in values]))
        n = int(np.count_nonzero(entries[0].instances.counts_of(main.name)))
        modes = sum(prior.gap_in(one) is not None for one in values)
        rows.append(
            [
                folder.name,
                f"{prior.at(middle, n):.2g} at {middle:.3f}",
                f"{prior.freedom:.2g}",
                f"{modes} of {len(entries)}",
                ", ".join(f"{resampled(entries, prior, seeds, number):.3f}" for seeds in (3, 5)),
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    heads = ["board", "spread expected", "degrees of freedom", "entries of two modes", "pair"]
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def main() -> None:
    """Writes both tables into the page, in the place of those that are there."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in (("simulated", simulated()), ("boards", of_boards())):
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}{begin}\n{made}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    PAGE.write_text(text, encoding="utf-8")
    print(f"a challenge: {challenge_rate(4000):.3f}")


if __name__ == "__main__":
    main()
