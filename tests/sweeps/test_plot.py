"""Axes over parameters of the task, and the picture of two columns of the table."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.axes import Axes

from regbench.report.pictures import line_look
from regbench.sweeps.file import Plot
from regbench.sweeps.plot import draw_plot, picture
from regbench.sweeps.sweep import Sweep
from regbench.utils.errors import UserError
from tests.helpers.sweeps import Heard, InProcess

PAIRS = {
    "name": "few-pairs-v1",
    "task": "recall_pairs",
    "parameters": {"sizes": [1, 2], "beyond": [4], "n_keys": 4, "n_values": 4, "n_questions": 2},
    "splits": {"train": 40, "validation": 8, "test": 8, "seed": 0},
    "budget": {"train_tokens": 1500},
    "main_score": "area",
}


def sweep_of(folder: Path, **changes: Any) -> Sweep:
    (folder / "pairs.yaml").write_text(yaml.safe_dump(PAIRS))
    content = {
        "track": str(folder / "pairs.yaml"),
        "base": {"n_layers": 1, "training.batch_size": 8, "training.evaluations": 2},
        "grid": {"arch": ["lstm"], "d_model": [8, 16], "task.n_keys": [4, 6, 8]},
        "plot": {"x": "state", "y": "reach", "log": "x", "by": ["task.n_keys"]},
    } | changes
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
    return Sweep.read(folder / "sweep.yaml")


def test_an_axis_over_a_parameter_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is a track of its own; the value that the file has is the file's track. The table has state and reach."""
    sweep = sweep_of(tmp_path)
    names = {(g.first.axes["task.n_keys"], g.first.track.name) for g in sweep.groups}
    assert names == {(4, "few-pairs-v1"), (6, "few-pairs-n-keys-6-v1"), (8, "few-pairs-n-keys-8-v1")}
    assert {g.first.track.task.parameters.model_dump()["n_keys"] for g in sweep.groups} == {4, 6, 8}
    assert sweep.groups[1].first.config((0,)).track == f"{tmp_path / 'pairs.yaml'}?n_keys=6"
    assert sweep.groups[1].label == "lstm d_model=8 n_keys=6"
    monkeypatch.setattr(Sweep, "_engine", lambda *_: InProcess())
    folder = sweep.run(Heard(), out=tmp_path / "out").folder
    with open(folder / "table.csv", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [(row["track"], row["d_model"], row["task.n_keys"]) for row in table] == [
        ("few-pairs-v1", width, keys) for width in ("8", "16") for keys in ("4", "6", "8")
    ]
    assert [row["state"] for row in table] == ["64"] * 3 + ["128"] * 3, "h and c of one layer in float32"
    assert all((row["reach_bound"], row["reach"]) == ("<", "1.0") for row in table), (
        "nothing is learned in 1,500 tokens"
    )
    with open(folder / "curves.csv", encoding="utf-8") as file:
        curves = list(csv.DictReader(file))
    assert {row["axis"] for row in curves} == {"task.n_keys"}, "a baseline has another score at each value, so no line"
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_whole_numbers_have_whole_ticks() -> None:
    lines = [{"architecture": "lstm", "track": "t", "n_layers": n, "area": n / 8} for n in (1, 2, 3)]
    figure = picture(Plot(x="n_layers", y="area"), lines)
    assert figure is not None
    (frame,) = figure.axes
    assert all(float(tick).is_integer() for tick in frame.get_xticks())
    assert not all(float(tick).is_integer() for tick in frame.get_yticks())


def test_lines_are_told_apart() -> None:
    assert len({line_look(which) for which in range(49)}) == 49


def test_what_the_picture_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line through the points of an architecture in the order of x, seeds as bars, and arrows where a reach is a bound."""
    drawn: list[tuple[list[float], list[float]]] = []
    arrows: list[tuple[tuple[float, float], float]] = []
    plot, scales = Axes.plot, []
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **more: (drawn.append((x, y)), plot(self, x, y, **more))[1])
    monkeypatch.setattr(Axes, "annotate", lambda _, __, xy, xytext, **___: arrows.append((xy, xytext[1])))
    monkeypatch.setattr(Axes, "set_xscale", lambda *_, **__: scales.append("x"))
    monkeypatch.setattr(Axes, "set_yscale", lambda *_, **__: scales.append("y"))
    rows = [
        {
            "track": "t",
            "architecture": "a",
            "state": 400,
            "reach": 64.0,
            "reach_low": 30.0,
            "reach_high": 64.0,
            "reach_bound": ">=",
        },
        {
            "track": "t",
            "architecture": "a",
            "state": 100,
            "reach": 2.0,
            "reach_low": 2.0,
            "reach_high": 3.0,
            "reach_bound": "<",
        },
        {
            "track": "t",
            "architecture": "b",
            "state": None,
            "reach": 9.0,
            "reach_low": 9.0,
            "reach_high": 9.0,
            "reach_bound": "",
        },
    ]
    draw_plot(tmp_path / "plot.png", Plot(x="state", y="reach", log="xy"), rows)
    assert drawn == [([100.0, 400.0], [2.0, 64.0]), ([100.0, 100.0], [2.0, 3.0]), ([400.0, 400.0], [30.0, 64.0])]
    assert [(at, way > 0) for at, way in arrows] == [((100.0, 2.0), False), ((400.0, 64.0), True)]
    assert scales == ["x", "y"]
    draw_plot(tmp_path / "plot.png", Plot(x="state", y="accuracy"), rows)
    assert not (tmp_path / "plot.png").exists(), "no row has both numbers"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plot": {"x": "sate", "y": "reach"}}, "plot.x: 'sate' is no column of the table; did you mean 'state'?"),
        ({"plot": {"x": "state", "y": "accuracy"}}, "plot.y: 'accuracy' is no column of the table"),
        (
            {"plot": {"x": "state", "y": "reach", "by": ["d_modle"]}},
            "plot.by: 'd_modle' is no axis; did you mean 'd_model'?",
        ),
        ({"plot": {"x": "state", "y": "reach", "log": "z"}}, "plot.log: input should be"),
        ({"plot": {"x": "state"}}, "'plot.y' is missing"),
        (
            {"select": {"over": ["task.n_keys"]}},
            "select: 'task.n_keys' is of the task, and configurations of one group learn the same task",
        ),
        (
            {"select": {"over": ["d_model"], "with": {"task.n_values": 8}}, "plot": None},
            "select: 'task.n_values' is of the task, and configurations of one group learn the same task",
        ),
        ({"base": {"task.n_kyes": 3}}, "unknown key 'n_kyes'; did you mean 'n_keys'?"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        sweep_of(tmp_path, **changes)
    assert message in str(caught.value)
