"""The seeds of one run side by side: what `regbench run --jobs` does, in the pool of a sweep."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from regbench.config import read_run
from regbench.results import Result, read_result
from regbench.sweeps.local import LocalEngine, share
from regbench.sweeps.schedule import Counts, Watcher
from regbench.sweeps.work import Job, Note
from regbench.utils.errors import UserError
from regbench.utils.files import exclusive, explain_full_disk

_WAIT = 0.25


def run_seeds(folder: Path, jobs: int, watcher: Watcher) -> Result:
    """Trains and scores the seeds of a run folder, several at once, and writes its result.

    Each run has an equal share of the cores. The numbers are those of a run with so many threads.

    Args:
        folder: a run folder; see `regbench.runner.begin`. An interrupted one goes on.
        jobs: seeds at once.
        watcher: is told how it goes.

    Raises:
        UserError: no run is there, more is asked for than there is, or a seed failed.
    """
    config = read_run(folder)
    divided = share(jobs, device=config.device)
    counts = Counts(total=len(config.seeds) + 1)
    engine = LocalEngine(divided, folder / "workers.log")
    seeds = [
        Job("score", str(folder / f"seed-{seed}"), config, seed, f"seed {seed}") for seed in dict.fromkeys(config.seeds)
    ]
    try:
        with explain_full_disk(folder), exclusive(folder):
            _all(seeds, engine, watcher, counts)
        _all([Job("finish", str(folder), config, None, "all seeds")], engine, watcher, counts)
    finally:
        engine.close()
    return read_result(folder)


def _all(jobs: list[Job], engine: LocalEngine, watcher: Watcher, counts: Counts) -> None:
    """Does all jobs.

    Raises:
        UserError: one failed; the others are done.
    """
    ready, running = deque(jobs), 0
    failed: list[str] = []
    while ready or running:
        while ready and engine.free() > 0:
            watcher.started(ready[0], counts)
            engine.submit(ready.popleft())
            running += 1
        for job, event in engine.wait(_WAIT):
            if isinstance(event, Note):
                watcher.noted(job, event)
                continue
            running -= 1
            counts.failed += event.message is not None
            counts.done += event.message is None
            failed += [f"{job.label}: {event.message}"] if event.message is not None else []
            watcher.ended(job, event, counts)
        watcher.ticked(counts)
    if failed:
        raise UserError(failed[0])
