"""Baselines that are not built in: each fault is told in one line, by every command; built-in ones have none."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

import regbench
from regbench import cli
from regbench.checks.baseline import check_predictions, examined, fault_of
from regbench.evaluation.baselines import default_baselines, defaults_of
from regbench.models.predictor import Baseline
from regbench.tasks.base import TokenIO
from regbench.tasks.pfa import PFAParameters
from regbench.tracks import Track, load_track
from regbench.utils import registry
from regbench.utils.errors import UserError
from tests.conftest import TINY

OTHERS: dict[str, dict[str, Any]] = {
    "arithmetic": {"parameters": {"n_tasks": 1, "n_examples": 4, "n_digits": 1}, "main_score": "token_accuracy"},
    "linear_regression": {"parameters": {"d_x": 3, "d_y": 2, "n_examples": 6}, "main_score": "mse"},
    "associative_recall": {"parameters": {"n_keys": 4, "n_values": 6, "n_pairs": 12}, "main_score": "final_accuracy"},
    "bigram": {"parameters": {"n_symbols": 8, "n_triggers": 2, "length": 24}, "main_score": "nll"},
}


@pytest.fixture
def load(tmp_path: Path) -> Callable[[dict[str, Any]], Track]:
    def call(content: dict[str, Any]) -> Track:
        (tmp_path / "track.yaml").write_text(yaml.safe_dump(TINY | content))
        return load_track(str(tmp_path / "track.yaml"))

    return call


@pytest.mark.parametrize("task", ["pfa", *OTHERS])
def test_no_built_in_baseline_has_a_fault(task: str, load: Callable[[dict[str, Any]], Track]) -> None:
    """They are not asked when they are used; here they are."""
    track = load({"task": task, **OTHERS.get(task, {})})
    test = track.instances("test")
    found = default_baselines(track, test)
    assert len(found) >= 3
    assert {b.name: fault_of(b, track.task.io, test) for b in found} == dict.fromkeys(b.name for b in found)


def test_nor_one_on_text(text_track: Track) -> None:
    test = text_track.instances("test")
    found = default_baselines(text_track, test)
    assert {b.name: fault_of(b, text_track.task.io, test) for b in found} == dict.fromkeys(b.name for b in found)


class Last(Baseline):
    """What stood last will stand there again, more likely than the rest."""

    name = "last"

    def __init__(self, io: TokenIO) -> None:
        self.io = io

    @classmethod
    def defaults(cls, task: Any, instances: Any) -> Any:
        return [cls(task.io)]

    @property
    def options(self) -> Any:
        return {}

    def predict(self, tokens: Any) -> Any:
        before = np.concatenate([np.full((len(tokens), 1), self.io.separator), tokens[:, :-1]], 1)
        return 0.5 * np.eye(self.io.vocab_size)[before] + 0.5 / self.io.vocab_size


def says(change: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """A baseline whose predictions, of which tokens, come out of `change`."""
    return {"predict": lambda self, tokens: change(Last.predict(self, tokens), tokens)}


def overwrites(said: Any, tokens: Any) -> Any:
    tokens[:] = 0
    return said


def waits(said: Any, tokens: Any) -> Any:
    """It knows all but the last token, once it has the whole."""
    return np.concatenate([np.eye(said.shape[2])[tokens[:, :-1]], said[:, -1:]], 1)


def carries(said: Any, tokens: Any) -> Any:
    """From the second row on it goes on with what it has learned in the row before."""
    return np.concatenate([said[:1], 0.5 * (said[1:] + said[:-1])])


CALLS = itertools.count()
"""No two calls in a row predict the same."""

BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("^baseline 'own' has no class method defaults", {"defaults": Baseline.defaults}),
    ("^defaults\\(\\) of baseline 'own' must return a list of Broken", {"defaults": classmethod(lambda cls, *_: None)}),
    (
        "^defaults\\(\\) of baseline 'own' must return a list of Broken",
        {"defaults": classmethod(lambda cls, *_: [cls])},
    ),
    ("^baseline 'own' raises .*: ZeroDivisionError", {"defaults": classmethod(lambda cls, *_: 1 / 0)}),
    ("^baseline 'own' needs a name for its row in tables, not 3", {"name": 3}),
    ("^baseline 'own' needs a name for its row in tables, not 'a.nb'", {"name": "a\nb"}),
    ("^baseline 'last' cannot be scored: it has no options", {"options": Baseline.options}),
    ("'last' cannot be scored: its options are NoneType, not a dictionary", {"options": None}),
    (
        "^baselines 'last' and 'last' have the same options: what tells them apart must be",
        {"defaults": classmethod(lambda cls, task, _: [cls(task.io), cls(task.io)])},
    ),
    ("its options cannot be written as JSON: Object of type ndarray", {"options": {"a": np.zeros(2)}}),
    ("its options cannot be written as JSON: Out of range float", {"options": {"a": np.nan}}),
    ("^baseline 'last' raises .*: ValueError: in the$", says(lambda said, tokens: int("in the\nmiddle"))),
    ("'last': predict must return an array of floating-point numbers, not NoneType", says(lambda said, tokens: None)),
    ("'last': predict must return .* not list", says(lambda said, tokens: said.tolist())),
    ("'last': predict must return .* not an array of int64", says(lambda said, tokens: said.astype(int))),
    ("'last': predict must return .* not an array of complex128", says(lambda said, tokens: said + 0j)),
    ("'last': predictions have the shape", says(lambda said, tokens: said[:, :-1])),
    ("'last': predictions have the shape", says(lambda said, tokens: said[:1, :, :-1])),
    ("'last': predicted rows must sum to 1; one is off by 1", says(lambda said, tokens: 2 * said)),
    ("'last': predictions hold NaN", says(lambda said, tokens: np.where(said > 0.5, np.nan, said))),
    ("'last': predictions hold negative", says(lambda said, tokens: said + np.array([-1, 1, 0, 0, 0]))),
    ("it writes into the tokens", says(overwrites)),
    ("it predicts something else when called again", says(lambda said, _: np.roll(said, next(CALLS), axis=2))),
    ("depends on the others in its batch", says(lambda said, _: np.broadcast_to(said.mean(0), said.shape))),
    ("depends on the others in its batch", says(carries)),
    (
        r"it sees the future: changing the tokens from (\d+) on changes the prediction of token \1$",
        says(lambda said, t: np.eye(5)[t]),
    ),
    (r"it sees the future: leaving out the tokens from \d+ on changes the prediction of token \d+$", says(waits)),
]


def test_the_good_one_is_taken(tiny: Track) -> None:
    (last,) = examined(Last, "own", tiny.task, tiny.instances("test"))
    assert last.name == "last"


@pytest.mark.parametrize(("said", "change"), BROKEN, ids=[said for said, _ in BROKEN])
def test_each_fault_is_told_in_one_line(said: str, change: dict[str, Any], tiny: Track) -> None:
    if said.startswith("^baseline 'last' raises"):
        change = {"predict": lambda self, tokens: raises()}
    with pytest.raises(UserError, match=said) as caught:
        examined(type("Broken", (Last,), change), "own", tiny.task, tiny.instances("test"))
    assert "\n" not in str(caught.value)


def raises() -> None:
    raise ValueError("in the\nmiddle")


def test_the_truth_itself_may_know_an_instance_by_its_whole(tiny: Track) -> None:
    test = tiny.instances("test")
    looks = {"anchor": "end", **says(waits)}
    assert len(examined(type("Knows", (Last,), looks), "own", tiny.task, test)) == 1


def test_vectors_are_looked_at_as_vectors(load: Callable[[dict[str, Any]], Track]) -> None:
    track = load({"task": "linear_regression", **OTHERS["linear_regression"]})
    tokens = track.instances("test").tokens
    check_predictions(np.zeros((24, 12, 2)), tokens, track.task.io)
    with pytest.raises(UserError, match=r"have the shape \(24, 12, 5\), not \(24, 12, 2\)"):
        check_predictions(np.zeros((24, 12, 5)), tokens, track.task.io)
    with pytest.raises(UserError, match="NaN or infinity"):
        check_predictions(np.full((24, 12, 2), np.inf), tokens, track.task.io)


# --- In a distribution, and as a file. ---

FILE = """
import numpy as np

import regbench


class Even(regbench.Baseline):
    name = "even"
    options = {}

    def __init__(self, vocab_size):
        self.row = np.append(np.ones(vocab_size - 1) / (vocab_size - 1), 0)

    @classmethod
    def defaults(cls, task, instances):
        return [cls(task.io.vocab_size)]

    def predict(self, tokens):
        return np.tile(self.row, (*tokens.shape, 1))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a file's content the baseline `own_even` of another distribution."""
    numbers, real = iter(range(100)), importlib.metadata.entry_points

    def call(text: str) -> None:
        module = f"own_even_{next(numbers)}_{tmp_path.name.rpartition('_')[2]}"
        (tmp_path / f"{module}.py").write_text(text)
        point = SimpleNamespace(name="own_even", value=f"{module}:Even", dist=None)

        def entry_points(**asked: str) -> Any:
            return [point] if asked.get("group") == "regbench.baselines" else real(**asked)

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    monkeypatch.syspath_prepend(str(tmp_path))
    return call


def test_the_options_of_a_dataclass_are_its_fields() -> None:
    @dataclass
    class Range:
        low: int
        high: int

    @dataclass
    class Own(regbench.Baseline):
        vocab_size: int
        separator: int
        width: float
        over: Range
        task: PFAParameters

    own = Own(5, 4, 0.5, Range(1, 2), PFAParameters(n_symbols=20))
    assert own.options == {"width": 0.5, "low": 1, "high": 2, **PFAParameters(n_symbols=20).model_dump()}
    with pytest.raises(NotImplementedError):
        _ = type("Plain", (regbench.Baseline,), {})().options


def test_a_file_is_compared_as_a_name_is(tmp_path: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "even.py").write_text(FILE)
    track = ["--track", str(tiny_file)]
    assert cli.main(["compare", "uniform", f"mine={tmp_path / 'even.py'}", f"{tmp_path / 'even.py'}:Even", *track]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()[:2] in ("2 ", "3 ")]
    assert [row[1] for row in rows] == ["mine", "even"]
    assert rows[0][2:] == [".000"] * 3
    (tmp_path / "even.py").write_text(FILE.replace("return [cls(task.io.vocab_size)]", "return []"))
    assert cli.main(["compare", "uniform", str(tmp_path / "even.py"), *track]) == 2
    assert "has no place on tiny-v1" in capsys.readouterr().err
    assert cli.main(["compare", "uniform", str(tmp_path / "odd.py"), *track]) == 2
    assert capsys.readouterr().err.endswith(f"no such file: {tmp_path / 'odd.py'}\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "even"', 'name = "3-gram"', "two baselines on tiny-v1 are called '3-gram'"),
        ('name = "even"', 'name, anchor = "even", "start"', "two baselines on tiny-v1 are the anchor 'start'"),
        (
            "        return np.tile",
            "        return np.eye(5)[tokens]\n        return np.tile",
            "'even' cannot be scored: it s",
        ),
        (
            "        return np.tile",
            "        tokens = tokens if len(tokens) < 3 else tokens[1:]\n        return np.tile",
            "baseline 'even': ",
        ),
        (
            "        return np.tile",
            "        if len(tokens) > 2:\n            raise ValueError('late')\n        return np.tile",
            "baseline 'even' raises ",
        ),
    ],
)
def test_no_command_scores_a_broken_one(
    installed: Callable[[str], None],
    tiny_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    said: str,
) -> None:
    """Nor one that is well for the two instances it is asked of first, and not for more."""
    assert old in FILE
    installed(FILE.replace(old, new))
    run = ["run", "--arch", "lstm", "--set", "d_model=8", "--track", str(tiny_file), "--out", str(tmp_path / "out")]
    for command in (run, ["baselines", str(tiny_file)], ["compare", "uniform", "own_even", "--track", str(tiny_file)]):
        assert cli.main(command) == 2, command
        (complaint,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("regbench: ")]
        assert said in complaint
    assert not (tmp_path / "out" / "seed-0").exists()


def test_a_good_one_stands_beside_the_others(
    installed: Callable[[str], None], tiny: Track, capsys: pytest.CaptureFixture[str], tiny_file: Path
) -> None:
    installed(FILE)
    test = tiny.instances("test")
    assert "even" in [baseline.name for baseline in default_baselines(tiny, test)]
    assert [baseline.name for baseline in defaults_of("own_even", tiny, test)] == ["even"]
    assert not registry.is_file("own_even")
    assert cli.main(["baselines", str(tiny_file)]) == 0
    rows = {line.split()[0]: line.split()[1:3] for line in capsys.readouterr().out.splitlines() if "±" in line}
    assert rows["even"] == rows["uniform"]
