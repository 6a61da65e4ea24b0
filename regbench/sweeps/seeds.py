"""The seeds of one run side by side: what `regbench run --jobs` does, in the pool of a sweep."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from regbench.config import read_run
from regbench.results import Result, read_result
from regbench.runner import check_seeds
from regbench.sweeps.local import LocalEngine, share
from regbench.sweeps.schedule import Counts, Watcher, drive
from regbench.sweeps.work import Ended, Job
from regbench.utils.errors import UserError
from regbench.utils.files import exclusive, explain_full_disk, remove_leftovers


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
        with explain_full_disk(folder), exclusive(folder):
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
