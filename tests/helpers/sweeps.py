"""Small sweeps for tests: their files, and an engine that needs no process of its own."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from regbench.sweeps.grid import Group, Point
from regbench.sweeps.schedule import Counts
from regbench.sweeps.work import Ended, Event, Job, Note, do
from tests.helpers.typed import AVERAGE

BASE = {"d_model": 8, "training.batch_size": 8, "training.evaluations": 3, "training.train_tokens": 3000}
"""What all configurations of `write_sweep` share."""


def write_sweep(folder: Path, track: Path | str, **changes: Any) -> Path:
    """Writes `sweep.yaml` for a mixer `average.py` beside it: two depths, two rates to choose from, two seeds."""
    (folder / "average.py").write_text(AVERAGE)
    content = {
        "track": str(track),
        "base": BASE,
        "grid": {"arch": [str(folder / "average.py")], "n_layers": [1, 2], "training.learning_rate": [1e-3, 1e-2]},
        "select": {"over": ["training.learning_rate"]},
        "seeds": [0, 1],
    } | changes
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return path


def cores_free(wanted: int) -> bool:
    """Whether this process may use so many cores."""
    return len(os.sched_getaffinity(0)) >= wanted


@dataclass
class Heard:
    """A watcher that keeps what it is told."""

    jobs: list[Job] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    @property
    def actions(self) -> list[tuple[str, str]]:
        """What was done, and where, in order."""
        return [(job.action, job.label) for job in self.jobs]

    def started(self, job: Job, counts: Counts) -> None:
        self.jobs.append(job)

    def noted(self, job: Job, note: Note) -> None:
        self.notes.append(note)

    def ended(self, job: Job, ended: Ended, counts: Counts) -> None:
        if ended.message is not None:
            self.failed.append(f"{job.label}: {ended.message}")

    def chosen(self, group: Group, point: Point, loss: float) -> None:
        self.choices.append(point.label)

    def ticked(self, counts: Counts) -> None:
        self.counts = counts


@dataclass
class InProcess:
    """An engine that does each job when it is waited for, in this process."""

    work: Callable[[Job, Path, Callable[[Note], None]], Ended] = do
    _queue: deque[Job] = field(default_factory=deque)

    def free(self) -> int:
        return 1 - len(self._queue)

    def submit(self, job: Job) -> None:
        self._queue.append(job)

    def wait(self, seconds: float) -> list[tuple[Job, Event]]:
        if not self._queue:
            return []
        job, events = self._queue[0], []
        ended = self.work(job, Path(job.folder), lambda note: events.append((job, note)))
        self._queue.popleft()
        return [*events, (job, ended)]

    def close(self) -> None:
        self._queue.clear()
