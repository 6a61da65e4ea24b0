"""The tables that several commands print."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich.table import Table

from regbench.metrics.metric import METRICS, Metrics, metrics_told
from regbench.report.table import folded, narrow_table, short, small_error
from regbench.results import Result
from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.sweeps.estimate import Cost
    from regbench.sweeps.tables import Chosen

_COLUMN = len("0.123 ±.456")


def result_table(result: Result, metrics: Metrics) -> Table:
    """The model among the baselines, best first by the track's main score. It is narrow enough for 80 columns."""
    from regbench.report.content import in_hundredths, score_rows

    rows = score_rows(result, metrics)
    normalized = any(row.normalized is not None for row in rows)
    heads = [f"{metric.label}\u00a0{metric.arrow}" for metric in (metrics[name] for name in result.metrics)]
    heads = [fill(head, _COLUMN, break_long_words=False).replace("\u00a0", " ") for head in heads]
    heads = ["predictor", *heads, *["normalized\nscore"] * normalized]
    table = narrow_table(f"{result.track.name}, {result.split} split", heads, 1, fold=1)
    for row in rows:
        cells = [f"{row.scores[m].value:.3f} {small_error(row.scores[m].stderr)}" for m in result.metrics]
        cells += [in_hundredths(row.normalized)] * normalized
        table.add_row(row.name, *cells, style="bold" if row.kind == "model" else None)
    return table


def metrics_of_run(result: Result, folder: Path) -> Metrics:
    """What the scores of a result are: built in, as its track says, or, where the track is gone, as their names tell."""
    if set(result.metrics) <= METRICS.keys():
        return METRICS
    from regbench.config import read_run
    from regbench.tracks import load_track, track_names

    track = result.track.name
    try:
        return load_track(track if track in track_names() else read_run(folder).track).metrics
    except UserError:
        return metrics_told(result)


def sweep_table(track: str, rows: Sequence[Chosen]) -> Table:
    """The best configuration of each architecture on a track: the median over seeds, the lowest and the highest."""
    from regbench.sweeps.grid import shown_axes

    main = rows[0].point.track.metrics[rows[0].result.track.main_score]
    normalized = any(row.normalized is not None for row in rows)
    heads = ["architecture", "chosen", "trials", "validation\nloss", main.heading.replace(" ", "\n", 1)]
    table = narrow_table(f"{track}, test split", [*heads, *["normalized\nscore"] * normalized], 2, fold=1, padding=0)
    table.columns[0].min_width = min(24, max(len(row.point.name) for row in rows))
    for row in sorted(rows, key=lambda row: row.score(main.name).median, reverse=main.higher_is_better):
        score, way = row.score(main.name), row.normalized
        cells = [
            row.point.name,
            shown_axes(row.point.axes).replace(" ", "\n") or "—",
            str(row.result.selection.trials),
            f"{row.validation.median:.4f}",
            f"{score.median:.3f} ({short(score.low)}–{short(score.high)})",
        ]
        table.add_row(*cells, *["—" if way is None else f"{100 * way.median:.0f}"] * normalized)
    return table


def cost_table(costs: Sequence[Cost]) -> Table:
    from regbench.report.content import human_seconds

    heads = ("track", "architecture", "trials", "seeds", "cells", "parameters", "tokens", "time of\none core")
    rows = []
    for cost in costs:
        counts = [f"{count:,}" for count in (cost.trials, cost.seeds, cost.cells)]
        parameters = " – ".join(dict.fromkeys(map(_count, cost.parameters)))
        rows.append(
            [cost.track, cost.architecture, *counts, parameters, _count(cost.tokens), human_seconds(cost.seconds)]
        )
    return narrow_table(None, heads, 2, rows)


def _count(number: int) -> str:
    """A large number, short: 133504 -> "134 k"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def suite_table(done: Sequence[tuple[Path, Result]]) -> Table:
    """A row for each track: the main score of the architecture, of the best entry on the board and of the best baseline."""
    heads = ("track", "score", done[0][1].architecture.name, "normalized", "best entry", "best baseline")
    table = narrow_table(None, heads, 2)
    for column in table.columns[-2:]:
        column.justify = "left"
    for folder, result in done:
        main, shares = result.track.main_score, result.normalized
        metrics, mine = metrics_of_run(result, folder), result.score(main)
        # Of those that do not know the truth.
        known = {name: one.scores[main].value for name, one in result.baselines.items() if one.anchor != "end"}
        table.add_row(
            fill(result.track.name, 17),  # at hyphens: whole names do not fit 80 columns
            metrics[main].heading,
            f"{mine.value:.3f} ±{mine.stderr:.3f}",
            f"{100 * statistics.fmean(shares):.0f}" if shares else "—",
            folded(best_entry(result, metrics)),
            folded(_best(known, metrics, main)),
        )
    return table


def best_entry(result: Result, metrics: Metrics) -> str:
    """The name and main score of the best entry on the board of a result's track; a dash where there is none.

    An entry that is broken or of another definition of the track does not count.
    """
    from regbench.leaderboard.standing import whole_entries

    main = result.track.main_score
    means = {entry.name: entry.result.score(main).value for entry in whole_entries(result.track)}
    return _best(means, metrics, main)


def _best(values: Mapping[str, float], metrics: Metrics, main: str) -> str:
    if not values:
        return "—"
    name = max(sorted(values), key=lambda one: metrics[main].sign * values[one])
    return f"{name} {values[name]:.3f}"
