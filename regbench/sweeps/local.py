"""The local engine: a pool of processes that divides the cores, and the GPUs, so that none is taken twice."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import regbench
from regbench.sweeps.work import Ended, Event, Job, Note
from regbench.utils import threads
from regbench.utils.errors import UserError


@dataclass(frozen=True)
class Share:
    jobs: int
    threads: int
    gpus: float = 0.0
    """Of each; a part of one where several share it."""


def share(
    jobs: int | None = None, of_each: int | None = None, *, device: str = "auto", gpus: float | None = None
) -> Share:
    """Divides this machine: `jobs` at once, by default as many as cores and GPUs allow, with `of_each` threads and `gpus` each.

    Threads are by default OMP_NUM_THREADS, else the cores over `jobs`, else 1; GPUs 1 where the runs are for GPUs.
    """
    cores, here = threads.cores(), _gpus() if device != "cpu" else 0
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs {jobs}: at least one process is needed")
    if device.startswith("cuda:"):  # each process sees its own GPU alone, as cuda:0
        raise UserError(
            f"runs side by side share all GPUs: instead of the device {device} say cuda, with CUDA_VISIBLE_DEVICES={device[5:]}"
        )
    given = of_each or threads.asked()
    each = given or max(1, cores // (jobs or cores))
    if jobs is not None and jobs * each > cores:
        raise UserError(
            f"{jobs} runs of {each} {'thread' if each == 1 else 'threads'} need {jobs * each} cores, and there are {cores}"
        )
    wanted = gpus if gpus is not None else float(here > 0)
    most = max(1, cores // each)
    if wanted:
        room = _on_one(wanted) * here
        if (jobs or 1) > room:
            count = f"{jobs} runs of " if jobs else "a run with "
            there = f"there are {here} GPUs here" if device != "cpu" else "the device is cpu"
            raise UserError(f"{count}{wanted:g} GPU asked for, and {there}")
        most = min(most, room)
    return Share(jobs or most, each, wanted)


def _on_one(gpus: float) -> int:
    """How many runs one GPU takes, of which each needs this part of it."""
    return int(1 / gpus + 1e-9)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


@dataclass
class _Worker:
    """A process of the pool, and the job that it does."""

    process: subprocess.Popen[str]
    number: int
    job: Job | None = None


@dataclass
class LocalEngine:
    divided: Share
    log: Path
    """Where the processes' errors go; removed at the end where there were none."""
    _workers: list[_Worker] = field(default_factory=list)
    _events: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = field(default_factory=queue.Queue)
    _started: bool = False

    def free(self) -> int:
        return self.divided.jobs - sum(w.job is not None or w.process.poll() is not None for w in self._workers)

    def submit(self, job: Job) -> None:
        idle = (w for w in self._workers if w.job is None and w.process.poll() is None)
        worker = next(idle, None) or self._start()
        worker.job = job
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: its output has ended too, which says so
            worker.process.stdin.write(json.dumps(job.plain()) + "\n")
            worker.process.stdin.flush()

    def wait(self, seconds: float) -> list[tuple[Job, Event]]:
        found: list[tuple[Job, Event]] = []
        with contextlib.suppress(queue.Empty):
            waited = self._events.get(timeout=seconds)
            while True:
                found += self._heard(*waited)
                waited = self._events.get_nowait()
        return found

    def close(self) -> None:
        for worker in self._workers:
            assert worker.process.stdin is not None
            with contextlib.suppress(OSError):
                worker.process.stdin.close()  # it ends itself then
        for worker in self._workers:
            try:
                worker.process.wait(5)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers.clear()
        if self._started and self.log.exists() and not self.log.stat().st_size:  # else it may be another run's
            self.log.unlink()

    def _heard(self, worker: _Worker, content: dict[str, Any] | None) -> list[tuple[Job, Event]]:
        job = worker.job
        if content is None:  # its output has ended: it is dead
            self._workers.remove(worker)
            code = worker.process.wait()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            return [] if job is None else [(job, Ended(f"its process ended {how}; see {self.log}"))]
        assert job is not None
        if "text" in content:
            return [(job, Note(**content))]
        worker.job = None
        return [(job, Ended(**content))]

    def _start(self) -> _Worker:
        number = min(set(range(self.divided.jobs)) - {w.number for w in self._workers})
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "regbench.sweeps.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, **self._environment(number)},
            )
        worker, self._started = _Worker(process, number), True
        self._workers.append(worker)
        assert process.stdout is not None
        threading.Thread(target=self._listen, args=(worker, process.stdout), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker, output: IO[str]) -> None:
        try:
            for line in output:
                self._events.put((worker, json.loads(line)))
        except ValueError:  # it was killed within a line
            pass
        finally:
            self._events.put((worker, None))

    def _environment(self, number: int) -> dict[str, str]:
        """What process `number` is told before it starts: this very regbench, its threads, its GPU."""
        home = str(Path(regbench.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        told = {"PYTHONPATH": path, **threads.environment(self.divided.threads)}
        if self.divided.gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            which = number // _on_one(self.divided.gpus)
            told["CUDA_VISIBLE_DEVICES"] = visible.split(",")[which] if visible else str(which)
        return told
