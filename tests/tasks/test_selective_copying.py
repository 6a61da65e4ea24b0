"""The task `selective_copying`: instances against the definition, splits, bad input."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from regbench.tasks.base import Splits
from regbench.tasks.selective_copying import SelectiveCopying, SelectiveCopyingParameters

SMALL = SelectiveCopying(SelectiveCopyingParameters(n_symbols=4, n_copied=4, length=14))
SPLITS = Splits(train=60, validation=10, test=30, seed=0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"n_symbols": 4, "n_copied": 4, "length": 14},
        {"n_symbols": 30, "n_copied": 1, "length": 20},
        {"n_symbols": 300, "n_copied": 5, "length": 11},  # no blank
        {"n_symbols": 16, "n_copied": 6, "length": 13, "one_vector": True},
        {"n_symbols": 4, "n_copied": 4, "length": 14, "places": "before_symbols"},
        {},
    ],
)
def test_instances_are_what_the_definition_says(parameters: dict[str, int]) -> None:
    task = SelectiveCopying(SelectiveCopyingParameters(**parameters))
    p, instances = task.parameters, task.generate(SPLITS, "test")
    truth, progress = task.truth(instances), task.progress(instances)
    assert instances.tokens.shape == (30, p.length)
    for row in range(30):
        names = [task.io.names[token] for token in instances.tokens[row]]
        begins = names.index(">")
        copied = [name for name in names[:begins] if name != "."]
        assert names[begins + 1 :] == copied
        assert len(copied) == p.n_copied
        assert np.flatnonzero(instances.scored[row]).tolist() == list(range(begins + 1, p.length))
        assert progress[row].tolist() == [-1] * (begins + 1) + list(range(p.n_copied))
        assert [task.io.names[i] for i in truth[row, begins + 1 :].argmax(-1)] == copied
        assert (truth[row].sum(-1) == instances.scored[row]).all()


def test_with_one_vector_the_bottleneck_is_the_token_that_begins_the_copy() -> None:
    task = SelectiveCopying(SelectiveCopyingParameters(one_vector=True))
    assert task.io.bottleneck == task.io.names.index(">")
    assert SMALL.io.bottleneck is None
    same = SelectiveCopying(SMALL.parameters.model_copy(update={"one_vector": True}))  # the instances are the same
    assert same.generate(SPLITS, "test").fingerprint == SMALL.generate(SPLITS, "test").fingerprint


def test_every_set_of_places_is_equally_likely_and_symbols_are_uniform() -> None:
    task = SelectiveCopying(SelectiveCopyingParameters(n_symbols=60, n_copied=2, length=8))  # 5 places
    instances = task.generate(Splits(train=9000, validation=1, test=1, seed=2), "train")
    places = Counter(tuple(np.flatnonzero(row[:5] < 60).tolist()) for row in instances.tokens)
    assert set(places) == set(combinations(range(5), 2))
    np.testing.assert_allclose([places[p] / 9000 for p in sorted(places)], 0.1, atol=5 * np.sqrt(0.09 / 9000))
    share = np.bincount(instances.tokens[:, -2:].ravel(), minlength=60) / 18000
    np.testing.assert_allclose(share, 1 / 60, atol=5 * np.sqrt(1 / 60 / 18000))


def test_before_symbols_each_blank_has_one_of_them() -> None:
    """As in MAD: gaps are multinomial, and none follows the last symbol."""
    splits = Splits(train=2000, validation=1, test=1, seed=3)
    spread = {}
    for places in ("anywhere", "before_symbols"):
        task = SelectiveCopying(SelectiveCopyingParameters(places=places))
        symbols = task.generate(splits, "train").tokens[:, : task.parameters.n_places] < 14
        gaps = np.diff(np.nonzero(symbols)[1].reshape(-1, 16), axis=1, prepend=-1) - 1
        spread[places] = gaps.std()
        if places == "before_symbols":
            assert symbols[:, -1].all()
            np.testing.assert_allclose(gaps.mean(0), 223 / 16, atol=5 * 3.6 / 2000**0.5)
    assert spread["before_symbols"] == pytest.approx((223 / 16 * 15 / 16) ** 0.5, rel=0.02)
    assert spread["anywhere"] == pytest.approx(12.7, rel=0.02)
