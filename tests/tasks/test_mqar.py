"""The task `mqar`: instances against a slow reading of the definition, the law of gaps, splits, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from regbench.metrics.scores import score_chance
from regbench.tasks.base import Splits
from regbench.tasks.mqar import MQAR, MQARParameters, slot_weights
from regbench.utils.errors import UserError

SMALL = MQAR(MQARParameters(vocabulary=20, n_pairs=3, n_queries=5, length=24, power=0.5))


@pytest.mark.parametrize(
    "parameters",
    [
        {"vocabulary": 20, "n_pairs": 3, "n_queries": 7, "length": 24, "power": 0.5},
        {"vocabulary": 9, "n_pairs": 4, "n_queries": 4, "length": 16, "power": 1.0},  # every key, and no blank
        {"vocabulary": 600, "n_pairs": 1, "n_queries": 3, "length": 40},
        {"vocabulary": 1000, "n_pairs": 40, "n_queries": 30, "length": 200, "power": 0.01},
    ],
)
def test_instances_are_what_the_definition_says(parameters: dict[str, float]) -> None:
    task = MQAR(MQARParameters(**parameters))  # type: ignore[arg-type]
    p, splits = task.parameters, Splits(train=5, validation=3, test=20, seed=1)
    instances = task.generate(splits, "test")
    progress, truth = task.progress(instances), task.truth(instances)
    assert instances.tokens.shape == (20, p.length)
    for row in range(20):
        names = [task.io.names[token] for token in instances.tokens[row]]
        pairs = [*zip(names[::2], names[1::2], strict=True)]
        shown, slots = pairs[: p.n_pairs], pairs[p.n_pairs :]
        map_of = dict(shown)
        assert len(map_of) == len(set(map_of.values())) == p.n_pairs
        assert all(key[0] == "k" and value[0] == "v" for key, value in shown)
        assert sum(slot != (".", ".") for slot in slots) == p.n_queries
        assert set(slots) <= {*shown, (".", ".")}
        last = {key: i for i, (key, _) in enumerate(shown)}
        for i, (key, value) in enumerate(slots):
            at = 2 * (p.n_pairs + i)
            assert not instances.scored[row, at]
            assert instances.scored[row, at + 1] == (key != ".")
            assert truth[row, at].sum() == 0
            assert truth[row, at + 1].sum() == (key != ".")
            if key != ".":
                assert task.io.names[truth[row, at + 1].argmax()] == value == map_of[key]
                assert progress[row, at + 1] == p.n_pairs + i - last[key] - 1
                last[key] = p.n_pairs + i
        assert not instances.scored[row, : 2 * p.n_pairs].any()
    assert ((progress >= 0) == instances.scored).all()


@pytest.mark.parametrize(("n_slots", "power"), [(1, 0.3), (192, 0.01), (50, 1.0), (2000, 0.5)])
def test_weights_follow_the_power_law(n_slots: int, power: float) -> None:
    weights = slot_weights(MQARParameters(vocabulary=9, n_pairs=1, n_queries=1, length=2 + 2 * n_slots, power=power))
    law = np.arange(1, n_slots + 1) ** (power - 1)
    np.testing.assert_allclose(weights / weights.sum(), law / law.sum(), rtol=1e-4)
    assert weights.min() >= 1
    assert weights.sum() < 2**32  # the largest range of `below`


def test_slots_are_drawn_by_their_weights() -> None:
    """With one query the slot follows the law itself; with two, as drawn one after another without replacement."""
    one = MQAR(MQARParameters(vocabulary=400, n_pairs=1, n_queries=1, length=12, power=0.25))
    instances = one.generate(Splits(train=8000, validation=1, test=1, seed=3), "train")
    share = instances.scored[:, 3::2].mean(0)
    law = np.arange(1, 6) ** -0.75
    np.testing.assert_allclose(share, law / law.sum(), atol=5 * math.sqrt(0.25 / 8000))
    two = MQAR(MQARParameters(vocabulary=400, n_pairs=2, n_queries=2, length=14, power=0.25))
    instances = two.generate(Splits(train=8000, validation=1, test=1, seed=3), "train")
    expected, p = np.zeros(5), law / law.sum()
    for i, j in itertools.permutations(range(5), 2):
        expected[[i, j]] += p[i] * p[j] / (1 - p[i])
    np.testing.assert_allclose(instances.scored[:, 5::2].mean(0), expected, atol=5 * math.sqrt(0.25 / 8000))


def test_keys_values_and_queries_are_uniform() -> None:
    instances = SMALL.generate(Splits(train=6000, validation=1, test=1, seed=2), "train")
    asked = np.stack([(instances.tokens[:, 6::2] == instances.tokens[:, [i]]).sum(1) for i in (0, 2, 4)], 1)
    assert (asked.sum(1) == 5).all()  # with replacement: of five, each of three keys has 5 / 3 on average
    np.testing.assert_allclose(asked.mean(0), 5 / 3, atol=5 * math.sqrt(5 * 2 / 9 / 6000))
    np.testing.assert_allclose(asked.var(0), 5 * 2 / 9, rtol=0.1)
    for tokens, first, n in ((instances.tokens[:, 0:6:2], 0, 9), (instances.tokens[:, 1:6:2], 9, 10)):
        share = np.bincount(tokens.ravel() - first, minlength=n) / tokens.size
        np.testing.assert_allclose(share, 1 / n, atol=5 * np.sqrt(1 / n / tokens.size))


def test_too_few_pairs_are_refused() -> None:
    few = MQAR(MQARParameters(vocabulary=5, n_pairs=1, n_queries=1, length=4))  # two keys, two values
    with pytest.raises(UserError, match="too few distinct lists of pairs"):
        few.generate(Splits(train=1, validation=1, test=4, seed=0), "validation")


def test_chance_is_one_of_the_values_of_the_pairs() -> None:
    """As often as the value of a pair that is drawn is the one that is asked for."""
    instances = SMALL.generate(Splits(train=0, validation=0, test=400, seed=3), "test")
    chance = score_chance(SMALL, instances)
    assert chance is not None
    assert chance["token_accuracy"].value == pytest.approx(1 / 3)
    assert chance["nll"].value == pytest.approx(math.log(3))
    pairs = instances.tokens[:, 1:6:2]
    drawn = pairs[np.arange(400), np.random.default_rng(0).integers(3, size=400)]
    hit = (instances.tokens == drawn[:, None])[instances.scored]
    assert hit.mean() == pytest.approx(1 / 3, abs=0.04)
