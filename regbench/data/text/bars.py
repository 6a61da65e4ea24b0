"""Progress bars of what takes a while with text: on stderr, so that what a command prints stays what was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextlib.contextmanager
def bar(what: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Draws a bar while the block runs and yields what advances it by a number of units; None where the total is unknown.

    It is gone afterwards, and where stderr is no terminal it is not drawn.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:3.0f} %" if total else "{task.completed:,.0f}"),
        TimeRemainingColumn() if total else TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda units: progress.advance(task, units)
