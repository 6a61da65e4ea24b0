"""Cells of HTML tables and the words of their heads, as the page of a run and that of the board share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regbench.metrics.metric import Metric
from regbench.report.curves import points
from regbench.report.html import text
from regbench.report.words import label
from regbench.results import Curve, ScoreRecord

_DASHES = ("7 3", "2 2.5", "8 3 2 3", "5 2 1.5 2 1.5 2", "12 4")
_COLOURS = 6
"""Of the seven of `base.css` the first is the model's own."""


def metric_words(metric: Metric, axis: str = "") -> dict[str, Any]:
    """What a script needs to speak of a metric. axis: what its curves are by."""
    return {
        "key": metric.name,
        "label": metric.label,
        "arrow": metric.arrow,
        "higher": metric.higher_is_better,
        "meaning": f"{metric.meaning} {metric.direction.capitalize()}.",
        "limits": [min(limit, 1e9) for limit in metric.limits],  # JSON has no infinity
        "log": metric.log_axis,
        "axis": axis,
    }


def score_cell(record: ScoreRecord) -> str:
    """A score and its error."""
    return f'<td data-value="{record.value:.6f}">{record.value:.3f} <span class="err">± {record.stderr:.3f}</span></td>'


def way_cell(way: float | None) -> str:
    """The way to the truth, with a bar; — where the track has no such anchors."""
    if way is None:
        return '<td data-value="">—</td>'
    bar = f"{100 * min(1.0, max(0.0, way)):.0f}%"
    return f'<td class="way" data-value="{way:.6f}" style="--share:{bar}"><span>{100 * way:.0f} %</span></td>'


def about_way(main_score: str, anchors: Mapping[str | None, str]) -> str:
    """What the column "way" counts. anchors: the names of the baselines at its "start" and its "end"."""
    return f"By {label(main_score)}: 0 % at {anchors.get('start', '—')}, 100 % at {anchors.get('end', '—')}."


def head(name: str, meaning: str) -> str:
    """A column's head, with what it means."""
    return f'<th scope="col" title="{text(meaning)}">{text(name)}</th>'


def baseline_series(curves: Mapping[str, Mapping[str, Curve]]) -> list[dict[str, Any]]:
    """A dashed line for each baseline, in order: name and by metric its curve.

    Colours and dashes go by the place of the name among the sorted names, so that a track's baselines look alike on every page.
    """
    ordered = sorted(name for name in curves if name != "oracle")
    found = []
    for name, by_metric in curves.items():
        place = ordered.index(name) if name in ordered else -1
        style = {"colour": 1 + place % _COLOURS, "dash": _DASHES[place % len(_DASHES)]}
        found.append(
            {
                "name": name,
                **(style if place >= 0 else {"colour": _COLOURS, "dash": ""}),
                "width": 1.4,
                "curves": {metric: [points(curve)] for metric, curve in by_metric.items()},
            }
        )
    return found
