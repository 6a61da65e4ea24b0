"""Reach: where a curve by size falls below 0.9, over seeds, and the tokens to learn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from regbench.metrics.reach import reach_words, reached, tokens_to_learn
from regbench.results import CheckpointRecord, Curve, Reach

SIZES = [4.0, 8.0, 16.0, 32.0]


def curve(values: list[float], stderr: float = 0.0) -> Curve:
    return Curve(position=SIZES, value=values, count=[10] * 4, stderr=[stderr] * 4, axis="pairs")


@pytest.mark.parametrize(
    ("values", "size", "bound", "said"),
    [
        ([1, 0.95, 0.9, 0.91], 32, ">=", ">= 32"),
        ([0.89, 1, 1, 1], 4, "<", "< 4"),
        ([1, 1, 0.8, 1], 8 * 2**0.5, "", "11"),  # half of the way, in the logarithm
        ([0.9, 0.7, 1, 1], 4, "", "4"),
        ([0.95, 0.85, 0, 0], 4 * 2**0.5, "", "5.7"),
    ],
)
def test_the_reach_of_a_curve(values: list[float], size: float, bound: str, said: str) -> None:
    found = Reach.of(SIZES, values)
    assert (found.size, found.bound, str(found)) == (pytest.approx(size, abs=1e-3), bound, said)


def test_reaches_are_ordered() -> None:
    below, exact, least = Reach(size=4, bound="<"), Reach(size=4), Reach(size=4, bound=">=")
    assert below.rank < exact.rank < least.rank < Reach(size=5).rank
    assert str(Reach(size=4096, bound=">=")) == ">= 4,096"


def test_the_reach_of_seeds_is_their_median_and_its_interval_holds_what_sampling_gives() -> None:
    certain = reached([curve([1, 1, 0.8, 0.2])] * 3)
    assert str(certain) == "11"
    seeds = [[1, 1, 0.8, 0.2], [1, 1, 1, 1], [0.2, 0.1, 0, 0]]
    three = reached([curve(values) for values in seeds])
    assert (str(three.reach), str(three.low), str(three.high)) == ("11", "< 4", ">= 32")
    # By hand: with an error of 0.02 the accuracy at 16 pairs is N(0.8, 0.02), so the reach is 8 * 2^(0.1 / (1 - it)).
    noisy = reached([curve([1, 1, 0.8, 0.2], 0.02)])
    it = np.quantile(np.random.default_rng(1).normal(0.8, 0.02, 100_000), [0.16, 0.84])
    low, high = 8 * 2 ** (0.1 / (1 - it))
    assert noisy.low.size == pytest.approx(low, rel=0.06)
    assert noisy.high.size == pytest.approx(high, rel=0.06)


def test_the_tokens_to_learn() -> None:
    """The loss falls from 3 to 1; nine tenths of the way are at 1.2."""
    losses = [(100, 3.0), (200, 2.0), (300, 1.21), (400, 1.19), (500, 1.0), (600, 1.5)]
    rows = [CheckpointRecord(step=1, tokens=t, loss={"cross_entropy": 1.0}, validation_loss=v) for t, v in losses]
    assert tokens_to_learn(rows) == 400


def test_reach_for_people_names_groups_in_the_place_of_their_mean() -> None:
    """In whatever order the scores stand."""

    def words(curves: dict[str, list[float]]) -> str:
        shown = {score: curve(values) for score, values in curves.items()}
        seed = SimpleNamespace(curves=shown, reach={score: Reach.of(SIZES, one.value) for score, one in shown.items()})
        return reach_words(SimpleNamespace(seeds=[seed]))  # type: ignore[arg-type]

    assert words({"area": [1, 1, 0.8, 0.2]}) == "11 pairs"
    groups = {"a4_area": [0.0] * 4, "area": [1, 1, 0.8, 0.2], "s3_swaps_area": [1.0] * 4}
    assert words(groups) == "a4 < 4 pairs, s3-swaps >= 32"
