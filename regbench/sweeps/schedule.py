"""The order of a sweep: trials, the choice, all seeds of what was chosen, and the run folder that holds them.

The test split is read by the chosen configuration of a group alone, after the choice. Trials are scored on validation, and a
configuration that lost is never scored on the test split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from regbench.config import read_run
from regbench.results import Result, read_result
from regbench.runner import check_seeds
from regbench.sweeps.grid import Cell, Group, Point
from regbench.sweeps.local import LocalEngine, share
from regbench.sweeps.state import Failure, SweepFolder
from regbench.sweeps.work import Action, Ended, Engine, Job, Note
from regbench.utils.errors import UserError
from regbench.utils.files import exclusive, explain_writing, remove_leftovers

_WAIT = 0.25
"""Seconds between two looks at the clock."""

Then = Callable[[Ended], None]


@dataclass
class Counts:
    """How many cells of a sweep there are. A trial that becomes a seed is one."""

    total: int = 0
    """All that are known to be needed."""
    done: int = 0
    """Those that are done, also before this start."""
    failed: int = 0
    size: int = 0
    """Of the jobs that are left, those that run included; see `Job`."""

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed

    def end(self, job: Job, ended: Ended) -> None:
        self.size -= job.size
        self.failed += job.size > 0 and ended.message is not None
        self.done += job.size > 0 and ended.message is None


class Watcher(Protocol):
    """Is told how a sweep goes; the command line draws it."""

    def started(self, job: Job, counts: Counts) -> None:
        """A job has begun."""

    def noted(self, job: Job, note: Note) -> None:
        """How far it is."""

    def ended(self, job: Job, ended: Ended, counts: Counts) -> None:
        """How it ended."""

    def chosen(self, group: Group, point: Point, loss: float) -> None:
        """What was chosen among the trials, and its validation loss in nats."""

    def ticked(self, counts: Counts) -> None:
        """Some time has passed."""


def drive(
    ready: deque[Job], engine: Engine, watcher: Watcher, counts: Counts, end: Callable[[Job, Ended], None]
) -> None:
    """Does all jobs that are ready, until none is left. `end` is told how a job ended, and may add jobs to `ready`."""
    running = 0
    while ready or running:
        while ready and engine.free() > 0:
            job = ready.popleft()
            watcher.started(job, counts)
            engine.submit(job)
            running += 1
        for job, event in engine.wait(_WAIT):
            if isinstance(event, Note):
                watcher.noted(job, event)
            else:
                running -= 1
                end(job, event)
        watcher.ticked(counts)


@dataclass
class _Stand:
    """Where a group stands: how many jobs of its stage are missing, and whether one of them failed for good."""

    group: Group
    missing: int = 0
    lost: bool = False


@dataclass
class Schedule:
    folder: SweepFolder
    groups: Sequence[Group]
    engine: Engine
    watcher: Watcher
    counts: Counts = field(default_factory=Counts)
    failures: list[Failure] = field(default_factory=list)
    chosen: dict[str, Point] = field(default_factory=dict)
    """The point that was chosen in each group, by the group's key."""
    finished: list[tuple[Group, Point]] = field(default_factory=list)
    """Each group whose run folder is whole, and its chosen point."""
    _ready: deque[Job] = field(default_factory=deque)
    _asked: dict[str, list[tuple[Job, Then]]] = field(default_factory=dict)
    _held: dict[str, list[tuple[Job, Then]]] = field(default_factory=dict)
    _warm: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Does all there is to do. Where it is interrupted, whoever holds the engine closes it."""
        self.counts.total = sum(len(group.trials) + group.further for group in self.groups)
        for group in self.groups:
            self._try(_Stand(group))
        drive(self._ready, self.engine, self.watcher, self.counts, self._end)

    def _end(self, job: Job, ended: Ended) -> None:
        if ended.message is not None:
            failure = Failure(job.label, ended.message, ended.refused)
            self.failures.append(failure)
            self.folder.fail(job.folder, failure)
        asked = self._asked.pop(job.folder)
        # Two groups may share a cell: a trial of one, with fewer tokens, may be a seed of another.
        answered = [(one, then) for one, then in asked if one.action in (job.action, "train")]
        for one, then in asked:
            if (one, then) not in answered:
                self._add(one, then, first=True)
        for one, then in answered:
            self.counts.end(one, ended)
            then(ended)
        self.watcher.ended(job, ended, self.counts)

    def _add(self, job: Job, then: Then, *, first: bool = False) -> None:
        if job.folder in self._asked:
            self._asked[job.folder].append((job, then))
            return
        self._asked[job.folder] = [(job, then)]
        (self._ready.appendleft if first else self._ready.append)(job)

    def _try(self, stand: _Stand) -> None:
        """Begins the trials of a group, as far as they are not done."""
        left = [cell for cell in stand.group.trials if self.folder.validation_loss(cell) is None]
        self.counts.done += len(stand.group.trials) - len(left)
        stand.missing = len(left)
        self.counts.size += _size(left) + _size_of_seeds(stand.group)

        def then(ended: Ended) -> None:
            stand.missing -= 1
            # A configuration that cannot be trained has lost. One that the machine failed may be the best: the choice waits.
            stand.lost = stand.lost or (ended.message is not None and not ended.refused)
            if not stand.missing:
                self._choose(stand)

        for cell in left:
            self._add(self._job("train", cell), then)
        if not left:
            self._choose(stand)

    def _choose(self, stand: _Stand) -> None:
        group = stand.group
        self.counts.size -= _size_of_seeds(group)
        point, loss = (None, 0.0) if stand.lost else choose(self.folder, group)
        if point is None:
            self.counts.total -= group.further
            return
        self.chosen[group.key] = point
        if group.trials:
            self.watcher.chosen(group, point, loss)
        cells, tried = [Cell(point, seed) for seed in group.seeds], {cell.digest for cell in group.trials}
        left = [cell for cell in cells if self.folder.scores(cell) is None]
        new = {cell.digest for cell in cells} - tried
        missing = [cell for cell in left if cell.digest in new]
        self.counts.total += len(new) - group.further
        self.counts.done += len(new) - len(missing)
        self.counts.size += _size(missing)
        stand.missing = len(left)

        def then(ended: Ended) -> None:
            stand.missing -= 1
            stand.lost = stand.lost or ended.message is not None
            if not stand.missing:
                self._finish(stand, point, cells)

        for cell in reversed(left):
            job = self._job("score", cell)
            self._add(job if cell.digest in new else replace(job, size=0), then, first=True)
        if not left:
            self._finish(stand, point, cells)

    def _finish(self, stand: _Stand, point: Point, cells: Sequence[Cell]) -> None:
        """Puts the seeds together. The first run of a track scores its baselines; others wait, and find them in the cache."""
        group = stand.group
        if stand.lost:
            return
        config = point.config(group.seeds, trials=max(1, len(group.trials)))
        if self.folder.is_finished(point, config):
            self.finished.append((group, point))
            return
        label, track = self._label(point, f"{point.label} all seeds"), point.track.name
        try:
            job = Job("finish", str(self.folder.join(cells, config)), config, None, label)
        except UserError as error:  # a cell lacks a file: the other groups go on
            self.failures.append(Failure(label, str(error), refused=False))
            return

        def then(ended: Ended) -> None:
            if ended.message is None:
                self.finished.append((group, point))
            if track not in self._warm:
                self._warm.add(track)
                for other, its in self._held.pop(track):
                    self._add(other, its, first=True)

        if track in self._held:
            self._held[track].append((job, then))
            return
        if track not in self._warm:
            self._held[track] = []
        self._add(job, then, first=True)

    def _job(self, action: Action, cell: Cell) -> Job:
        config, label = cell.point.config((cell.seed,)), self._label(cell.point, cell.label)
        source, (_, *track) = cell.point.content["source"], cell.point.content["track"]
        return Job(action, str(self.folder.cell(cell)), config, cell.seed, label, _size([cell]), source, track)

    def _label(self, point: Point, label: str) -> str:
        """A label; where there are several tracks, with the track."""
        several = len({group.first.track.name for group in self.groups}) > 1
        return f"{point.track.name} {label}" if several else label


def _size(cells: Sequence[Cell]) -> int:
    return sum(cell.point.train_tokens for cell in cells)


def _size_of_seeds(group: Group) -> int:
    """Before the choice: as if the first point were chosen."""
    return group.further * group.first.train_tokens


def choose(folder: SweepFolder, group: Group) -> tuple[Point | None, float]:
    """The point with the least validation loss, the first of those that have it, and that loss in nats.

    Where there are no trials it is the only point. None where no trial could be trained.
    """
    if not group.trials:
        return group.first, 0.0
    losses = [folder.validation_loss(cell) for cell in group.trials]
    tried = [(loss, i) for i, loss in enumerate(losses) if loss is not None]
    if not tried:
        return None, 0.0
    loss, best = min(tried)
    return group.points[best], loss


def run_seeds(folder: Path, jobs: int, watcher: Watcher) -> Result:
    """Trains and scores the seeds of a run folder, several at once, and writes its result.

    Each run has an equal share of the cores. The numbers are those of a run with so many threads.
    """
    config = read_run(folder)
    divided = share(jobs, device=config.device)
    seeds = [
        Job("score", str(folder / f"seed-{seed}"), config, seed, f"seed {seed}", 1)
        for seed in dict.fromkeys(config.seeds)
    ]
    counts = Counts(total=len(seeds), size=len(seeds))
    engine = LocalEngine(divided, folder / "workers.log")
    try:
        with explain_writing(folder), exclusive(folder):
            if (folder / "result.json").exists():
                return read_result(folder)
            remove_leftovers(folder)
            check_seeds(folder)  # before any of them trains
            _all(seeds, engine, watcher, counts)
        _all([Job("finish", str(folder), config, None, "all seeds")], engine, watcher, counts)
    finally:
        engine.close()
    return read_result(folder)


def _all(jobs: list[Job], engine: LocalEngine, watcher: Watcher, counts: Counts) -> None:
    failed: list[str] = []

    def end(job: Job, ended: Ended) -> None:
        counts.end(job, ended)
        failed.extend([f"{job.label}: {ended.message}"] if ended.message is not None else [])
        watcher.ended(job, ended, counts)

    drive(deque(jobs), engine, watcher, counts, end)
    if failed:
        raise UserError(failed[0])
