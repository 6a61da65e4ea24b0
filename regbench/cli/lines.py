"""Lines on the terminal, as the commands share them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from regbench.utils.errors import escaped

if TYPE_CHECKING:
    from regbench.evaluation.baselines import Announce
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
    """Prints on stderr what is going on."""
    print_line(text, stderr())


def announcing(console: Console) -> Announce:
    """What prints a line for each predictor, once it has predicted all instances."""
    told: set[str] = set()

    def announce(name: str, done: int, total: int) -> None:
        if done == total and name not in told:
            told.add(name)
            print_line(f"predicted by {name}: {total} instances", console)

    return announce


@contextlib.contextmanager
def under_way(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows the current step of a long command in a line that goes away. Without a terminal it prints each step that is done.

    Yields:
        A function to call with the name of each step, when the step begins.
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
