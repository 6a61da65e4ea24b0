"""Lines on the terminal, as the commands share them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from regbench.training.progress import now_and_then
from regbench.utils.errors import escaped

if TYPE_CHECKING:
    from regbench.leaderboard.claim import Findings


def stderr() -> Console:
    """The terminal for what is going on. Stdout holds what a command gives."""
    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def print_findings(findings: Findings, console: Console, prefix: str = "") -> None:
    for fault in findings.faults:
        print_line(f"{prefix}{fault}", console)
    for note in findings.notes:
        print_line(f"{prefix}note: {note}", console)


def print_line(text: str, console: Console) -> None:
    """Prints a line that quotes strangers, without characters that move or hide text. It is not broken."""
    console.print(escaped(text), markup=False, soft_wrap=True)


def tell(text: str) -> None:
    print_line(text, stderr())


class Bar:
    """One bar for the predictor at work; where the output is no terminal, a line now and then, and when it is done."""

    def __init__(self, console: Console) -> None:
        self.on = ""  # stands behind its name
        self._console = console
        columns = TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.completed}/{task.total}")
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._bar.add_task("")
        self._of = ""
        self._line = now_and_then("", lambda _: None)
        self._told: set[str] = set()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.live.stop()

    def announce(self, name: str, done: int, total: int) -> None:
        what = f"predicted by {escaped(name)}{self.on}"
        if self._of != what:
            self._of, self._line = what, now_and_then(what, lambda text: print_line(text, self._console))
            self._bar.reset(self._task, description=what, total=total)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done)
            (self._bar.live.stop if done == total else self._bar.start)()
        elif done == total and what not in self._told:
            self._told.add(what)
            print_line(f"{what}: {total} instances", self._console)
        else:
            self._line(done, total)


@contextlib.contextmanager
def under_way(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows the current step of a long command in a line that goes away. Without a terminal it prints each step that is done.

    What it gives is called with the name of each step, when the step begins.
    """
    running = ""

    def step(text: str) -> None:
        nonlocal running
        if running and not console.is_terminal:
            print_line(f"done: {running}", console)
        running = text
        status.update(Text(escaped(text)))

    with console.status("") as status:
        yield step
        step("")
