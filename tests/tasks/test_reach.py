"""The reach tasks: instances against slow readings of the definitions, splits, sizes, chance, and answers that are not shown."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from baselines.oracle import Oracle
from regbench.checks.contract import refuse
from regbench.checks.task import CONTRACT, TaskSubject
from regbench.data.instances import Instances
from regbench.evaluation.cuts import Cuts
from regbench.metrics.scores import score
from regbench.models.predictor import predict_in_batches
from regbench.tasks._drawn import _apportion
from regbench.tasks._reach import DrawnReachTask
from regbench.tasks.base import Splits
from regbench.tasks.copying import Copying
from regbench.tasks.distance import Distance
from regbench.tasks.long_automata import LongAutomata
from regbench.tasks.modular_arithmetic import ModularArithmetic
from regbench.tasks.pfa import PFA, PFAParameters
from regbench.tasks.recall_pairs import RecallPairs
from regbench.tasks.state_walk import StateWalk
from regbench.utils.errors import UserError

SPLITS = Splits(train=40, validation=12, test=24, seed=3)
SMALL: list[tuple[type[DrawnReachTask], dict[str, Any]]] = [
    (RecallPairs, {"sizes": (2, 3), "beyond": (5,), "n_keys": 9, "n_values": 7, "n_questions": 7}),
    (Copying, {"sizes": (3, 6), "beyond": (9,), "n_symbols": 7}),
    (Copying, {"sizes": (3, 6), "beyond": (9,), "n_symbols": 40, "hidden": True}),
    (Distance, {"sizes": (4, 8), "beyond": (40,), "n_registers": 2, "n_values": 5, "length": 40}),
    (Distance, {"sizes": (6,), "beyond": (60,), "n_registers": 1, "n_values": 2, "length": 30}),
    (ModularArithmetic, {"sizes": (4, 16), "beyond": (20,), "modulus": 7}),
    (ModularArithmetic, {"sizes": (5, 9), "beyond": (20,), "brackets": True}),
    (StateWalk, {"sizes": (2, 16), "beyond": (32,), "groups": ("parity", "z7", "s3-swaps", "a5-generators")}),
]
AUTOMATA = {
    "sizes": (16, 32),
    "beyond": (100,),
    "automata": {
        "n_symbols": 5,
        "max_states": 5,
        "min_strings": 4,
        "max_strings": 6,
        "max_length": 8,
        "max_alphabet": 5,
    },
    "floor": (0.4, 0.5, 0.5),
    "ceiling": (0.8, 0.9, 1.0),
}


def made(cls: Any, parameters: dict[str, Any]) -> Any:
    return cls(cls.Parameters(**parameters))


def words(task: DrawnReachTask, instances: Instances, row: int) -> list[tuple[str, str | None]]:
    """Each token of an instance by its name, with the name of what is asked for there."""
    names, length = task.io.names, int(instances.lengths[row])
    assert (instances.tokens[row, length:] == task.io.separator).all()
    return [
        (names[token], names[target] if scored else None)
        for token, target, scored in zip(
            instances.tokens[row, :length], instances.targets[row], instances.scored[row], strict=False
        )
    ]


def read_recall(said: list[tuple[str, str | None]], p: Any) -> dict[int, int]:
    size = len(said) // 2 - p.n_questions
    pairs = {said[2 * i][0]: said[2 * i + 1][0] for i in range(size)}
    assert len(pairs) == size
    asked = [said[2 * (size + i)][0] for i in range(p.n_questions)]
    for i, key in enumerate(asked):
        assert said[2 * (size + i) + 1] == ("?", pairs[key])
    for first in range(0, p.n_questions - size + 1, size):  # each pass asks for every key once
        assert len(set(asked[first : first + size])) == size
    return {size: p.n_questions}


def read_copy(said: list[tuple[str, str | None]], p: Any) -> dict[int, int]:
    size = len(said) // 2
    shown = [name for name, _ in said[:size]]
    assert said[size] == (">", None)
    assert said[size + 1 :] == [("?" if p.hidden else name, name) for name in shown]
    return {size: size}


def read_distance(said: list[tuple[str, str | None]], p: Any) -> dict[int, int]:
    written: dict[str, tuple[int, str]] = {}
    gaps = []
    for at in range(0, len(said), 2):
        (does, none), (value, asked) = said[at], said[at + 1]
        assert none is None
        if does.endswith("="):
            assert does[0] not in written, "a register is read before it is written anew"
            written[does[0]] = (at, value)
        elif does.endswith("?"):
            since, kept = written.pop(does[0])
            gaps.append(at - since - 2)
            assert asked == value == kept
        else:
            assert does == "#"
            assert value.isdigit()
        assert (asked is not None) == does.endswith("?")
    (size,) = {max(s for s in p.tested if s <= gap) for gap in gaps}
    assert max(gaps) <= size + 4 * p.n_registers
    assert len(gaps) >= p.n_registers
    return {size: len(gaps)}


def read_walk(said: list[tuple[str, str | None]], p: Any) -> dict[int, int]:
    """By permutations as functions, and cyclic groups as numbers."""
    group = said[0][0].split(":")[0]
    state: Any = None
    for at in range(0, len(said), 2):
        name, symbol = said[at][0].split(":")
        assert name == group
        if group in ("parity", "z7"):
            state = ((state or 0) + int(symbol)) % {"parity": 2, "z7": 7}[group]
        else:
            before = state or "12345"[: len(symbol)]
            state = "".join(symbol[int(place) - 1] for place in before)
        assert said[at + 1] == ("?", f"{group}={state}")
    steps = range(1, len(said) // 2 + 1)
    return dict(Counter(min(s for s in p.tested if s >= step) for step in steps))


def read_arithmetic(said: list[tuple[str, str | None]], p: Any) -> dict[int, int]:
    """By Python's own arithmetic."""
    written = [name for name, _ in said]
    found = []
    for at, (name, asked) in enumerate(said):
        assert (name == "?") == (asked is not None)
        if asked is None:
            continue
        begin = 0
        if p.brackets:
            depth, begin = 0, at
            while begin == at or depth:
                begin -= 1
                depth += {")": 1, "(": -1}.get(written[begin], 0)
        part = [word for word in written[begin:at] if word != "?"]
        assert int(asked) == eval("".join(part)) % p.modulus
        numbers = sum(word.isdigit() for word in part)
        found.append(min(s for s in p.tested if s >= numbers))
    return dict(Counter(found))


READERS: dict[type, Any] = {
    RecallPairs: read_recall,
    Copying: read_copy,
    Distance: read_distance,
    StateWalk: read_walk,
    ModularArithmetic: read_arithmetic,
}


@pytest.mark.parametrize(("cls", "parameters"), SMALL)
def test_instances_are_what_the_definition_says(cls: type[DrawnReachTask], parameters: dict[str, Any]) -> None:
    task = made(cls, parameters)
    p = task.parameters
    for split in ("train", "validation", "test"):
        instances = task.generate(SPLITS, split)
        progress = task.progress(instances)
        seen: Counter[int] = Counter()
        for row in range(len(instances)):
            by_size = READERS[cls](words(task, instances, row), p)
            assert Counter(progress[row][instances.scored[row]].tolist()) == by_size
            seen.update(by_size.keys())
        assert set(seen) == set(p.tested if split == "test" else p.sizes)
        assert cls is ModularArithmetic or len(set(seen.values())) == 1, "each size equally often"


@pytest.mark.parametrize(("cls", "parameters"), [*SMALL, (LongAutomata, AUTOMATA)])
def test_the_contract_holds_and_the_oracle_has_everything(cls: Any, parameters: dict[str, Any]) -> None:
    task = made(cls, parameters)
    instances = {split: task.generate(SPLITS, split) for split in ("train", "validation", "test")}
    refuse(TaskSubject(task, SPLITS, instances), CONTRACT, "the task")
    test = instances["test"]
    scores = score(task, test, predict_in_batches(Oracle(task, test), test, 7))
    if cls is not LongAutomata:
        assert scores["area"].value == 1.0
        uniform = np.full((*test.scored.shape, task.io.vocab_size), 1 / task.io.vocab_size)  # says token 0
        rescaled = ((test.targets == 0) - task.chance(test)) / (1 - task.chance(test))
        progress, means = task.progress(test), []
        for row in range(len(test)):
            means += [rescaled[row][progress[row] == size].mean() for size in set(progress[row]) - {-1}]
        assert score(task, test, [uniform])["area"].value == pytest.approx(np.mean(means))
    fresh = task.fresh(SPLITS, 12, 99)
    assert not set(task.identities(fresh)) & set(task.identities(test))


def test_the_area_counts_every_size_the_same() -> None:
    """Right at the smallest size alone: a third of the area, though most positions are of the other sizes."""
    task = made(Copying, {"sizes": (3, 6), "beyond": (9,), "n_symbols": 7})
    test = task.generate(SPLITS, "test")
    predicted = np.full((*test.scored.shape, task.io.vocab_size), 0.0)
    small = task.progress(test) == 3
    predicted[..., task.io.separator] = 1.0  # wrong wherever something is scored
    predicted[small] = task.truth(test)[small]
    scores = score(task, test, [predicted])
    wrong = -(1 / 7) / (1 - 1 / 7)
    assert scores["area"].value == pytest.approx((1 + 2 * wrong) / 3)
    assert scores["token_accuracy"].value == pytest.approx(3 / (3 + 6 + 9))
    sizes, values, counts = scores.steps["area"].curve()
    assert (sizes.tolist(), counts.tolist()) == ([3, 6, 9], [8, 8, 8])
    assert [one.value for one in values] == pytest.approx([1, wrong, wrong])


def test_long_automata_are_those_of_pfa_with_longer_tests() -> None:
    task = made(LongAutomata, AUTOMATA)
    short = PFA(PFAParameters(**AUTOMATA["automata"]))  # type: ignore[arg-type]
    for split in ("train", "validation", "test"):
        ours, theirs = task.generate(SPLITS, split), short.generate(SPLITS, split)
        assert np.array_equal(ours.truth["transitions"], theirs.truth["transitions"])
        assert np.array_equal(ours.tokens, theirs.tokens) == (split != "test")
    assert (ours.lengths == 100).all()
    size = task.progress(ours)
    assert np.array_equal(size >= 0, ours.scored)
    assert set(size[0, :16]) <= {-1, 16}
    assert set(size[0, 16:32]) <= {-1, 32}
    assert set(size[0, 32:]) <= {-1, 100}
    truth, chance = task.truth(ours), task.chance(ours)
    assert chance[0, [0, 20, 50]].tolist() == [0.4, 0.5, 0.5]
    right = score(task, ours, [np.where(ours.scored[..., None], truth, 1 / 6)])
    assert right["area"].value == pytest.approx((0.6 / 0.4 + 0.5 / 0.4 + 1.0) / 3)
    assert right["tvd"].value == 0.0


def test_a_state_walk_scores_each_group() -> None:
    task = made(StateWalk, {"sizes": (2, 16), "beyond": (32,), "groups": ("parity", "s3")})
    test = task.generate(SPLITS, "test")
    groups = task.groups(test)
    rows = test.truth["kind"] % 2 == 0
    assert groups["parity"][rows].all()
    assert not groups["parity"][~rows].any()
    truth = np.where(test.scored[..., None], task.truth(test), 1 / task.io.vocab_size)
    shifted = truth.copy()
    shifted[groups["s3"] & test.scored] = np.eye(task.io.vocab_size)[0]
    scores = score(task, test, [shifted])
    assert scores["parity_area"].value == 1.0
    assert scores["s3_area"].value == pytest.approx(-0.2)
    assert scores["area"].value == pytest.approx(0.4)
    assert made(StateWalk, {"groups": ("a5",)}).scores == ("area", "token_accuracy", "nll")


def test_the_chance_of_a_walk_counts_what_can_be_reached() -> None:
    task = made(StateWalk, {"sizes": (4,), "beyond": (200,), "groups": ("s3", "a5-generators")})
    test = task.generate(SPLITS, "test")
    chance = task.chance(test)[:, 1::2]
    assert chance[0] == pytest.approx(np.full(200, 1 / 6))
    assert chance[1, :2] == pytest.approx([1 / 2, 1 / 4])  # two symbols; ab and ba differ
    assert chance[1, -1] == pytest.approx(1 / 60, rel=1e-3)


@pytest.mark.parametrize("brackets", [False, True])
def test_the_chance_of_arithmetic_is_that_of_its_values(brackets: bool) -> None:
    """Against counted samples: 0 is the most likely value."""
    task = made(ModularArithmetic, {"sizes": (4,), "beyond": (), "brackets": brackets})
    train = task.generate(Splits(train=20_000, validation=1, test=1, seed=0), "train")
    whole = task._count(train) == 4
    counted = np.bincount(train.targets[whole], minlength=5)[:5] / whole.sum()
    assert counted.argmax() == 0
    assert task.chance(train)[whole] == pytest.approx(counted[0], abs=4 * 0.5 / 20_000**0.5)
    assert (task.chance(train)[task._count(train) == 1] == 0.2).all()


def test_answers_that_are_not_shown_stand_nowhere_in_the_prompt() -> None:
    """And they are part of the fingerprint."""
    from dataclasses import replace

    for cls, parameters in SMALL:
        task = made(cls, parameters)
        test = task.generate(SPLITS, "test")
        assert (test.answers is not None) == task.hides
        if test.answers is not None:
            assert {task.io.names[token] for token in test.tokens[test.scored]} == {"?"}
            assert np.array_equal(test.answers[~test.scored], test.tokens[~test.scored])
            other = test.answers.copy()
            other[test.scored] = 0
            assert replace(test, answers=other).fingerprint != test.fingerprint


def test_shares_are_kept_exactly() -> None:
    assert _apportion(10, [(4, 1), (8, 3)]) == {4: 2, 8: 8}
    assert sum(_apportion(101, [(k, 1) for k in range(7)]).values()) == 101
    task = made(Copying, {"sizes": (3, 6), "shares": (3, 1), "beyond": (), "n_symbols": 7})
    kinds = task.generate(SPLITS, "train").truth["kind"]
    assert Counter(kinds.tolist()) == {3: 30, 6: 10}


def test_too_few_distinct_strings_are_refused() -> None:
    task = made(Copying, {"sizes": (1,), "beyond": (2,), "n_symbols": 2})
    with pytest.raises(UserError, match="too few distinct instances"):
        task.generate(SPLITS, "train")


@pytest.mark.parametrize(
    ("cls", "parameters"),
    [
        (StateWalk, {"sizes": (2, 16), "beyond": (32,), "groups": ("parity", "s3")}),
        (RecallPairs, {"sizes": (2, 3), "beyond": (9,), "n_keys": 9, "n_values": 7, "n_questions": 7}),
    ],
)
def test_cut_prompts_are_expected_to_give_the_scores(cls: Any, parameters: dict[str, Any]) -> None:
    """Of a predictor that is right at the smallest size and at every third position: each size counts as in whole instances."""
    task = made(cls, parameters)
    test = task.generate(Splits(train=12, validation=12, test=600, seed=3), "test")
    right = (task.progress(test) == min(task.sizes)) | (np.arange(test.scored.shape[1]) % 3 == 0)
    wrong = np.eye(task.io.vocab_size)[np.full(test.scored.shape, task.io.separator)]
    predicted = np.where((test.scored & right)[..., None], task.truth(test), 0.99 * wrong + 0.01 / task.io.vocab_size)
    whole = score(task, test, [predicted])
    drawn: dict[str, list[float]] = {name: [] for name in task.scores}
    for seed in range(30):
        cuts = Cuts.draw(task, test, seed)
        assert test.scored[np.arange(len(test)), cuts.places].all()
        sums = cuts.sums(task, test, [predicted])
        for name in task.scores:
            drawn[name].append(sums[name].sum() / cuts.counts[name].sum())
    for name, values in drawn.items():
        error = np.std(values, ddof=1) / 30**0.5
        assert abs(np.mean(values) - whole[name].value) <= 4 * error + 1e-9, name
