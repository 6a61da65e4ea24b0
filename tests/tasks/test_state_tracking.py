"""The task `state_tracking`: instances against a slow reading of the definition, groups against their laws, splits, bad input."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.oracle import Oracle
from regbench.metrics.metric import metrics_of
from regbench.metrics.scores import score, score_chance
from regbench.models.predictor import predict_in_batches
from regbench.tasks.base import Splits
from regbench.tasks.state_tracking import GROUPS, StateTracking, StateTrackingParameters, group_table

SPLITS = Splits(train=60, validation=10, test=30, seed=0)
SMALL = StateTracking(StateTrackingParameters(groups=("parity", "s3", "z5"), length=12, test_length=40))


def task_of(*groups: str, length: int = 16, test_length: int = 48) -> StateTracking:
    return StateTracking(StateTrackingParameters(groups=groups, length=length, test_length=test_length))


def followed(names: list[str]) -> list[tuple[int, str]]:
    """The number of symbols before each named state, and its name, from products of permutations or sums."""
    found, since = [], 0
    group = names[0].split(":")[0]
    modulus = 2 if group == "parity" else int(group[1:]) if group[0] == "z" else None
    state: int | tuple[int, ...] = 0 if modulus else tuple(range(int(group[1])))
    for name in names:
        if "=" in name:
            written = str(state) if isinstance(state, int) else "".join(str(i + 1) for i in state)
            found.append((since, f"{group}={written}"))
            since = 0
            continue
        symbol = name.split(":")[1]
        since += 1
        if isinstance(state, int):
            assert modulus is not None
            state = (state + int(symbol)) % modulus
        else:  # each thing goes from its place to the one that the symbol gives there
            state = tuple(int(symbol[place]) - 1 for place in state)
    return found


@pytest.mark.parametrize(
    "groups", [("parity",), ("z7", "a4"), ("s3-swaps", "parity"), ("a5", "s5-swaps"), ("s5", "s4")]
)
def test_instances_are_what_the_definition_says(groups: tuple[str, ...]) -> None:
    task = task_of(*groups)
    for split, length in (("train", 16), ("validation", 16), ("test", 48)):
        instances = task.generate(SPLITS, split)
        progress, truth = task.progress(instances), task.truth(instances)
        assert instances.tokens.shape == (SPLITS.size(split), length)
        assert (instances.lengths == length).all()
        assert np.array_equal(task.groups(instances)["longer"], progress >= 16), "no run of training has 16 symbols"
        for row in range(len(instances)):
            names = [task.io.names[token] for token in instances.tokens[row]]
            (group,) = {name.replace("=", ":").split(":")[0] for name in names}
            assert group in groups
            scored = instances.scored[row]
            assert scored.tolist() == ["=" in name for name in names]
            assert not scored[0]
            assert not (scored[1:] & scored[:-1]).any()  # at least one symbol before each name
            expected = followed(names)
            assert progress[row][scored].tolist() == [since for since, _ in expected]
            assert (progress[row][~scored] == -1).all()
            assert [task.io.names[i] for i in truth[row][scored].argmax(-1)] == [name for _, name in expected]
            assert [names[t] for t in np.flatnonzero(scored)] == [name for _, name in expected]
            assert (truth[row].sum(-1) == scored).all()


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_is_one(name: str) -> None:
    """State 0 is the identity, every symbol permutes the states, all states are reached, and products are associative."""
    table = group_table(name)
    states, symbols = table.shape
    expected = {"parity": 2, "s3": 6, "s4": 24, "s5": 120, "a4": 12, "a5": 60}
    of = name.partition("-")[0]
    assert states == (expected[of] if not name.startswith("z") else int(name[1:]))
    every = np.arange(states)
    assert all(np.array_equal(np.sort(column), every) for column in table.T)
    if not name.endswith("-generators"):
        assert np.array_equal(table[:, list(table[0]).index(0)], every)  # the identity is a symbol
    reached = {0}
    while True:
        more = reached | {int(table[state, symbol]) for state in reached for symbol in range(symbols)}
        if more == reached:
            break
        reached = more
    assert len(reached) == states
    if name.endswith("-swaps"):
        full = group_table(name.removesuffix("-swaps"))
        n = int(name[1])
        assert symbols == 1 + n * (n - 1) // 2
        assert all(full[full[0, s], s] == 0 for s in table[0])  # each undoes itself
        assert np.array_equal(table, full[:, table[0]])
    elif name.endswith("-generators"):
        assert symbols == 2
        assert np.array_equal(table, group_table(of)[:, table[0]])
    else:
        assert symbols == states
        rng = np.random.default_rng(0)
        for a, b, c in rng.integers(0, states, (200, 3)):
            assert table[table[a, b], c] == table[a, table[b, c]]


def test_symbols_and_states_are_uniform() -> None:
    task = task_of("s3", "parity", length=24, test_length=25)
    instances = task.generate(Splits(train=4000, validation=1, test=1, seed=2), "train")
    counts = np.bincount(instances.tokens.ravel(), minlength=task.io.vocab_size)
    for first, n in ((0, 6), (6, 6), (12, 2), (14, 2)):
        part = counts[first : first + n]
        np.testing.assert_allclose(part / part.sum(), 1 / n, atol=5 * np.sqrt(1 / n / part.sum()))
    share = (instances.tokens[:, 0] < 12).mean()
    assert abs(share - 0.5) < 5 * np.sqrt(0.25 / 4000)


def test_the_place_of_the_first_name_is_uniform() -> None:
    task = task_of("parity", length=9, test_length=10)
    instances = task.generate(Splits(train=8000, validation=1, test=1, seed=4), "train")
    first = instances.scored.argmax(1)
    share = np.bincount(first, minlength=9) / len(first)
    assert share[0] == 0
    np.testing.assert_allclose(share[1:], 1 / 8, atol=5 * np.sqrt(1 / 8 / 8000))


def test_only_the_test_split_has_longer_runs() -> None:
    for split in ("train", "validation"):
        assert not SMALL.groups(SMALL.generate(SPLITS, split))["longer"].any()
        assert SMALL.statistics(SMALL.generate(SPLITS, split))["longer_share"] == 0
    test = SMALL.generate(SPLITS, "test")
    masks = SMALL.groups(test)
    assert masks["longer"].any()
    assert np.array_equal(sum(masks[name].astype(int) for name in ("parity", "s3", "z5")), masks["longer"].astype(int))


def test_each_group_has_a_score_and_the_oracle_has_all() -> None:
    task = task_of("s5-swaps", "parity")
    assert task.scores == ("longer_accuracy", "s5_swaps_accuracy", "parity_accuracy", "token_accuracy", "nll")
    assert list(metrics_of(task)) == list(task.scores)
    assert [metric.label for metric in metrics_of(task).values()][:3] == [
        "accuracy, longer", "accuracy, S5-swaps", "accuracy, parity",
    ]  # fmt: skip
    assert SMALL.scores == ("longer_accuracy", "parity_accuracy", "s3_accuracy", "z5_accuracy", "token_accuracy", "nll")
    test = SMALL.generate(SPLITS, "test")
    table = score(SMALL, test, predict_in_batches(Oracle(SMALL, test), test)).table()
    assert {name: found.value for name, found in table.items()} == {
        name: 0.0 if name == "nll" else 1.0 for name in SMALL.scores
    }


def test_chance_is_one_of_the_states_of_the_group() -> None:
    """The state after symbols is uniform, so a guess among the states of the group is right as often."""
    task = task_of("parity", "s3", "a4")
    instances = task.generate(Splits(train=0, validation=0, test=600, seed=2), "test")
    chance = score_chance(task, instances)
    assert chance is not None
    for group, states in (("parity", 2), ("s3", 6), ("a4", 12)):
        assert chance[f"{group}_accuracy"].value == pytest.approx(1 / states)
    longer, counts = (
        chance["longer_accuracy"].value,
        {g: chance.counts_of(f"{g}_accuracy").sum() for g in ("parity", "s3", "a4")},
    )
    assert longer == pytest.approx(
        (counts["parity"] / 2 + counts["s3"] / 6 + counts["a4"] / 12) / chance.counts_of("longer_accuracy").sum()
    )
    first = task._layout[task._owner[instances.tokens]].sum(-1) - task._layout[task._owner[instances.tokens], 1]
    hit = (instances.tokens == first)[instances.scored]  # the identity of the group, always
    assert hit.mean() == pytest.approx(chance["token_accuracy"].value, abs=0.03)
