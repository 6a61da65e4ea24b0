"""Tables of a sweep for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from regbench.analysis.tables import narrow_table
from regbench.cli.tables import short
from regbench.report.content import human_seconds
from regbench.sweeps.estimate import Cost
from regbench.sweeps.grid import shown_axes
from regbench.sweeps.state import Failure
from regbench.sweeps.tables import Chosen


def sweep_tables(rows: Sequence[Chosen]) -> list[Table]:
    """The best configuration of each architecture, a table for each track: the median over seeds, the lowest and the highest."""
    tables = []
    for track in dict.fromkeys(row.point.track.name for row in rows):
        own = [row for row in rows if row.point.track.name == track]
        main = own[0].point.track.metrics[own[0].result.track.main_score]
        table = Table(
            title=f"{track}, test split",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=0,
            pad_edge=False,
        )
        longest = max(len(row.point.name) for row in own)
        table.add_column("architecture", overflow="fold", min_width=min(24, longest))
        table.add_column("chosen", no_wrap=True)
        table.add_column("trials", justify="right")
        table.add_column("validation\nloss", justify="right", no_wrap=True)
        table.add_column(main.heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
        normalized = any(row.normalized is not None for row in own)
        if normalized:
            table.add_column("normalized\nscore", justify="right", no_wrap=True)
        ranked = sorted(own, key=lambda row: row.score(main.name).median, reverse=main.higher_is_better)
        for row in ranked:
            score, way = row.score(main.name), row.normalized
            cells = [
                row.point.name,
                shown_axes(row.point.axes).replace(" ", "\n") or "—",
                str(row.trials),
                f"{row.validation.median:.4f}",
                f"{score.median:.3f} ({short(score.low)}–{short(score.high)})",
            ]
            if normalized:
                cells.append("—" if way is None else f"{100 * way.median:.0f}")
            table.add_row(*cells)
        tables.append(table)
    return tables


def failure_table(failures: Sequence[Failure]) -> Table:
    """What failed, and why."""
    table = Table(title="failed", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("what", overflow="fold")
    table.add_column("why", overflow="fold")
    for failure in failures:
        table.add_row(Text(failure.label), Text(failure.message))
    return table


def cost_table(costs: Sequence[Cost]) -> Table:
    heads = ("track", "architecture", "trials", "seeds", "cells", "parameters", "tokens", "time of\none core")
    table = narrow_table(None, heads, 2)
    for cost in costs:
        low, high = (_count(count) for count in cost.parameters)
        table.add_row(
            cost.track,
            cost.architecture,
            f"{cost.trials:,}",
            f"{cost.seeds:,}",
            f"{cost.cells:,}",
            low if low == high else f"{low} – {high}",
            _count(cost.tokens),
            human_seconds(cost.seconds),
        )
    return table


def _count(number: int) -> str:
    """A large number, short: 133504 -> "134 k"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
