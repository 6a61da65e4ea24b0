"""The picture of two columns of a sweep's table, as its file asks for: such as the reach against the bytes of the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from regbench.report.content import human_bytes
from regbench.report.pictures import STYLE, line_look, save_picture
from regbench.sweeps.file import Plot, names_in
from regbench.sweeps.grid import Group, bare
from regbench.sweeps.tables import FIGURES, SPREADS, axes_of
from regbench.utils.errors import UserError, nearest

FILE = "plot.png"

Point = tuple[float, float, float, float, str]
"""x, y, the lowest and the highest seed, and what bounds a reach."""


def require_columns(plot: Plot, groups: Sequence[Group]) -> None:
    """Refuses a picture of columns that the table of a sweep will not have."""
    axes = axes_of(groups)
    metrics = [metric for group in groups for metric in group.first.track.metrics]
    for key, name, known in [
        *((key, name, [*axes, *FIGURES, *SPREADS, *metrics]) for key, name in (("x", plot.x), ("y", plot.y))),
        *(("by", name, axes) for axis in plot.by for name in names_in(axis)),
    ]:
        if name not in known:
            raise UserError(
                f"plot.{key}: '{name}' is no {'axis' if key == 'by' else 'column of the table'}{nearest(name, known)}"
            )


def draw_plot(path: Path, plot: Plot, lines: Sequence[Mapping[str, Any]]) -> None:
    """Draws the lines of a table as `picture` does; without a point there is no file."""
    figure = picture(plot, lines)
    if figure is None:
        path.unlink(missing_ok=True)
    else:
        save_picture(figure, path, 130)


def picture(plot: Plot, lines: Sequence[Mapping[str, Any]]) -> Figure | None:
    """The lines of a table, a panel for each track. A row without one of the two numbers is left out; None without a point.

    A reach that is only bounded has an arrow: down where the smallest size already fails, up where none does.
    """
    by = [name for axis in plot.by for name in names_in(axis)]
    panels: dict[str, dict[str, list[Point]]] = {}
    for line in lines:
        if (point := _point(plot, line)) is not None:
            name = " ".join([line["architecture"], *(f"{axis}={line[axis]}" for axis in by if axis in line)])
            panels.setdefault(line["track"], {}).setdefault(name, []).append(point)
    if not panels:
        return None
    names = list(dict.fromkeys(name for of in panels.values() for name in of))
    with mpl.rc_context(STYLE):
        tall = max(5.0, 0.6 + 0.165 * sum(len(name.splitlines()) for name in names))
        figure = Figure(figsize=(7.2 * len(panels), tall), layout="constrained")
        frames = figure.subplots(1, len(panels), squeeze=False)[0]
        for frame, (track, of) in zip(frames, panels.items(), strict=True):
            for name, points in of.items():
                _draw_line(frame, sorted(points), name, *line_look(names.index(name)))
            frame.set_title(track)
            _label(frame, plot)
        handles = {label: h for frame in frames for h, label in zip(*frame.get_legend_handles_labels(), strict=True)}
        figure.legend(list(handles.values()), list(handles), loc="outside right upper", frameon=False, fontsize=8)
        return figure


def _draw_line(frame: Axes, points: list[Point], name: str, colour: str, marker: str) -> None:
    frame.plot([x for x, *_ in points], [y for _, y, *_ in points], color=colour, marker=marker, label=name)
    for x, y, low, high, bound in points:
        frame.plot([x, x], [low, high], color=colour, linewidth=1.0, alpha=0.6)
        if bound:
            way, arrow = 14 if bound == ">=" else -14, {"arrowstyle": "<-", "color": colour}
            frame.annotate("", (x, y), xytext=(0, way), textcoords="offset points", arrowprops=arrow)


def _point(plot: Plot, line: Mapping[str, Any]) -> Point | None:
    x, y = _number(line, plot.x), _number(line, plot.y)
    if x is None or y is None:
        return None
    low, high = _number(line, f"{plot.y}_low"), _number(line, f"{plot.y}_high")
    bound = line.get("reach_bound", "") if plot.y == "reach" else ""
    return x, y, y if low is None else low, y if high is None else high, bound


def _label(frame: Axes, plot: Plot) -> None:
    for which, name in (("x", plot.x), ("y", plot.y)):
        ruler = frame.xaxis if which == "x" else frame.yaxis
        if which in plot.log:
            (frame.set_xscale if which == "x" else frame.set_yscale)("log", base=2)
        elif all(float(one).is_integer() for line in frame.lines for one in getattr(line, f"get_{which}data")()):
            ruler.set_major_locator(MaxNLocator(integer=True))
        ruler.set_major_formatter(
            FuncFormatter(lambda v, _, name=name: human_bytes(int(v)) if name == "state" else f"{v:g}")
        )
        ruler.set_label_text(bare(name).replace("_", " "))


def _number(line: Mapping[str, Any], column: str) -> float | None:
    value = line.get(column)
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
