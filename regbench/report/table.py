"""Tables: for the terminal, where they fit into its columns, and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from textwrap import fill
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from regbench.results import ScoreRecord

BAR = "\\|"
"""A | inside a cell of Markdown."""

_NAME = 26
"""Columns of a name before it is folded: then two scores, their difference and its verdict fit into 80 columns beside it."""


def narrow_table(
    title: str | None, heads: Sequence[str], left: int, rows: Iterable[Sequence[str]] = (), fold: int = 0, **style: Any
) -> Table:
    """A table for a terminal of 80 columns.

    So many columns at the `left` are words, and the others are numbers; the first `fold` columns may be folded. `style` is what
    `rich` is told where it is not as usual.
    """
    style = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, **style}
    table = Table(title=title, title_justify="left", **style)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < left else "right", no_wrap=True)
    for column in table.columns[:fold]:
        column.no_wrap, column.overflow = False, "fold"
    for row in rows:
        table.add_row(*row)
    return table


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
    part = copy(table)
    part.columns = [replace(table.columns[old], _index=new) for new, old in enumerate(columns)]
    return part


def _fits(table: Table, console: Console) -> bool:
    """Whether it fits into the terminal with no cell cut or folded."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    """The lines of a table in Markdown; `left` as in `narrow_table`. A cell may hold any characters."""
    rules = ["---"] * left + ["---:"] * (len(heads) - left)
    return [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in (heads, rules, *rows)]


# --- Cells. ---


def folded(name: str) -> str:
    """A long name of an entry over several lines, which end at its pluses."""
    return fill(name.replace("+", "+ "), _NAME, break_on_hyphens=False).replace("+ ", "+")


def narrow(cells: Iterable[str]) -> list[str]:
    """Cells without the zero before the point of a standard error."""
    return [cell.replace("±0.", "±.") for cell in cells]


def plain(score: ScoreRecord) -> str:
    return f"{score.value:.3f} ±{score.stderr:.3f}"


def signed(change: ScoreRecord, digits: int = 3) -> str:
    return f"{change.value:+.{digits}f} ±{change.stderr:.{digits}f}"


def short(value: float, digits: int = 3) -> str:
    """A number without the zero before the point: `.836`."""
    return f"{value:.{digits}f}".removeprefix("0")


def small_error(stderr: float) -> str:
    """A standard error without the zero before the point: `±.004`."""
    return f"±{stderr:.3f}".replace("±0.", "±.")
