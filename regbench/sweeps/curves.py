"""Curves of a sweep: the main score against every reported axis, the validation loss against every axis that was selected over.

The form is that of ICLL Figure 3: a line for each architecture, baselines as straight lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from regbench.report.palette import COLOURS, DASHES, MARKERS
from regbench.report.pictures import STYLE, save_picture
from regbench.sweeps.grid import Group, Point, shown
from regbench.sweeps.state import SweepFolder
from regbench.sweeps.tables import Row, Spread, axes_of, write_csv

FEWEST_VALUES = 3
"""An axis of fewer values has no curve."""

VALIDATION = "validation_loss"


@dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Attributes:
        track: the track's name.
        axis: what is varied.
        metric: what is drawn: a score on the test split, or the validation loss of the trials.
        architecture: whose it is.
        values: of the axis, in order.
        scores: at each value.
    """

    track: str
    axis: str
    metric: str
    architecture: str
    values: tuple[Any, ...]
    scores: tuple[Spread, ...]


def curves_of(folder: SweepFolder, rows: Sequence[Row], groups: Sequence[Group]) -> list[Curve]:
    """All curves of a sweep.

    At each value stands the configuration with the least validation loss among those that have it.
    """
    curves = []
    tracks = list(dict.fromkeys(group.first.track.name for group in groups))
    tried = [(p, folder.validation_loss(c)) for g in groups for p, c in zip(g.points, g.trials, strict=False)]
    for track, axis in itertools.product(tracks, axes_of(groups)):
        own = [row for row in rows if row.point.track.name == track and axis in row.group.axes]
        for architecture in dict.fromkeys(row.point.name for row in own):
            best: dict[str, Row] = {}
            for row in own:
                value = shown(row.point.axes[axis])
                if row.point.name == architecture and (
                    value not in best or row.validation.median < best[value].validation.median
                ):
                    best[value] = row
            pairs = _in_order([(row.point.axes[axis], row) for row in best.values()])
            for metric in pairs[0][1].result.metrics if pairs else []:
                scores = tuple(row.score(metric) for _, row in pairs)
                curves.append(Curve(track, axis, metric, architecture, tuple(v for v, _ in pairs), scores))
        curves += _of_trials(track, axis, [(p, x) for p, x in tried if p.track.name == track], groups)
    return [curve for curve in curves if len(curve.values) >= FEWEST_VALUES]


def _of_trials(
    track: str, axis: str, tried: Sequence[tuple[Point, float | None]], groups: Sequence[Group]
) -> list[Curve]:
    """Curves of the validation loss against an axis that was selected over."""
    reported = {name for group in groups for name in group.axes}
    curves = []
    for architecture in dict.fromkeys(point.name for point, _ in tried):
        least: dict[str, tuple[Any, float]] = {}
        for point, loss in tried:
            if point.name == architecture and axis in point.axes and axis not in reported and loss is not None:
                value = shown(point.axes[axis])
                if value not in least or loss < least[value][1]:
                    least[value] = (point.axes[axis], loss)
        pairs = _in_order(list(least.values()))
        scores = tuple(Spread.of([loss]) for _, loss in pairs)
        curves.append(Curve(track, axis, VALIDATION, architecture, tuple(v for v, _ in pairs), scores))
    return curves


def _in_order(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """By value where values are numbers, else as they are."""
    return sorted(pairs, key=lambda pair: pair[0]) if all(_is_number(value) for value, _ in pairs) else pairs


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_curves(folder: Path, curves: Sequence[Curve], rows: Sequence[Row]) -> None:
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
                    "predictor": curve.architecture,
                    "value": shown(value),
                    **{name: round(figure, 6) for name, figure in figures.items()},
                }
            )
    for track, metric in dict.fromkeys((c.track, c.metric) for c in curves):
        for name, height in _baselines(track, metric, rows).items():
            lines.append({"track": track, "metric": metric, "predictor": name, "median": round(height, 6)})
    write_csv(folder / "curves.csv", ["track", "axis", "metric", "predictor", "value", "median", "low", "high"], lines)
    _draw(folder / "curves.png", curves, rows)


def _baselines(track: str, metric: str, rows: Sequence[Row]) -> dict[str, float]:
    """The score of each baseline of a track, but for the one that knows nothing at all."""
    found = next((row.result.baselines for row in rows if row.point.track.name == track), {})
    return {name: b.scores[metric].value for name, b in found.items() if metric in b.scores and name != "uniform"}


def _draw(path: Path, curves: Sequence[Curve], rows: Sequence[Row]) -> None:
    """A panel for each track and axis: of the scores only the main one."""
    main = {row.point.track.name: row.result.track.main_score for row in rows}
    panels = list(
        dict.fromkeys(
            (c.track, c.axis, c.metric) for c in curves if c.metric in (VALIDATION, main.get(c.track, VALIDATION))
        )
    )
    architectures = list(dict.fromkeys(curve.architecture for curve in curves))
    with mpl.rc_context(STYLE):
        across = min(2, len(panels))
        down = -(-len(panels) // across)
        figure = Figure(figsize=(7.2 * across, 4.4 * down), layout="constrained")
        frames = list(figure.subplots(down, across, squeeze=False).flat)
        for frame, panel in zip(frames, panels, strict=False):
            own = [c for c in curves if (c.track, c.axis, c.metric) == panel]
            _panel(frame, panel, own, architectures, _baselines(panel[0], panel[2], rows), _title(panel, rows))
        for frame in frames[len(panels) :]:
            frame.set_axis_off()
        save_picture(figure, path, 130)


def _panel(
    frame: Axes,
    panel: tuple[str, str, str],
    curves: Sequence[Curve],
    architectures: list[str],
    lines: dict[str, float],
    title: str,
) -> None:
    axis = panel[1]
    values = _unique([value for curve in curves for value in curve.values])
    numbers = all(map(_is_number, values))
    places = {shown(v): (v if numbers else i) for i, v in enumerate(values)}
    for curve in curves:
        which = architectures.index(curve.architecture)
        colour, marker = COLOURS[which % len(COLOURS)], MARKERS[which % len(MARKERS)]
        at = [places[shown(value)] for value in curve.values]
        frame.plot(at, [s.median for s in curve.scores], color=colour, marker=marker, label=curve.architecture)
        frame.fill_between(at, [s.low for s in curve.scores], [s.high for s in curve.scores], color=colour, alpha=0.15)
    highest = sorted(lines.items(), key=lambda line: -line[1])
    for (name, height), dashes in zip(highest, DASHES * len(lines), strict=False):
        frame.axhline(height, color="#777777", linestyle=dashes, linewidth=1.0, label=name)
    if numbers and min(values) > 0 and max(values) >= 8 * min(values):
        frame.set_xscale("log")
    frame.set_xticks(list(places.values()), list(places))
    frame.xaxis.set_minor_locator(NullLocator())
    frame.set_xlabel(axis.removeprefix("training.").replace("train_", "training ").replace("_", " "))
    frame.set_title(title)
    frame.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _title(panel: tuple[str, str, str], rows: Sequence[Row]) -> str:
    """What a panel shows, and which way is better."""
    track, _, name = panel
    if name == VALIDATION:
        return f"{track}: validation loss of the trials ↓"
    metric = next(row.point.track for row in rows if row.point.track.name == track).metrics[name]
    return f"{track}: {metric.heading}"


def _unique(values: Sequence[Any]) -> list[Any]:
    """Each value once, by how it is shown: lists cannot be keys."""
    return list({shown(value): value for value in values}.values())
