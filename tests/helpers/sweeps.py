"""Small sweeps for tests: their files, and an engine that needs no process of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from regbench.sweeps.grid import Group, Point
from regbench.sweeps.schedule import Counts
from regbench.sweeps.work import Ended, Event, Job, Note, do

AVERAGE = """
import torch
import regbench


class Average(regbench.Mixer):
    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
"""


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


class RayHere:
    """As much of Ray as the engine uses, with one node: this process. A task runs when it is submitted.

    What goes to a task and comes from it is pickled, as if it travelled.
    """

    util = SimpleNamespace(get_node_ip_address=lambda: "here")

    def remote(self, *function: Any, **needs: Any) -> Any:
        """A decorator, with or without needs."""
        return self._submitted(*function) if function else self._submitted

    def _submitted(self, function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            if isinstance(function, type):
                actor = function(*arguments)
                methods = {name: self._submitted(getattr(actor, name)) for name in vars(function) if name[0] != "_"}
                return SimpleNamespace(**methods)
            there = [one if isinstance(one, SimpleNamespace) else pickle.loads(pickle.dumps(one)) for one in arguments]
            with contextlib.chdir("."):
                return Returned(pickle.dumps(function(*there)))

        submitted = SimpleNamespace(remote=run)
        submitted.options = lambda **_: submitted
        return submitted

    def get(self, returned: Returned, timeout: float | None = None) -> Any:
        return pickle.loads(returned.value)

    def wait(self, refs: list[Any], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        return refs[:num_returns], refs[num_returns:]

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeID": "0" * 56, "NodeManagerAddress": "here", "Resources": self.cluster_resources()}
        ]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "0" * 56)

    def shutdown(self) -> None:
        pass


@dataclass(eq=False)
class Returned:
    """What a task returned, pickled."""

    value: bytes
