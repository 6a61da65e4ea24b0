"""The task `associative_recall`: instances against a slow reading of the definition, splits, and the same bytes everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.metrics.scores import score
from regbench.tasks.associative_recall import AssociativeRecall, AssociativeRecallParameters
from regbench.tasks.base import Splits
from regbench.utils.errors import UserError

SMALL = AssociativeRecall(AssociativeRecallParameters(n_keys=4, n_values=5, n_pairs=12))
SPLITS = Splits(train=60, validation=10, test=30, seed=0)
CROWDED = AssociativeRecall(AssociativeRecallParameters(n_keys=2, n_values=4, n_pairs=6))  # 16 maps in all


def read_slowly(names: list[str]) -> list[int]:
    """The progress of a sequence of names, from the definition: -1 but at values whose key has occurred."""
    pairs = [*zip(names[:-3:2], names[1:-3:2], strict=True), (names[-2], names[-1])]
    found = []
    for i, (key, _) in enumerate(pairs):
        before = [j for j in range(i) if pairs[j][0] == key]
        found += [-1, i - max(before) - 1 if before else -1]
    return [*found[:-2], -1, *found[-2:]]  # the query stands before the last pair


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"n_keys": 4, "n_values": 5, "n_pairs": 12},
        {"n_keys": 30, "n_values": 2, "n_pairs": 9},  # most keys occur once or never
        {"n_keys": 2, "n_values": 300, "n_pairs": 1},  # two bytes a token; only the last value is scored
        {"n_keys": 700, "n_values": 3, "n_pairs": 40},
    ],
)
def test_instances_are_what_the_definition_says(parameters: dict[str, int]) -> None:
    task = AssociativeRecall(AssociativeRecallParameters(**parameters))
    p, instances = task.parameters, task.generate(SPLITS, "test")
    keys, values = task.io.names[: p.n_keys], task.io.names[p.n_keys : p.n_keys + p.n_values]
    progress, truth = task.progress(instances), task.truth(instances)
    assert instances.tokens.shape == (30, 2 * p.n_pairs + 3) == (30, task.io.max_length)
    assert (instances.lengths == task.io.max_length).all()
    for row in range(len(instances)):
        names = [task.io.names[token] for token in instances.tokens[row]]
        map_of = {key: task.io.names[token] for key, token in zip(keys, instances.truth["values"][row], strict=True)}
        assert set(map_of.values()) <= set(values)
        assert names[-3] == "?"
        shown = [*zip(names[:-3:2], names[1:-3:2], strict=True)]
        assert all(map_of[key] == value for key, value in [*shown, (names[-2], names[-1])])
        assert names[-2] in dict(shown)
        expected = read_slowly(names)
        assert progress[row].tolist() == expected
        assert instances.scored[row].tolist() == [distance >= 0 for distance in expected]
        for t, name in enumerate(names):
            assert truth[row, t].sum() == (expected[t] >= 0)
            assert expected[t] < 0 or task.io.names[truth[row, t].argmax()] == name


def test_every_token_has_a_name_of_its_own() -> None:
    largest = AssociativeRecall(AssociativeRecallParameters(n_keys=4096, n_values=4096)).io
    assert len(set(largest.names)) == len(largest.names) == largest.vocab_size
    assert (largest.names[25], largest.names[26], largest.names[26 + 26**2]) == ("z", "aa", "aaa")


def test_keys_and_values_are_uniform() -> None:
    """Of all pairs, of all maps, and of the last key among those shown, within five standard errors."""
    instances = SMALL.generate(Splits(train=400, validation=1, test=1, seed=2), "train")
    keys, values = instances.tokens[:, :-3:2], instances.truth["values"] - 4
    for drawn, n in ((keys, 4), (values, 5)):
        share = np.bincount(drawn.ravel(), minlength=n) / drawn.size
        np.testing.assert_allclose(share, 1 / n, atol=5 * np.sqrt(1 / n / drawn.size))
    few = AssociativeRecall(AssociativeRecallParameters(n_keys=4, n_values=60, n_pairs=3))
    tokens = few.generate(Splits(train=6000, validation=1, test=1, seed=2), "train").tokens
    shown = np.sort(tokens[:, :-3:2], 1)
    both = (shown[:, 0] < shown[:, 2]) & ((shown[:, 0] == shown[:, 1]) | (shown[:, 1] == shown[:, 2]))  # a a b, a b b
    twice = (tokens[both, -2] == shown[both, 1]).mean()
    assert abs(twice - 0.5) < 5 * np.sqrt(0.25 / both.sum())  # each key alike, however often it stood there


def test_where_maps_are_few_all_are_found() -> None:
    splits = Splits(train=7, validation=4, test=5, seed=3)
    found = {s: CROWDED.identities(CROWDED.generate(splits, s)) for s in ("test", "validation", "train")}
    assert {split: len(maps) for split, maps in found.items()} == {"test": 5, "validation": 4, "train": 7}
    assert sorted(identity for maps in found.values() for identity in maps) == sorted(
        bytes((2 + i, 2 + j)) for i in range(4) for j in range(4)
    )
    fewer = Splits(train=1, validation=4, test=5, seed=3)
    for split in ("test", "validation", "train"):
        assert CROWDED.identities(CROWDED.generate(fewer, split)) == found[split][: fewer.size(split)]


def test_too_few_maps_is_said() -> None:
    with pytest.raises(UserError, match="^these parameters give too few distinct maps: 16 found where 17 are needed$"):
        CROWDED.generate(Splits(train=8, validation=4, test=5, seed=3), "train")


def test_the_curve_shows_for_how_long_one_remembers() -> None:
    """A predictor that knows the last three pairs, and of older keys says a key."""
    instances = SMALL.generate(SPLITS, "train")
    predicted = SMALL.truth(instances)
    forgotten = SMALL.progress(instances) >= 3
    predicted[~instances.scored | forgotten] = np.eye(SMALL.io.vocab_size)[0]
    scores = score(SMALL, instances, [predicted[:7], predicted[7:]])
    steps, by_step, counts = scores.steps["token_accuracy"].curve()
    assert steps.tolist() == list(range(len(steps)))
    assert [s.value for s in by_step] == [1.0] * 3 + [0.0] * (len(steps) - 3)
    assert counts.sum() == instances.scored.sum()
    known = (instances.scored & ~forgotten)[:, -1].mean()
    assert scores["final_accuracy"].value == pytest.approx(known)
    assert 0 < known < 1
    _, _, final_counts = scores.steps["final_accuracy"].curve()
    assert final_counts.sum() == len(instances)


def test_statistics() -> None:
    instances = SMALL.generate(SPLITS, "train")
    found = SMALL.statistics(instances)
    names = [[SMALL.io.names[token] for token in row] for row in instances.tokens]
    distances = [distance for row in names for distance in read_slowly(row) if distance >= 0]
    assert found["keys_shown"] == pytest.approx(np.mean([len(set(row[:-3:2])) for row in names]))
    assert found["recalled_values"] == pytest.approx(len(distances) / (60 * 13))
    assert found["mean_distance"] == pytest.approx(np.mean(distances))
    assert found["mean_final_distance"] == pytest.approx(np.mean([read_slowly(row)[-1] for row in names]))
