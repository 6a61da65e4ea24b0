"""Every line of the tasks' contract catches exactly the task that breaks it; every built-in keeps them all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from regbench.checks.contract import refuse
from regbench.checks.task import CONTRACT, TaskSubject, true_distributions
from regbench.data.instances import Instances
from regbench.tasks.base import Parameters, Splits, Task, TokenIO, unfinished
from regbench.tasks.linear_regression import LinearRegression, LinearRegressionParameters
from regbench.tracks import load_track
from regbench.utils import registry
from regbench.utils.errors import UserError, blaming
from tests.data.text.conftest import write_corpus

SPLITS = Splits(train=60, validation=10, test=40, seed=1)
NAMES = ("train", "validation", "test")
SMALLER: dict[str, dict[str, Any]] = {
    "pfa": {"n_symbols": 6, "max_alphabet": 6, "max_strings": 12, "max_length": 12},
    "associative_recall": {"n_keys": 5, "n_values": 6, "n_pairs": 20},
    "bigram": {"n_symbols": 12, "n_triggers": 3, "length": 40},
    "classification": {"vocab_size": 400, "n_exemplars": 5, "excerpt": 8, "n_queries": 6, "n_label_tokens": 20},
    "mqar": {"vocabulary": 40, "n_pairs": 6, "n_queries": 6, "length": 48},
    "text": {"length": 64, "vocab_size": 400},
    "text_mixture": {"length": 64, "min_cut": 16, "max_cut": 40, "vocab_size": 400},
}


class Echo(Task):
    """A word of four symbols, of which no two instances share one, said three times; one symbol in five is drawn anew."""

    class Parameters(Parameters):
        noise: float = 0.2

    version = 1
    main_score = "tvd"
    scores = ("tvd", "nll", "late")
    group_scores = {"late": ("tvd", "late")}  # noqa: RUF012
    progress_label = "words before"

    @property
    def io(self) -> Any:
        return TokenIO(vocab_size=6, separator=5, max_length=12, names=("a", "b", "c", "d", "e", "|"))

    def generate(self, splits: Splits, split: str) -> Instances:
        before = sum(splits.size(name) for name in NAMES[: NAMES.index(split)])
        rng = np.random.default_rng([splits.seed, NAMES.index(split)])
        numbers = np.random.default_rng(splits.seed).permutation(5**4)[before : before + splits.size(split)]
        words = numbers[:, None] // 5 ** np.arange(4) % 5
        clean = np.tile(words, 3).astype(np.uint8)
        tokens = np.where(rng.random(clean.shape) < 0.2, rng.integers(0, 5, clean.shape), clean).astype(np.uint8)
        lengths = np.where(np.arange(len(tokens)) % 2, 12, 10)
        tokens[np.arange(12) >= lengths[:, None]] = 5
        scored = (np.arange(12) >= 4) & (tokens < 5)
        return Instances(tokens, lengths, scored, "echo/1", {"words": words}, {"clean": clean})

    def truth(self, instances: Instances) -> Any:
        truth = 0.8 * np.eye(6)[instances.truth_at["clean"]] + 0.2 / 5 * (np.arange(6) < 5)
        return truth * instances.scored[..., None]

    def identities(self, instances: Instances) -> Any:
        return [word.tobytes() for word in instances.truth["words"]]

    def groups(self, instances: Instances) -> Any:
        return {"late": np.broadcast_to(np.arange(instances.tokens.shape[1]) >= 8, instances.scored.shape)}

    def progress(self, instances: Instances) -> Any:
        return np.broadcast_to(np.arange(instances.tokens.shape[1]) // 4, instances.scored.shape)


def subject_of(cls: type[Task]) -> TaskSubject:
    task = cls(cls.Parameters())
    return TaskSubject(task, SPLITS, {split: task.generate(SPLITS, split) for split in NAMES})


def faults(subject: TaskSubject) -> Iterator[tuple[str, str]]:
    for check in CONTRACT:
        with blaming("task 'it' raises"):
            fault = check(subject)
        if fault:
            yield check.__name__, fault


LONGER = ("classification", "mqar", "recall", "text_mixture")
"""Tasks whose checks take seconds. CI runs them."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.ci if name in LONGER else ()) for name in registry.entries(registry.TASK)],
)
def test_every_built_in_keeps_the_contract(name: str, tmp_path: Path) -> None:
    cls = registry.load(registry.TASK, name)
    parameters = SMALLER.get(name, {})
    if name in ("classification", "text", "text_mixture"):
        parameters = parameters | {"source": str(write_corpus(tmp_path / "texts", documents=30))}
    task = cls(cls.Parameters(**parameters))
    made = {split: task.generate(SPLITS, split) for split in NAMES}
    assert unfinished(cls) is None
    assert list(faults(TaskSubject(task, SPLITS, made))) == []


def test_the_good_one_keeps_it() -> None:
    assert unfinished(Echo) is None
    assert list(faults(subject_of(Echo))) == []
    refuse(subject_of(Echo), CONTRACT, "task 'echo'")


# --- Tasks that break a line. Each: the line, a part of what it says, what takes the place of what in Echo. ---

Method = Callable[..., Any]
count = itertools.count()


def made_otherwise(change: Callable[[Instances], Any]) -> dict[str, Any]:
    """A task whose instances come out of `change`."""
    return {"generate": lambda self, splits, split: change(Echo.generate(self, splits, split))}


def said_otherwise(method: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A task that says of instances what comes out of `change`."""
    return {method: lambda self, instances: change(getattr(Echo, method)(self, instances))}


def io_otherwise(**fields: Any) -> dict[str, Any]:
    return {"io": property(lambda self: replace(Echo.io.fget(self), **fields))}  # type: ignore[attr-defined]


def at(array: Any, place: Any, value: Any) -> Any:
    """A copy with another value there."""
    changed = np.array(array)
    changed[place] = value
    return changed


def drawn(instances: Instances) -> Instances:
    """Something else every time."""
    return replace(instances, truth_at={"clean": np.random.default_rng().integers(0, 5, (len(instances), 12))})


def one_split(self: Any, splits: Splits, split: str) -> Instances:
    """Every split is the first of training."""
    return Echo.generate(self, splits, "train")[: splits.size(split)]


def validation_from(source: str) -> dict[str, Any]:
    """A task whose validation split is the first of another."""

    def generate(self: Any, splits: Splits, split: str) -> Instances:
        taken = Echo.generate(self, splits, source if split == "validation" else split)
        return taken[: splits.size(split)]

    return {"generate": generate}


def renamed(self: Any, splits: Splits, split: str) -> Instances:
    """The same, and each split's words look like others to `identities`."""
    instances = one_split(self, splits, split)
    return replace(instances, truth={"words": instances.truth["words"] + 10 * NAMES.index(split)})


BROKEN: list[tuple[str, str, dict[str, Any]]] = [
    (
        "forms",
        "generate returns tuple, not regbench.Instances",
        made_otherwise(lambda i: (i.tokens, i.lengths)),
    ),
    ("forms", "of the train split has the shape (5, 12), but 60 instances", made_otherwise(lambda i: i[:5])),
    (
        "forms",
        "tokens of its Instances must be an array of numbers, not list",
        made_otherwise(lambda i: replace(i, tokens=i.tokens.tolist())),
    ),
    ("forms", "the tokens are float64, not integers", made_otherwise(lambda i: replace(i, tokens=i.tokens * 1.0))),
    ("forms", "(60,), not (N, L)", made_otherwise(lambda i: replace(i, tokens=i.tokens[:, 0]))),
    ("forms", "a length is 0", made_otherwise(lambda i: replace(i, lengths=at(i.lengths, 3, 0)))),
    ("forms", "a length is 13", made_otherwise(lambda i: replace(i, lengths=at(i.lengths, 3, 13)))),
    ("forms", "(60,) of float64", made_otherwise(lambda i: replace(i, lengths=i.lengths * 1.0))),
    ("forms", "scored must be (60, 12) of bool", made_otherwise(lambda i: replace(i, scored=i.scored * 1))),
    ("forms", "truth['w'] of the train split has", made_otherwise(lambda i: replace(i, truth={"w": np.zeros(3)}))),
    ("forms", "array of Python objects", made_otherwise(lambda i: replace(i, truth={"w": i.lengths.astype(object)}))),
    ("forms", "truth_at['c'] has the shape (60,)", made_otherwise(lambda i: replace(i, truth_at={"c": i.lengths}))),
    ("forms", "must be text, not 0", made_otherwise(lambda i: replace(i, truth={0: i.lengths}))),
    ("forms", "must be dictionaries", made_otherwise(lambda i: replace(i, truth=None))),
    ("forms", "need a generator", made_otherwise(lambda i: replace(i, generator=""))),
    ("forms", "its io is int", {"io": 7}),
    ("forms", "must be 6 texts", io_otherwise(names=("a", "b"))),
    ("forms", "separator of its io, 6, is no token in [0, 6)", io_otherwise(separator=6)),
    ("forms", "bottleneck of its io, 6, is no token in [0, 6)", io_otherwise(bottleneck=6)),
    ("forms", "vocab_size of its io must be a whole number", io_otherwise(vocab_size=6.0)),
    ("forms", "a length is 12, but tokens has 12 places and io.max_length is 11", io_otherwise(max_length=11)),
    ("metrics", "'mse' is no metric of tokens", {"scores": ("tvd", "mse")}),
    ("metrics", "'tvd' is no metric of tokens without a truth", {"knows_truth": False}),
    ("metrics", "main_score 'legal_accuracy' is none of its scores", {"main_score": "legal_accuracy"}),
    ("metrics", "the score 'area' is by size, between chance and the best", {"scores": ("tvd", "area")}),
    (
        "values",
        "token 6 in the train split is outside",
        made_otherwise(lambda i: replace(i, tokens=at(i.tokens, 0, 6))),
    ),
    ("values", "something other than the separator", made_otherwise(lambda i: replace(i, lengths=0 * i.lengths + 9))),
    ("values", "behind an instance's end are scored", made_otherwise(lambda i: replace(i, scored=i.scored | True))),
    ("scored", "nothing is scored in the train split", made_otherwise(lambda i: replace(i, scored=i.scored & False))),
    ("scored", "'late', which groups does not give; did you", said_otherwise("groups", lambda g: {"lat": g["late"]})),
    ("scored", "group 'late' must be (40, 12) of bool", said_otherwise("groups", lambda g: {"late": g["late"][0]})),
    (
        "scored",
        "nothing in the group 'late' is scored",
        said_otherwise("groups", lambda g: {"late": g["late"] & False}),
    ),
    (
        "scored",
        "all that is scored on the test split is of one instance or problem, and an error needs two",
        made_otherwise(lambda i: replace(i, scored=i.scored & (np.arange(len(i)) == 3)[:, None])),
    ),
    (
        "scored",
        "all that is scored in the group 'late' of the test split is of one instance or problem",
        said_otherwise("groups", lambda g: {"late": g["late"] & (np.arange(len(g["late"])) == 3)[:, None]}),
    ),
    ("progress", "must give (40, 12) integers or None, not (12,) of", said_otherwise("progress", lambda p: p[0])),
    ("progress", "(40, 12) of float64", said_otherwise("progress", lambda p: p / 2)),
    ("progress", "progress comes to 20000", said_otherwise("progress", lambda p: p * 10_000)),
    ("progress", "no progress_label says of what", {"progress_label": ""}),
    ("progress", "negative wherever 'late' is scored", said_otherwise("progress", lambda p: np.where(p < 2, p, -1))),
    (
        "true_distributions",
        "sums to 1.1, not 1, at position 4 of test instance 0",
        said_otherwise("truth", lambda t: 1.1 * t),
    ),
    ("true_distributions", "must give (40, 12, 6) floating-point", said_otherwise("truth", lambda t: t[..., :5])),
    ("true_distributions", "not list", said_otherwise("truth", lambda t: t.tolist())),
    (
        "true_distributions",
        "NaN or infinite at position 5",
        said_otherwise("truth", lambda t: at(t, (0, 5, 1), np.nan)),
    ),
    (
        "true_distributions",
        "negative",
        said_otherwise("truth", lambda t: t + np.array([-9, 9, 0, 0, 0, 0]) * (t > 0.5)),
    ),
    (
        "true_distributions",
        "not zero at position 0 of test instance 0, which",
        said_otherwise("truth", lambda t: t + 1),
    ),
    ("true_distributions", "probability 0 to the token", said_otherwise("truth", lambda t: np.round(t))),
    ("true_distributions", "were not drawn from", {"truth": lambda self, i: Echo.truth(self, shifted(i))}),
    ("true_distributions", "were not drawn from", {"truth": lambda self, i: sharper(Echo.truth(self, i))}),
    ("each_alone", "truth of test instance 7", {"truth": lambda self, i: by_row(Echo.truth(self, i))}),
    (
        "each_alone",
        "progress of test instance 7",
        said_otherwise("progress", lambda p: p + np.arange(len(p))[:, None] % 2),
    ),
    (
        "same_twice",
        "other truth_at['clean'] the second time",
        made_otherwise(drawn) | {"truth": lambda self, i: fitting(i)},
    ),
    ("same_twice", "other names", made_otherwise(lambda i: replace(i, truth=i.truth | {f"{next(count)}": i.lengths}))),
    ("disjoint", "a list of bytes", said_otherwise("identities", lambda names: list(map(str, names)))),
    ("disjoint", "a list of bytes", said_otherwise("identities", lambda names: None)),
    ("disjoint", "gives 2 for the 60", said_otherwise("identities", lambda names: names[:2])),
    ("disjoint", "when it is alone", {"identities": lambda self, i: [row.tobytes() for row in i.tokens]}),
    (
        "disjoint",
        "when it is alone",
        said_otherwise("identities", lambda n: [b"%d" % next(count) for _ in n]),
    ),
    ("disjoint", "train and test share 40 of their identities", {"generate": one_split}),
    ("disjoint", "train and validation share 10 of", validation_from("train")),
    ("disjoint", "validation and test share 10 of", validation_from("test")),
    ("disjoint", "share 1 of", said_otherwise("identities", lambda names: [b"all"] * len(names))),
    ("disjoint", "40 of the 40 test instances stand in the training split token for token", {"generate": renamed}),
    ("statistics", "'b' for 'a', not a finite number", {"statistics": lambda self, i: {"a": "b"}}),
    ("statistics", "inf for 'a'", {"statistics": lambda self, i: {"a": float("inf") if len(i) == 60 else 1.0}}),
    ("statistics", "nan for 'a'", {"statistics": lambda self, i: {"a": float("nan")}}),
]


def shifted(instances: Instances) -> Instances:
    """Its truth is that of the place before."""
    return replace(instances, truth_at={"clean": np.roll(instances.truth_at["clean"], 1, axis=1)})


def sharper(truth: Any) -> Any:
    """Surer of the likely symbol than the noise lets it be."""
    return np.where(truth > 0.5, 0.99, np.where(truth > 0, 0.0025, 0.0)) * (truth.sum(-1, keepdims=True) > 0)


def by_row(truth: Any) -> Any:
    """Every second row is a little flatter: of an instance alone that is never so."""
    flat = 0.9 * truth + 0.1 / 5 * (truth > 0)
    return np.where((np.arange(len(truth)) % 2 == 1)[:, None, None], flat, truth)


def fitting(instances: Instances) -> Any:
    """What makes the tokens likely, whatever `clean` is."""
    clean = np.tile(instances.truth["words"], 3)[:, : instances.tokens.shape[1]]
    return Echo.truth(Echo(Echo.Parameters()), replace(instances, truth_at={"clean": clean}))


@pytest.mark.parametrize(("line", "said", "change"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_a_broken_task_is_caught_by_its_line(line: str, said: str, change: dict[str, Any]) -> None:
    broken = type("Broken", (Echo,), change)
    first, fault = next(faults(subject_of(broken)))
    assert said in fault
    assert first == line
    assert "\n" not in fault


def test_each_line_has_a_task_that_breaks_it() -> None:
    assert {line for line, _, _ in BROKEN} == {check.__name__ for check in CONTRACT}


def test_a_uniform_truth_of_tokens_that_are_not_uniform_is_a_fault() -> None:
    """The probability of a drawn token is then as high as it should be."""
    track = load_track("bigram-small-v1")
    test, size = track.instances("test"), track.task.io.width
    own = SimpleNamespace(
        io=track.task.io, knows_truth=True, truth=lambda part: part.scored[..., None] * np.full(size, 1 / size)
    )
    subject = SimpleNamespace(task=own, test=test, fresh=lambda: own)
    fault = true_distributions(subject)  # type: ignore[arg-type]
    assert fault is not None
    assert fault.startswith("the tokens were not drawn from the truth: token ")


def test_chance_is_no_fault() -> None:
    """Whatever the seed, tokens that were drawn from the truth pass for it."""
    for seed in range(60):
        task, splits = Echo(Echo.Parameters()), replace(SPLITS, seed=seed)
        made = {split: task.generate(splits, split) for split in NAMES}
        assert true_distributions(TaskSubject(task, splits, made)) is None


def test_what_needs_generate_first_is_refused() -> None:
    """Instances come from the cache, where nothing is generated."""

    class Keeps(Echo):
        def generate(self, splits: Splits, split: str) -> Instances:
            self.kept = super().generate(splits, split)
            return self.kept

        def truth(self, instances: Instances) -> Any:
            return super().truth(self.kept[: len(instances)])

    with pytest.raises(
        UserError,
        match=r"^task 'keeps' cannot be scored: it raises .*test_task.py:\d+: AttributeError: .* no attribute 'kept'",
    ):
        refuse(subject_of(Keeps), CONTRACT, "task 'keeps'")


def test_a_refusal_names_the_task() -> None:
    broken = type("Broken", (Echo,), {"progress_label": ""})
    with pytest.raises(
        UserError, match="^task 'echo' cannot be scored: it tells progress, and no progress_label says of what$"
    ):
        refuse(subject_of(broken), CONTRACT, "task 'echo'")


@pytest.mark.parametrize(
    ("line", "said", "change"),
    [
        ("forms", "the tokens are float64, not float32", lambda i: replace(i, tokens=i.tokens.astype(float))),
        ("forms", "has the shape (60, 12, 4), not (N, L, 5)", lambda i: replace(i, tokens=i.tokens[..., 1:])),
        ("values", "vectors of the train split hold NaN", lambda i: replace(i, tokens=at(i.tokens, (0, 0, 0), np.nan))),
        ("true_distributions", "not zero at position 0 of test instance 0", 1.0),
        ("true_distributions", "NaN or infinite", np.inf),
    ],
)
def test_vectors_are_asked_as_vectors(line: str, said: str, change: Any) -> None:
    def generate(self: Any, splits: Splits, split: str) -> Instances:
        instances = LinearRegression.generate(self, splits, split)
        return change(instances) if callable(change) else instances

    def truth(self: Any, instances: Instances) -> Any:
        return LinearRegression.truth(self, instances) + (0.0 if callable(change) else change)

    broken = type("Broken", (LinearRegression,), {"generate": generate, "truth": truth})
    task = broken(LinearRegressionParameters(d_x=3, d_y=2, n_examples=6))
    made = {split: task.generate(SPLITS, split) for split in NAMES}
    first, fault = next(faults(TaskSubject(task, SPLITS, made)))
    assert said in fault
    assert first == line


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("it lacks truth", {"truth": Task.truth}),
        ("it needs a class Parameters", {"Parameters": dict}),
        ("its version must be a whole number, not True", {"version": True}),
        ("its scores must be a tuple of names, not []", {"scores": []}),
        ("its scores must be a tuple of names, not 'tvd'", {"scores": "tvd"}),
        ("its group_scores must be a dictionary", {"group_scores": {"late": "tvd"}}),
        ("its group_scores must be a dictionary", {"group_scores": ("late",)}),
        ("to these, a label and a sentence", {"group_scores": {"late": ("tvd", "late", "TVD, late")}}),
    ],
)
def test_what_is_no_whole_task_is_seen_before_one_is_made(said: str, change: dict[str, Any]) -> None:
    fault = unfinished(type("Unfinished", (Echo,), change))
    assert fault is not None
    assert said in fault
