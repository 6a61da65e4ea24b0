"""Runs that are under way, on the terminal: how far a sweep is, a line for each of its runs, and how one run goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich import live
from rich.console import Console, Group
from rich.text import Text

from regbench.cli.lines import print_line, stderr
from regbench.results import resume_command

if TYPE_CHECKING:
    from regbench.results import Result
    from regbench.sweeps import grid
    from regbench.sweeps.schedule import Counts
    from regbench.sweeps.work import Ended, Job, Note
    from regbench.training.progress import Reporter

_ACTIONS = {"train": "trial", "score": "training and test", "finish": "run folder"}
_BAR = 12
_PLAIN_EVERY = 60.0
"""Seconds between two lines about the whole, where no terminal is."""


@dataclass
class _Run:
    """A job that runs."""

    job: Job
    text: str = "starting"  # what it does now
    share: float = 0.0  # of its training, what is done
    first: float | None = None  # the share when it was first told: a resumed training has one

    @property
    def here(self) -> float:
        return 0.0 if self.first is None else self.job.size * (self.share - self.first)


class Live:
    """Draws a sweep; where the output is no terminal, prints a line now and then."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live = live.Live(console=console, refresh_per_second=4, transient=True)
        self._running: dict[str, _Run] = {}
        self._started = self._printed = clock()
        self._trained = 0.0

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        print_line(text, self._console)

    def started(self, job: Job, counts: Counts) -> None:
        self._running[job.folder] = _Run(job)
        if not self._console.is_terminal:
            self.say(f"begun: {_what(job)}")

    def noted(self, job: Job, note: Note) -> None:
        if (run := self._running.get(job.folder)) is None:
            return
        run.text = note.text
        if note.share:
            run.share, run.first = note.share, note.share if run.first is None else run.first

    def ended(self, job: Job, ended: Ended, counts: Counts) -> None:
        run = self._running.pop(job.folder)
        if ended.message is None:
            run.share = 1.0
        self._trained += run.here
        if ended.message is not None:
            self.say(f"failed: {_what(job)}: {ended.message}")
        elif not self._console.is_terminal:
            self.say(f"done: {_what(job)}; {self._whole(counts)}")

    def chosen(self, group: grid.Group, point: grid.Point, loss: float) -> None:
        self.say(f"chosen of {len(group.trials)}: {point.label}, validation loss {loss:.4f}")

    def ticked(self, counts: Counts) -> None:
        if self._console.is_terminal:
            longest = max((len(run.job.label) for run in self._running.values()), default=0)
            room = max(10, min(longest, self._console.width - _BAR - 40))
            lines = [_line(run, room) for run in self._running.values()]
            self._live.update(Group(*lines, Text(self._whole(counts), style="bold", no_wrap=True, overflow="ellipsis")))
        elif self._clock() - self._printed > _PLAIN_EVERY:
            self._printed = self._clock()
            self.say(self._whole(counts))

    def _whole(self, counts: Counts) -> str:
        """Done, failed, left, and when the end is expected from what was trained so far."""
        text = f"{counts.done} of {counts.total} done, {counts.failed} failed, {counts.left} left"
        running = self._running.values()
        here = self._trained + sum(run.here for run in running)
        left = counts.size - sum(run.job.size * run.share for run in running)
        if here > 0 and left > 0:
            end = datetime.now() + timedelta(seconds=(self._clock() - self._started) / here * left)
            text += f", end about {end:{'%H:%M' if end.date() == datetime.now().date() else '%d %b %H:%M'}}"
        return text


def go_on(folder: Path, jobs: int | None, reporter: Reporter) -> Result:
    """Trains and scores the seeds of a run folder that are not done."""
    from regbench import runner
    from regbench.sweeps.schedule import run_seeds

    if jobs is None:
        return runner.resume(folder, reporter)
    with Live(stderr()) as live:
        return run_seeds(folder, jobs, live)


def interrupted(folder: Path | None, jobs: int | None) -> int:
    """Says how an interrupted run or suite goes on, with the same number of threads. None: it has not begun."""
    again = [] if jobs is None else ["--jobs", str(jobs)]
    hint = f"; go on with: {resume_command(folder, *again)}" if folder is not None else ""
    print(f"regbench: interrupted{hint}", file=sys.stderr)
    return 130


def _what(job: Job) -> str:
    return f"{job.label} ({_ACTIONS[job.action]})"


def _line(run: _Run, room: int) -> Text:
    filled = round(_BAR * run.share)
    bar = f"{'━' * filled}{'╌' * (_BAR - filled)} {100 * run.share:3.0f} %"
    return Text(f"{run.job.label[:room]:<{room}}  {bar}  {run.text}", no_wrap=True, overflow="ellipsis")
