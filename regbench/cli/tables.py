"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from rich import box
from rich.console import Console
from rich.table import Table

from regbench.metrics.metric import METRICS, Metrics
from regbench.results import Result

_COLUMN = len("0.123 ±.456")
_NAME = 26
"""Columns of a name before it is folded: then two scores, their difference and its verdict fit into 80 columns beside it."""


def print_fitting(table: Table, console: Console, names: int = 1) -> None:
    """Prints a table. Where it is wider than the terminal, several: each has the names, and as many other columns as fit.

    The names are in its first columns.
    """
    first, others = range(names), range(names, len(table.columns))
    while others:
        count = next((n for n in range(len(others), 1, -1) if _fits(_part(table, (*first, *others[:n])), console)), 1)
        console.print(_part(table, (*first, *others[:count])))
        others, table = others[count:], copy(table)
        table.title = None
        if others and (table.box is None or not table.show_edge):  # else the edges keep them apart
            console.print()


def _part(table: Table, columns: Iterable[int]) -> Table:
    """The same table with some of its columns."""
    part = copy(table)
    part.columns = [replace(table.columns[old], _index=new) for new, old in enumerate(columns)]
    return part


def _fits(table: Table, console: Console) -> bool:
    """Whether it fits into the terminal with no cell cut or folded."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width


def folded(name: str) -> str:
    """A long name of an entry over several lines, which end at its pluses."""
    return fill(name.replace("+", "+ "), _NAME, break_on_hyphens=False).replace("+ ", "+")


def result_table(result: Result, metrics: Metrics = METRICS) -> Table:
    """The model among the baselines, best first by the track's main score. It is narrow enough for 80 columns."""
    from regbench.report.content import in_hundredths, score_rows  # it loads matplotlib

    table = Table(
        title=f"{result.track.name}, {result.split} split",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("predictor", overflow="fold")
    for metric in (metrics[name] for name in result.metrics):
        head = fill(f"{metric.label}\u00a0{metric.arrow}", _COLUMN, break_long_words=False).replace("\u00a0", " ")
        table.add_column(head, justify="right", no_wrap=True)
    rows = score_rows(result, metrics)
    normalized = any(row.normalized is not None for row in rows)
    if normalized:
        table.add_column("normalized\nscore", justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row.scores[m].value:.3f} {small_error(row.scores[m].stderr)}" for m in result.metrics]
        if normalized:
            cells.append(in_hundredths(row.normalized))
        table.add_row(row.name, *cells, style="bold" if row.kind == "model" else None)
    return table


def metrics_of_run(result: Result, folder: Path) -> Metrics:
    """What the scores of a result are. Scores that a task of the user's own defines are read from its track."""
    if set(result.metrics) <= METRICS.keys():
        return METRICS
    from regbench.config import read_run
    from regbench.tracks import load_track

    return load_track(read_run(folder).track).metrics


def short(value: float, digits: int = 3) -> str:
    """A number without the zero before the point: `.836`."""
    return f"{value:.{digits}f}".removeprefix("0")


def small_error(stderr: float) -> str:
    """A standard error without the zero before the point: `±.004`."""
    return f"±{stderr:.3f}".replace("±0.", "±.")
