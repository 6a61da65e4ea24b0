"""How far a run is, drawn on the terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regbench.training.progress import Progress as TrainingProgress
from regbench.training.progress import Reporter


class TerminalReporter(Reporter):
    """Draws phases as lines and training as a bar. Where the output is no terminal, the bar is a line now and then."""

    def __init__(self, console: Console) -> None:
        self.folder: Path | None = None  # the run folder, once the run has begun
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._printed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def begin(self, folder: Path) -> None:
        self.folder = folder
        self.phase(f"run folder {folder}")

    def phase(self, text: str) -> None:
        self._clear()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)  # it may name a folder

    def estimated(self, seconds: float) -> None:
        """Prints how long the training will take, where that is more than a moment."""
        if seconds >= 5:
            self.phase(f"the training will take about {timedelta(seconds=round(seconds))} (hours:minutes:seconds)")

    def trained(self, progress: TrainingProgress, total_steps: int, loss: float, tokens_per_second: float) -> None:
        validation = f"validation {progress.validation_loss:.3f}  " if progress.curve else ""
        facts = f"loss {loss:.3f}  {validation}{tokens_per_second:,.0f} tokens/s"
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task("training", total=total_steps, facts=facts)
        self._bar.update(self._task, completed=progress.step, facts=facts)
        tenth = 10 * progress.step // total_steps
        if not self._console.is_terminal and tenth > self._printed:
            self._printed = tenth
            self._console.print(f"  {10 * tenth:3d} %  {facts}", highlight=False)

    def _clear(self) -> None:
        if self._task is not None:
            self._bar.stop()
            self._bar.remove_task(self._task)
            self._task = None
        self._printed = 0


@contextmanager
def shown(reporter: Reporter | None) -> Iterator[Reporter]:
    """The reporter, or one that draws on stderr or in the notebook."""
    if reporter is not None:
        yield reporter
        return
    with TerminalReporter(Console(stderr=True)) as drawn:
        yield drawn
