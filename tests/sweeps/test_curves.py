"""Which curves a sweep has: what is a line, what is a panel, and where the least validation loss decides."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from regbench.sweeps.curves import curves_of
from regbench.sweeps.grid import Group, Point
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


def curves(rows: list[Chosen]) -> dict[tuple[str, str], list[float]]:
    """Medians by axis and line."""
    found = curves_of(rows, [one.group for one in rows])
    return {(c.axis, c.name): [score.median for score in c.scores] for c in found}


def test_a_line_for_each_value_of_the_other_axis_and_of_an_architectures_own() -> None:
    """Nothing is chosen: each of the points is on a curve. Values are in order, whatever the file's is."""
    rows = [
        row(arch, 1.0, width + layers / 10 + len(heads) / 100, width=width, layers=layers, **own)
        for arch, variants in (("lstm", [()]), ("gla", [(), (1, 2)]))
        for heads in variants
        for own in [{"heads": list(heads)} if arch == "gla" else {}]
        for layers in (2, 1)
        for width in (3, 1, 2)
    ]
    found = curves(rows)
    assert set(found) == {
        ("width", f"{arch} layers={layers}{heads}")
        for layers in (1, 2)
        for arch, heads in (("lstm", ""), ("gla", " heads=[]"), ("gla", " heads=[1,2]"))
    }, "layers has two values, and so no curve"
    assert found["width", "lstm layers=2"] == pytest.approx([1.2, 2.2, 3.2])
    assert found["width", "gla layers=1 heads=[1,2]"] == pytest.approx([1.12, 2.12, 3.12])


def test_of_more_than_two_axes_the_least_validation_loss_is_shown() -> None:
    rows = [
        row(arch, loss=layers * rate, score=layers + rate, width=width, layers=layers, rate=rate)
        for arch in ("lstm", "gla")
        for width in (1, 2, 3)
        for layers in (1, 2)
        for rate in (0.5, 0.25)
    ]
    assert curves(rows) == {("width", arch): [1.25] * 3 for arch in ("lstm", "gla")}


def test_an_axis_of_one_value_is_in_no_name() -> None:
    rows = [row("lstm", 1.0, width, width=width, rate=0.5) for width in (1, 2, 3)]
    assert curves(rows) == {("width", "lstm"): [1, 2, 3]}
