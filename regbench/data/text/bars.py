"""Progress bars for slow work on text. They are drawn on stderr, so that stdout holds only what was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextlib.contextmanager
def bar(what: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Draws a bar while the block runs, and removes it afterwards. No bar is drawn if stderr is no terminal.

    Args:
        what: The text beside the bar.
        total: Units of the whole work. None: the total is unknown, and the bar shows the units so far.

    Yields:
        A function that advances the bar by a number of units.
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
