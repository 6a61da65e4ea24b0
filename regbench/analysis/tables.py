"""How the tables of analyses are written, in the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.table import Table

from regbench.results import ScoreRecord

BAR = "\\|"
"""A | inside a cell of Markdown."""


def narrow_table(title: str | None, heads: Sequence[str], left: int, **style: Any) -> Table:
    """An empty table for a terminal of 80 columns.

    Args:
        title: Stands above; it may hold any characters. None: nothing.
        heads: The headings.
        left: So many columns are words, at the left. The others are numbers.
        style: What `rich` is told of the table where it is not as usual.
    """
    style = {"padding": (0, 1, 0, 0), "pad_edge": False, **style}
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, **style)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < left else "right", no_wrap=True)
    return table


def narrow(cells: Iterable[str]) -> list[str]:
    """Cells without the zero before the point of a standard error."""
    return [cell.replace("±0.", "±.") for cell in cells]


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    """The lines of a table in Markdown; `left` as in `narrow_table`. A cell may hold any characters."""
    rules = ["---"] * left + ["---:"] * (len(heads) - left)
    return [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in (heads, rules, *rows)]


def plain(score: ScoreRecord) -> str:
    """A score with its standard error."""
    return f"{score.value:.3f} ±{score.stderr:.3f}"


def signed(change: ScoreRecord, digits: int = 3) -> str:
    """A change with its sign and its standard error."""
    return f"{change.value:+.{digits}f} ±{change.stderr:.{digits}f}"
