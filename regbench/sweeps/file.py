"""The sweep file: a strict schema, and the axes of each architecture. What its cells are is said in `grid`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pydantic

from regbench.config import OF_TASK, Seed
from regbench.utils.errors import UserError, explain_validation, nearest
from regbench.utils.files import read_mapping
from regbench.utils.settings import Strict

Axes = dict[str, list[Any]]
"""Values by the name of their axis."""

_SHORT = {"train_instances": "training.train_instances"}


class Select(Strict):
    """How one configuration is chosen among several."""

    by: Literal["validation"] = "validation"
    """The split that decides. There is only one that may."""
    over: list[str] = pydantic.Field(min_length=1)
    """The axes that are tried, on seed 0; all other axes are reported."""
    settings: dict[str, Any] = pydantic.Field(default={}, alias="with")
    """Of the trials alone, e.g. fewer training tokens; `with` in the file."""


class Plot(Strict):
    """A picture of two columns of the table: a point for each row, and a line through those of an architecture."""

    x: str
    y: str
    log: Literal["", "x", "y", "xy"] = ""
    """The axes that are logarithmic."""
    by: list[str] = pydantic.Field(default=[])
    """Axes of the grid that have a line for each value."""


class SweepFile(Strict):
    track: str | list[str]
    base: dict[str, Any] = pydantic.Field(default={})
    """Settings of every run."""
    grid: Axes
    """Values by axis; `arch` is one of them."""
    options_of: dict[str, Axes] = pydantic.Field(default={})
    """Further axes by architecture; they replace those of `grid`, and settings of `base`."""
    select: Select | None = None
    """How one is chosen; without it every configuration trains all seeds and is scored."""
    plot: Plot | None = None
    seeds: list[Seed] = pydantic.Field(default=[0], min_length=1)
    """Of what is scored on the test split."""
    backend: str = "auto"
    device: str = "auto"
    threads: int | None = pydantic.Field(default=None, ge=1)
    """Of one run; by default 1, or the cores over `--jobs`."""
    gpus: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Of one run; a part of one where several runs share it. By default 1 where the device is a GPU."""

    @property
    def tracks(self) -> list[str]:
        return [self.track] if isinstance(self.track, str) else self.track

    @property
    def architectures(self) -> list[str]:
        return self.grid["arch"]

    def axes_of(self, architecture: str) -> Axes:
        """The axes of one architecture, without `arch`; its own stand in the place of common ones that set the same."""
        own = self.options_of.get(architecture, {})
        taken = {name for axis in own for name in names_in(axis)} | {"arch"}
        common = {axis: values for axis, values in self.grid.items() if taken.isdisjoint(names_in(axis))}
        return {**common, **own}

    def is_selected(self, axis: str) -> bool:
        over = self.select.over if self.select is not None else []
        return not {axis, *names_in(axis)}.isdisjoint({*over, *(_SHORT.get(name, name) for name in over)})


def names_in(axis: str) -> list[str]:
    """The settings that an axis sets, by the names that a run knows."""
    return [_SHORT.get(name.strip(), name.strip()) for name in axis.split(",")]


def settings_of(axis: str, value: Any) -> dict[str, Any]:
    """The settings that one value of an axis makes. Of several names, with commas between them, the value is a list."""
    names = names_in(axis)
    if len(names) == 1:
        return {names[0]: value}
    if not isinstance(value, list) or len(value) != len(names):
        raise UserError(f"a value of the axis '{axis}' is a list of {len(names)}, one for each name, not {value!r}")
    return dict(zip(names, value, strict=True))


def read_sweep(path: Path) -> SweepFile:
    content = read_mapping(path, "a sweep")
    with explain_validation(str(path), [*SweepFile.model_fields, *Plot.model_fields, "over", "with"]):
        sweep = SweepFile(**content)
    fault = _fault(sweep)
    if fault is not None:
        raise UserError(f"{path}: {fault}")
    return sweep


def _fault(sweep: SweepFile) -> str | None:
    if "arch" not in sweep.grid:
        return "grid has no 'arch': it says which architectures are swept"
    for where, axes in [("grid", sweep.grid), *((f"options_of.{a}", axes) for a, axes in sweep.options_of.items())]:
        for name, values in axes.items():
            if not values:
                return f"the axis {where}.{name} is empty: give its values, as in {name}: [1, 2]"
            if repeated := [v for i, v in enumerate(values) if repr(v) in map(repr, values[:i])]:
                return f"the axis {where}.{name} has the value {repeated[0]!r} twice"
    with_settings = sweep.select.settings if sweep.select is not None else {}
    for where, keys in [
        ("base", sweep.base),
        *((f"the axes of {a}", sweep.axes_of(a)) for a in sweep.architectures if isinstance(a, str)),
        *((f"options_of.{a}", axes) for a, axes in sweep.options_of.items()),
        ("select.with", with_settings),
    ]:
        names = [name for key in keys for name in names_in(key)]
        if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
            return f"{where} set '{twice}' twice: leave one out"
    fixed = {name for key in sweep.base for name in names_in(key)}
    both = next((name for axis in sweep.grid for name in names_in(axis) if name in fixed), None)
    if both is not None:
        return f"'{both}' stands in base and in grid: leave one out"
    if strange := [a for a in sweep.architectures if not isinstance(a, str)]:
        return f"grid.arch: {strange[0]!r} names no architecture"
    for architecture in sweep.options_of:
        if architecture not in sweep.architectures:
            return f"options_of.{architecture}: not in grid.arch{nearest(architecture, sweep.architectures)}"
    for what, values in (("track", sweep.tracks), ("seed", sweep.seeds)):
        if len(set(map(str, values))) < len(values) or not values:
            return f"a {what} is given twice" if values else f"no {what} is given"
    all_axes = [axis for a in sweep.architectures for axis in sweep.axes_of(a)]
    axes_known = {name for axis in all_axes for name in (axis, *names_in(axis))}
    axes_known |= {short for short, name in _SHORT.items() if name in axes_known}
    for name in sweep.select.over if sweep.select is not None else []:
        if name not in axes_known:
            return f"select.over: '{name}' is no axis of the grid{nearest(name, axes_known)}"
    if sweep.select is not None:
        chosen = {name for axis in all_axes if sweep.is_selected(axis) for name in names_in(axis)}
        moot = next((key for key in sweep.select.settings if not chosen.isdisjoint(names_in(key))), None)
        if moot is not None:
            return f"select.with sets '{moot}', which is selected over: every trial would be the same"
        of_task = next((key for key in (*chosen, *sweep.select.settings) if key.startswith(OF_TASK)), None)
        if of_task is not None:
            return f"select: '{of_task}' is of the task, and configurations of one group learn the same task"
    return None
