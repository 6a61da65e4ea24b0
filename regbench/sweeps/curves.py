"""Curves of a sweep: the main score against every reported axis.

The form is that of ICLL Figure 3: a line for each architecture, baselines as straight lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from regbench.report.pictures import DASHES, drawing, line_look
from regbench.sweeps.grid import Group, bare, shown, shown_axes
from regbench.sweeps.tables import Chosen, Spread
from regbench.utils.files import write_rows

FEWEST_VALUES = 3
"""An axis of fewer values has no curve."""


@dataclass(frozen=True)
class SweepCurve:
    """A score on the test split against an axis; `name` is the architecture, with the values of other axes."""

    track: str
    axis: str
    metric: str
    name: str
    values: tuple[Any, ...]
    scores: tuple[Spread, ...]


def curves_of(rows: Sequence[Chosen], groups: Sequence[Group]) -> list[SweepCurve]:
    """All curves of a sweep, against each reported axis.

    An axis is an architecture's own if another architecture does not have it. A line is an architecture with one value of each
    of its own axes, and of the other shared axis if there is one. With more shared axes, the configuration with the least
    validation loss stands at each value.
    """
    reported = list(dict.fromkeys(name for group in groups for name in group.axes))
    tracks = list(dict.fromkeys(group.first.track_name for group in groups))
    curves = []
    for track, axis in itertools.product(tracks, reported):
        own = [row for row in rows if row.point.track_name == track and axis in row.point.axes]
        curves += _curves(track, axis, own, [name for name in reported if name != axis])
    return [curve for curve in curves if len(curve.values) >= FEWEST_VALUES]


def _curves(track: str, axis: str, rows: Sequence[Chosen], others: Sequence[str]) -> list[SweepCurve]:
    """The curves against one axis; others: the other reported axes."""
    varied: dict[str, dict[str, set[str]]] = {}
    for point in (row.point for row in rows):
        values = varied.setdefault(point.name, {name: set() for name in others if name in point.axes})
        for name in values:
            values[name].add(shown(point.axes[name]))
    shared = [
        n for n in others if all(n in of for of in varied.values()) and any(len(of[n]) > 1 for of in varied.values())
    ]
    least: dict[str, dict[str, Chosen]] = {}
    for row in rows:
        axes, of = row.point.axes, varied[row.point.name]
        apart = [
            name for name in of if (name in shared and len(shared) == 1) or (len(of[name]) > 1 and name not in shared)
        ]
        line, value = f"{row.point.name} {shown_axes({n: axes[n] for n in apart})}".rstrip(), shown(axes[axis])
        best = least.setdefault(line, {})
        if value not in best or row.validation.median < best[value].validation.median:
            best[value] = row
    curves = []
    for line, found in least.items():
        pairs = _in_order([(row.point.axes[axis], row) for row in found.values()])
        for metric in pairs[0][1].result.metrics:
            scores = tuple(row.score(metric) for _, row in pairs)
            curves.append(SweepCurve(track, axis, metric, line, tuple(value for value, _ in pairs), scores))
    return curves


def _in_order(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """By value where values are numbers, else as they are."""
    return sorted(pairs, key=lambda pair: pair[0]) if all(_is_number(value) for value, _ in pairs) else pairs


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_curves(folder: Path, curves: Sequence[SweepCurve], rows: Sequence[Chosen]) -> None:
    """Writes `curves.csv` and `curves.png`; where no axis has a curve, neither. Those of an earlier form of the sweep go."""
    if not curves:
        for earlier in ("curves.csv", "curves.png"):
            (folder / earlier).unlink(missing_ok=True)
        return
    lines: list[dict[str, Any]] = []
    for curve in curves:
        for value, score in zip(curve.values, curve.scores, strict=True):
            figures = {"median": score.median, "low": score.low, "high": score.high}
            lines.append(
                {
                    "track": curve.track,
                    "axis": curve.axis,
                    "metric": curve.metric,
                    "predictor": curve.name,
                    "value": shown(value),
                    **{name: round(figure, 6) for name, figure in figures.items()},
                }
            )
    for track, metric in dict.fromkeys((c.track, c.metric) for c in curves):
        for name, height in _baselines(track, metric, rows).items():
            lines.append({"track": track, "metric": metric, "predictor": name, "median": round(height, 6)})
    columns = ["track", "axis", "metric", "predictor", "value", "median", "low", "high"]
    write_rows(folder / "curves.csv", columns, ([line.get(name, "") for name in columns] for line in lines))
    _draw(folder / "curves.png", curves, rows)


def _baselines(track: str, metric: str, rows: Sequence[Chosen]) -> dict[str, float]:
    """The score of each baseline of a track, but for the one that knows nothing. None where an axis is of the task."""
    own = {row.point.track.name: row.result.baselines for row in rows if row.point.track_name == track}
    found = own.get(track, {}) if len(own) == 1 else {}
    return {name: b.scores[metric].value for name, b in found.items() if metric in b.scores and name != "uniform"}


def _draw(path: Path, curves: Sequence[SweepCurve], rows: Sequence[Chosen]) -> None:
    """A panel of the main score for each track and axis, two to a row."""
    tracks = {row.point.track_name: row.point.track for row in rows}
    panels: dict[tuple[str, str], list[SweepCurve]] = {}
    for c in curves:
        if c.metric == tracks[c.track].definition.main_score:
            panels.setdefault((c.track, c.axis), []).append(c)
    names, high = list(dict.fromkeys(curve.name for curve in curves)), -(-len(panels) // 2)
    width = min(2, len(panels))
    with drawing(path, (7.2 * width, 4.4 * high)) as figure:
        frames = list(figure.subplots(high, width, squeeze=False).flat)
        for own, frame in zip(panels.values(), frames, strict=False):
            draw_panel(frame, own, names, _baselines(own[0].track, own[0].metric, rows), legend=True)
            frame.set_title(f"{own[0].track}: {tracks[own[0].track].metrics[own[0].metric].heading}")
        for frame in frames[len(panels) :]:
            frame.set_axis_off()


def draw_panel(
    frame: Axes, curves: Sequence[SweepCurve], names: list[str], lines: dict[str, float], legend: bool
) -> None:
    """Draws the curves of a panel.

    `names` are of all curves of the picture and give each its colour; `lines` are the heights of baselines.
    """
    values = list({shown(value): value for curve in curves for value in curve.values}.values())  # lists cannot be keys
    numbers = all(map(_is_number, values))
    places = {shown(v): (v if numbers else i) for i, v in enumerate(values)}
    for curve in curves:
        colour, marker = line_look(names.index(curve.name))
        at = [places[shown(value)] for value in curve.values]
        frame.plot(at, [s.median for s in curve.scores], color=colour, marker=marker, label=curve.name)
        frame.fill_between(at, [s.low for s in curve.scores], [s.high for s in curve.scores], color=colour, alpha=0.15)
    highest = sorted(lines.items(), key=lambda line: -line[1])
    for (name, height), dashes in zip(highest, DASHES * len(lines), strict=False):
        frame.axhline(height, color="#777777", linestyle=dashes, linewidth=1.0, label=name)
    if numbers and min(values) > 0 and max(values) >= 8 * min(values):
        frame.set_xscale("log")
    frame.set_xticks(list(places.values()), list(places))
    frame.xaxis.set_minor_locator(NullLocator())
    frame.set_xlabel(bare(curves[0].axis).replace("train_", "training ").replace("_", " "))
    if legend:
        frame.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
