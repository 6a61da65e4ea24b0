"""Tables for the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table

from regbench.metrics.metric import METRICS, Metrics
from regbench.report.rows import score_rows
from regbench.results import Result


def result_table(result: Result, known: Metrics = METRICS) -> Table:
    """The model among the baselines, best first by the track's main score; under several seeds a row for each below."""
    metrics = result.metrics
    # Narrow enough for 80 columns.
    table = Table(
        title=f"{result.track.name}, test split",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("predictor", overflow="fold")
    for metric in metrics:
        table.add_column(f"{_stacked(known[metric].label)} {known[metric].arrow}", justify="right", no_wrap=True)
    rows = score_rows(result, known)
    way = any(row.way is not None for row in rows)
    if way:
        table.add_column("way to\noracle", justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row.scores[m].value:.3f} {_error(row.scores[m].stderr)}" for m in metrics]
        if way:
            cells.append("—" if row.way is None else f"{100 * row.way:.0f} %")
        table.add_row(row.name, *cells, style="bold" if row.kind == "model" else None)
    return table


def _error(stderr: float) -> str:
    """Without the zero before the point, as in all tables of runs: `±.004`."""
    return f"±{stderr:.3f}".replace("±0.", "±.")


def _stacked(label: str) -> str:
    """A label with a word a line, for the head of a narrow column."""
    return label.replace(" ", "\n")
