"""What tables and charts show of a result: rows, columns and curves. Pictures, pages and the terminal share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

from regbench.metrics.metric import METRICS, Metric, Metrics
from regbench.results import ArchitectureRecord, Curve, Result, ScoreRecord, normalized_scores
from regbench.tracks import load_track, track_names

_DASHES = ("7 3", "2 2.5", "8 3 2 3", "5 2 1.5 2 1.5 2", "12 4")
_COLOURS = 6
"""`base.css` has seven. The first is the model's own."""


@dataclass(frozen=True)
class ResultRow:
    """One predictor in a table."""

    name: str
    scores: Mapping[str, ScoreRecord]
    normalized: float | None  # by the main score, 0 at chance and 1 at the oracle. None where the track lacks one
    # "model" is what the run is about: its only seed, or the mean of several. "seed" is one of several seeds
    kind: Literal["baseline", "seed", "model"]


def score_rows(result: Result, metrics: Metrics) -> list[ResultRow]:
    """The model among the baselines, best first by the main score. Of several seeds: each of them, and their mean."""
    main, name = result.track.main_score, result.architecture.name
    rows: list[tuple[str, Mapping[str, ScoreRecord], Literal["baseline", "seed", "model"]]]
    rows = [(baseline, record.scores, "baseline") for baseline, record in result.baselines.items()]
    if len(result.seeds) == 1:
        rows.append((name, result.seeds[0].scores, "model"))
    else:
        rows += [(f"{name}, seed {seed.seed}", seed.scores, "seed") for seed in result.seeds]
        rows.append((f"{name}, mean", {metric: result.score(metric) for metric in result.metrics}, "model"))
    rows.sort(key=lambda row: row[1][main].value, reverse=metrics[main].higher_is_better)
    return [
        ResultRow(name, scores, normalized_scores(scores, result.baselines).get(main), kind)
        for name, scores, kind in rows
    ]


def about_normalized(main: Metric, anchors: Mapping[str | None, str]) -> str:
    """What the column "normalized score" counts; `anchors` names the baseline at the "start" and the one at the "end"."""
    return f"By {main.label}: 0 at {anchors.get('start', '—')}, 100 at {anchors.get('end', '—')}."


def metric_words(metric: Metric, axis: str = "", trained: int | None = None) -> dict[str, Any]:
    """What a page needs to speak of a metric.

    `axis` is what its curves are by, `trained` the largest size in training on a track with an axis of sizes.
    """
    return {
        "key": metric.name,
        "label": metric.label,
        "arrow": metric.arrow,
        "higher": metric.higher_is_better,
        "meaning": f"{metric.meaning} {'Higher' if metric.higher_is_better else 'Lower'} is better.",
        "limits": [min(limit, 1e9) for limit in metric.limits],  # JSON has no infinity
        "log": metric.log_axis,
        "axis": axis,
        "trained": trained,
    }


# --- Curves. ---


def axis(result: Result, metric: str, *, unit: bool = True) -> str:
    """What a metric's curves are by: the position in the context, or the progress that the task tells."""
    return result.seeds[0].curves[metric].axis or f"position in the context{' (tokens)' if unit else ''}"


def main_loss(result: Result) -> str:
    """The term of the training loss that validation measures: `cross_entropy`, `mse`, else the first."""
    names = [name for seed in result.seeds for point in seed.training_curve for name in point.loss]
    return next((name for name in ("cross_entropy", "mse", *names) if name in names), "loss")


def well_founded(curve: Curve) -> tuple[list[float], list[float]]:
    """Positions and values of the bins with at least a twentieth of the largest bin's positions. The others are noise."""
    enough = [count >= max(curve.count) / 20 for count in curve.count]
    return list(compress(curve.position, enough)), list(compress(curve.value, enough))


def points(curve: Curve) -> list[tuple[float, float]]:
    """The same bins as (position, value) pairs, rounded to what a screen can show."""
    return [(round(x, 1), round(y, 4)) for x, y in zip(*well_founded(curve), strict=True)]


def baseline_series(curves: Mapping[str, Mapping[str, Curve]]) -> list[dict[str, Any]]:
    """A dashed line for each baseline.

    A baseline's colour and dashes follow from its place among the sorted names. So a track looks the same on every page.
    """
    looks: dict[str, dict[str, Any]] = {"oracle": {"colour": _COLOURS, "dash": ""}}
    for place, name in enumerate(sorted(curves.keys() - looks.keys())):
        looks[name] = {"colour": 1 + place % _COLOURS, "dash": _DASHES[place % len(_DASHES)]}
    return [
        {"name": name, **looks[name], "width": 1.4, "curves": {metric: [points(c)] for metric, c in by_metric.items()}}
        for name, by_metric in curves.items()
    ]


LOSSES = {"cross_entropy": "cross entropy (nats)"}
"""What a training loss is called where people read it."""


def label(name: str, track: str = "") -> str:
    """The name of a score of a track, or of a loss, for people. What nothing describes has spaces in place of underscores."""
    if name in METRICS:
        return METRICS[name].label
    known = load_track(track).metrics if track and track in track_names() else {}
    return known[name].label if name in known else LOSSES.get(name, name.replace("_", " "))


def as_text(name: str) -> str:
    """The name of a text token with real white space: "Ġreturn" -> " return". Ċ is a new line, ĉ is a tab."""
    return name.replace("Ġ", " ").replace("Ċ", "\n").replace("ĉ", "\t")


def in_hundredths(share: float | None) -> str:
    """A normalized score for people: 0.83 -> "83". None, of a track that has none: "—"."""
    return "—" if share is None else f"{100 * share:.0f}"


def human_bytes(count: int | None) -> str:
    """A size for people: 1,536 -> "1.5 KiB". None is a state that grows with the context: "grows with L"."""
    if count is None:
        return "grows with L"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def human_state(architecture: ArchitectureRecord) -> str:
    """A state for people: its bytes, or those after 128 and 1,024 tokens, or "unknown"."""
    if architecture.state_bytes is not None or architecture.state_at is None:
        return human_bytes(architecture.state_bytes)
    return human_growth(architecture.state_at)


def human_growth(state_at: Mapping[Literal["128", "1024"], int]) -> str:
    """A state that grows: {"128": 131072, "1024": 1048576} -> "128.0 KiB at 128, 1.0 MiB at 1,024". Empty: "unknown"."""
    return ", ".join(f"{human_bytes(count)} at {int(at):,}" for at, count in state_at.items()) or "unknown"


def human_seconds(seconds: float) -> str:
    """A duration for people: 8.46 -> "8.5 s", 160 -> "2 min 40 s", 7260 -> "2 h 1 min"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
