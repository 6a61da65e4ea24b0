"""Which curves a sweep has: what is a line, what is a panel, and where the least validation loss decides."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from regbench.sweeps.curves import VALIDATION, SweepCurve, curves_of, write_curves
from regbench.sweeps.grid import Cell, Group, Point
from regbench.sweeps.state import SweepFolder
from regbench.sweeps.tables import Chosen, Spread

TRACK = SimpleNamespace(name="t", metrics={"accuracy": SimpleNamespace(heading="accuracy ↑")})


def point(architecture: str, **axes: Any) -> Point:
    any_: Any = None
    return Point(cast(Any, TRACK), "t", architecture, object, axes, {}, any_, any_, {"axes": axes})


def row(architecture: str, loss: float, score: float, **axes: Any) -> Chosen:
    result: Any = SimpleNamespace(
        metrics=("accuracy",),
        seeds=[SimpleNamespace(scores={"accuracy": SimpleNamespace(value=score)})],
        track=SimpleNamespace(main_score="accuracy"),
        baselines={"unigram": SimpleNamespace(scores={"accuracy": SimpleNamespace(value=0.5)})},
    )
    own = point(architecture, **axes)
    return Chosen(Group((own,), (), (0,), axes), own, result, Spread.of([loss]), Path())


def size_of(picture: Path) -> tuple[int, int]:
    """Pixels across and down, from the header of a PNG."""
    across, down = struct.unpack(">II", picture.read_bytes()[16:24])
    return across, down


def curves(rows: list[Chosen]) -> dict[tuple[str, str, str], list[float]]:
    """Medians by axis, panel and line."""
    found = curves_of(cast(SweepFolder, None), rows, [one.group for one in rows])
    return {(c.axis, c.beside, c.name): [score.median for score in c.scores] for c in found}


def test_a_panel_for_each_value_of_the_other_axis_and_a_line_for_an_architectures_own() -> None:
    """Nothing is chosen: each of the points is on a curve. Values and panels are in order, whatever the file's is."""
    rows = [
        row(arch, 1.0, width + layers / 10 + len(heads) / 100, width=width, layers=layers, **own)
        for arch, variants in (("lstm", [()]), ("gla", [(), (1, 2)]))
        for heads in variants
        for own in [{"heads": list(heads)} if arch == "gla" else {}]
        for layers in (2, 1)
        for width in (3, 1, 2)
    ]
    found = curves(rows)
    assert list(found) == [
        ("width", f"layers={layers}", line) for layers in (1, 2) for line in ("lstm", "gla heads=[]", "gla heads=[1,2]")
    ], "layers has two values, and so no curve"
    assert found["width", "layers=2", "lstm"] == pytest.approx([1.2, 2.2, 3.2])
    assert found["width", "layers=1", "gla heads=[1,2]"] == pytest.approx([1.12, 2.12, 3.12])


def test_of_more_than_two_axes_the_least_validation_loss_is_shown() -> None:
    rows = [
        row(arch, loss=layers * rate, score=layers + rate, width=width, layers=layers, rate=rate)
        for arch in ("lstm", "gla")
        for width in (1, 2, 3)
        for layers in (1, 2)
        for rate in (0.5, 0.25)
    ]
    assert curves(rows) == {("width", "", arch): [1.25] * 3 for arch in ("lstm", "gla")}


def test_with_one_architecture_the_other_axis_has_lines() -> None:
    rows = [row("lstm", 1.0, width * rate, width=width, rate=rate) for width in (1, 2, 3) for rate in (0.5, 2.0)]
    assert curves(rows) == {
        ("width", "", "lstm rate=0.5"): [0.5, 1.0, 1.5],
        ("width", "", "lstm rate=2"): [2.0, 4.0, 6.0],
    }


def test_an_axis_of_one_value_is_in_no_name() -> None:
    rows = [row("lstm", 1.0, width, width=width, rate=0.5) for width in (1, 2, 3)]
    assert curves(rows) == {("width", "", "lstm"): [1, 2, 3]}


def test_trials_have_a_line_for_each_group_and_the_best_of_what_else_was_tried() -> None:
    groups = []
    for start in (True, False):
        points = tuple(point("gla", rate=rate, heads=heads, start=start) for rate in (1, 2, 3) for heads in (4, 8))
        groups.append(Group(points, tuple(Cell(one, 0) for one in points), (0,), {"start": start}))
    folder: Any = SimpleNamespace(
        validation_loss=lambda cell: cell.point.axes["rate"] + cell.point.axes["heads"] + cell.point.axes["start"]
    )
    assert [(c.axis, c.metric, c.name, [s.median for s in c.scores]) for c in curves_of(folder, [], groups)] == [
        ("rate", VALIDATION, "gla start=true", [6, 7, 8]),
        ("rate", VALIDATION, "gla start=false", [5, 6, 7]),
    ]


@pytest.mark.ci
def test_the_panels_of_an_axis_stand_side_by_side(tmp_path: Path) -> None:
    rows = [
        row(arch, 1.0, 0.5, width=width, layers=layers)
        for arch in ("lstm", "gla")
        for width in (1, 2, 3, 4)
        for layers in (1, 2, 4)
    ]
    made: list[SweepCurve] = curves_of(cast(SweepFolder, None), rows, [one.group for one in rows])
    write_curves(tmp_path, made, rows)
    wide, high = size_of(tmp_path / "curves.png")
    write_curves(tmp_path, [c for c in made if c.axis == "layers"], rows)  # four panels: three and one
    assert size_of(tmp_path / "curves.png") == pytest.approx((wide, high * 2 / 3), rel=0.1)
    write_curves(tmp_path, [c for c in made if c.axis == "width"], rows)  # three
    assert size_of(tmp_path / "curves.png") == pytest.approx((wide, high / 3), rel=0.1)
