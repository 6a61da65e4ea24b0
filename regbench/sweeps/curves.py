"""Curves of a sweep: the main score against every reported axis, the validation loss against every axis that was selected over.

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
from regbench.sweeps.grid import Group, Point, bare, shown, shown_axes
from regbench.sweeps.state import SweepFolder
from regbench.sweeps.tables import Chosen, Spread, axes_of, write_csv

FEWEST_VALUES = 3
"""An axis of fewer values has no curve."""

VALIDATION = "validation_loss"


@dataclass(frozen=True)
class SweepCurve:
    """One line of a panel."""

    track: str
    axis: str
    """What is varied."""
    beside: str
    """The value of a second axis, which has a panel for each, such as "n_layers=4"; empty where there is one panel."""
    metric: str
    """What is drawn: a score on the test split, or the validation loss of the trials."""
    name: str
    """The architecture, with the values of its own axes."""
    values: tuple[Any, ...]
    scores: tuple[Spread, ...]


@dataclass(frozen=True)
class _Candidate:
    """What may stand at a value of an axis: a chosen configuration or a trial."""

    point: Point
    loss: float
    scores: dict[str, Spread]


def curves_of(folder: SweepFolder, rows: Sequence[Chosen], groups: Sequence[Group]) -> list[SweepCurve]:
    """All curves of a sweep.

    An axis is an architecture's own if another architecture does not have it. A line is an architecture with one value of each
    of its own reported axes. A second shared axis has a panel for each of its values; with one architecture it has lines.
    With more shared axes, the configuration with the least validation loss stands at each value. The curves of an axis that
    was selected over show trials, by the same rules.
    """
    curves = []
    chosen = [_Candidate(r.point, r.validation.median, {m: r.score(m) for m in r.result.metrics}) for r in rows]
    losses = [(p, folder.validation_loss(c)) for g in groups for p, c in zip(g.points, g.trials, strict=False)]
    tried = [_Candidate(p, loss, {VALIDATION: Spread.of([loss])}) for p, loss in losses if loss is not None]
    reported = list(dict.fromkeys(name for group in groups for name in group.axes))
    tracks = list(dict.fromkeys(group.first.track_name for group in groups))
    for track, axis in itertools.product(tracks, axes_of(groups)):
        candidates = chosen if axis in reported else tried
        own = [c for c in candidates if c.point.track_name == track and axis in c.point.axes]
        curves += _curves(track, axis, own, [name for name in reported if name != axis])
    return [curve for curve in curves if len(curve.values) >= FEWEST_VALUES]


def _curves(track: str, axis: str, candidates: Sequence[_Candidate], others: Sequence[str]) -> list[SweepCurve]:
    """The curves against one axis; others: the other reported axes."""
    varied: dict[str, dict[str, set[str]]] = {}
    for point in (candidate.point for candidate in candidates):
        values = varied.setdefault(point.name, {name: set() for name in others if name in point.axes})
        for name in values:
            values[name].add(shown(point.axes[name]))
    shared = [
        n for n in others if all(n in of for of in varied.values()) and any(len(of[n]) > 1 for of in varied.values())
    ]
    apart = shared if len(shared) == 1 else []
    panels, in_lines = (apart, []) if len(varied) > 1 else ([], apart)
    if panels:
        candidates = [c for _, c in _in_order([(c.point.axes[panels[0]], c) for c in candidates])]
    least: dict[tuple[str, str], dict[str, _Candidate]] = {}
    for candidate in candidates:
        point = candidate.point
        own = [name for name, of in varied[point.name].items() if len(of) > 1 and name not in shared]
        beside, of_line = ({n: point.axes[n] for n in names} for names in (panels, [*own, *in_lines]))
        line = shown_axes(beside), f"{point.name} {shown_axes(of_line)}".rstrip()
        best, value = least.setdefault(line, {}), shown(point.axes[axis])
        if value not in best or candidate.loss < best[value].loss:
            best[value] = candidate
    curves = []
    for (panel, name), found in least.items():
        pairs = _in_order([(candidate.point.axes[axis], candidate) for candidate in found.values()])
        for metric in pairs[0][1].scores:
            scores = tuple(candidate.scores[metric] for _, candidate in pairs)
            curves.append(SweepCurve(track, axis, panel, metric, name, tuple(value for value, _ in pairs), scores))
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
                    "beside": curve.beside,
                    "metric": curve.metric,
                    "predictor": curve.name,
                    "value": shown(value),
                    **{name: round(figure, 6) for name, figure in figures.items()},
                }
            )
    for track, metric in dict.fromkeys((c.track, c.metric) for c in curves):
        for name, height in _baselines(track, metric, rows).items():
            lines.append({"track": track, "metric": metric, "predictor": name, "median": round(height, 6)})
    columns = ["track", "axis", "beside", "metric", "predictor", "value", "median", "low", "high"]
    write_csv(folder / "curves.csv", columns, lines)
    _draw(folder / "curves.png", curves, rows)


def _baselines(track: str, metric: str, rows: Sequence[Chosen]) -> dict[str, float]:
    """The score of each baseline of a track, but for the one that knows nothing. None where an axis is of the task."""
    own = {row.point.track.name: row.result.baselines for row in rows if row.point.track_name == track}
    found = own.get(track, {}) if len(own) == 1 else {}
    return {name: b.scores[metric].value for name, b in found.items() if metric in b.scores and name != "uniform"}


def _draw(path: Path, curves: Sequence[SweepCurve], rows: Sequence[Chosen]) -> None:
    """A panel for each track, axis and value beside it: of the scores only the main one.

    Panels that differ in the value beside the axis stand together, three to a row. Those of a row have the same scale.
    """
    main = {row.point.track_name: row.result.track.main_score for row in rows}
    panels: dict[tuple[str, str, str], dict[str, list[SweepCurve]]] = {}
    for c in curves:
        if c.metric in (VALIDATION, main.get(c.track, VALIDATION)):
            panels.setdefault((c.track, c.axis, c.metric), {}).setdefault(c.beside, []).append(c)
    names = list(dict.fromkeys(curve.name for curve in curves))
    alone = all(len(of) == 1 for of in panels.values())
    if alone:
        layout = _in_rows([own for of in panels.values() for own in of.values()], 2)
    else:
        layout = [across for of in panels.values() for across in _in_rows(list(of.values()), 3)]
    width = max(map(len, layout))
    with drawing(path, ((7.2 if alone else 5.4) * width, 4.4 * len(layout))) as figure:
        frames = figure.subplots(len(layout), width, squeeze=False, sharey="none" if alone else "row")
        for across, places in zip(layout, frames, strict=True):
            for own, frame in zip(across, places, strict=False):
                draw_panel(frame, own, names, _baselines(own[0].track, own[0].metric, rows), alone or own is across[-1])
                frame.set_title(_title(own[0], rows))
            for frame in places[len(across) :]:
                frame.set_axis_off()


def _in_rows(panels: list[list[SweepCurve]], most: int) -> list[list[list[SweepCurve]]]:
    return [panels[at : at + most] for at in range(0, len(panels), most)]


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


def _title(curve: SweepCurve, rows: Sequence[Chosen]) -> str:
    """What a curve's panel shows, and which way is better."""
    where = ", ".join(part for part in (curve.track, curve.beside) if part)
    if curve.metric == VALIDATION:
        return f"{where}: validation loss of the trials ↓"
    metric = next(row.point.track for row in rows if row.point.track_name == curve.track).metrics[curve.metric]
    return f"{where}: {metric.heading}"
