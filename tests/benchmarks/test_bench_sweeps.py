"""What a sweep costs beside its trainings, what it gains by dividing the cores, and how a run fares where cores are taken.

Each figure is of one measurement: what else runs on the machine moves it. The load is part of the figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench.sweeps.file import SweepFile
from regbench.sweeps.grid import expand
from regbench.sweeps.local import Share
from regbench.sweeps.schedule import Schedule
from regbench.sweeps.state import SweepFolder
from regbench.sweeps.work import Ended, Job
from regbench.utils import threads
from tests.helpers.sweeps import Heard, InProcess, cores_free
from tests.sweeps.test_schedule import made_up

ARCHITECTURE, TOKENS, CELLS = "transformer", 200_000, 8
BUSY = "while True: pass"


def seconds_of(arguments: list[str], folder: Path, **environment: str) -> float:
    """Seconds of the clock that a command of regbench takes in a process of its own, without a number of threads set."""
    inherited = {name: value for name, value in os.environ.items() if name not in threads.environment(1)}
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "regbench", *arguments],
        cwd=folder,
        env={**inherited, **environment},
        check=True,
        capture_output=True,
        timeout=3600,
    )
    return time.perf_counter() - begun


def training_of(folder: Path, out: str, **environment: str) -> float:
    """Seconds that the training of one run takes."""
    from regbench.results import read_result

    flags = ["--arch", ARCHITECTURE, "--set", f"training.train_tokens={TOKENS}", "--out", out]
    seconds_of(["run", *flags], folder, **environment)
    return read_result(folder / out).seeds[0].seconds


@pytest.mark.skipif(not cores_free(2), reason="needs two cores")
def test_throughput(benchmark: Any, tmp_path: Path) -> None:
    """Eight seeds by `--jobs 2`, one thread each, beside the same eight one after another with all threads; at most 0.55."""
    seeds = [str(seed) for seed in range(CELLS)]
    flags = ["--arch", ARCHITECTURE, "--set", f"training.train_tokens={TOKENS}", "--seed", *seeds]
    seconds_of(["run", *flags[:-CELLS], "0", "--out", "warm"], tmp_path)  # instances and baselines into the cache
    after = seconds_of(["run", *flags, "--out", "after"], tmp_path)
    beside = benchmark.pedantic(
        seconds_of, args=(["run", *flags, "--jobs", "2", "--out", "beside"], tmp_path), rounds=1
    )
    benchmark.extra_info |= {"one after another, s": round(after), "side by side, s": round(beside)}
    benchmark.extra_info |= {"share": round(beside / after, 2), "load": round(os.getloadavg()[0], 1)}


@pytest.mark.skipif(not cores_free(2), reason="needs two cores")
def test_beside_busy_loops(benchmark: Any, tmp_path: Path) -> None:
    """One run on all cores, alone and beside as many busy loops as there are cores: as it is, and as OpenMP would have it."""
    spinning = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
    training_of(tmp_path, "warm")
    times = {
        "alone": training_of(tmp_path, "alone"),
        "alone, spinning": training_of(tmp_path, "alone-spinning", **spinning),
    }
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(threads.cores())]
    try:
        times["beside"] = benchmark.pedantic(training_of, args=(tmp_path, "beside"), rounds=1)
        times["beside, spinning"] = training_of(tmp_path, "beside-spinning", **spinning)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    benchmark.extra_info |= {f"{name}, tokens/s": round(TOKENS / seconds) for name, seconds in times.items()}
    benchmark.extra_info["load"] = round(os.getloadavg()[0], 1)


def test_a_cell_that_is_done(benchmark: Any, tmp_path: Path) -> None:
    """What a thousand trials that are done add to the start of a sweep; at most 5 ms each."""
    rates = [round(1e-5 * (i + 1), 10) for i in range(1000)]
    sweep = SweepFile(
        track="pfa-small-v1",
        grid={"arch": ["lstm"], "training.learning_rate": rates},
        select={"over": ["training.learning_rate"]},  # type: ignore[arg-type]
    )
    folder = SweepFolder(tmp_path)

    def go() -> Heard:
        groups, heard = expand(sweep), Heard()
        with folder.held():
            folder.begin(sweep, groups)
            Schedule(folder, groups, InProcess(made_up()), heard).run()
        return heard

    assert len(go().jobs) > 1000
    heard = benchmark.pedantic(go, rounds=3)
    assert heard.jobs == []
    benchmark.extra_info["ms a cell"] = round(1000 * benchmark.stats.stats.min / 1000, 2)


def test_a_task_of_ray(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends at once, sent to a Ray of this machine and back, one after another; at most 0.1 s each."""
    pytest.importorskip("ray")
    from regbench.sweeps import ray_engine

    monkeypatch.setenv("RAY_ADDRESS", "local")
    divided = Share(1, 1)
    engine = ray_engine.RayEngine(None, divided, tmp_path)
    try:
        monkeypatch.setattr(ray_engine, "code_here", lambda: "another")  # the task refuses, and that is all it does
        (group,) = expand(SweepFile(track="pfa-small-v1", grid={"arch": ["lstm"]}))
        job = Job("train", str(tmp_path / "cell"), group.first.config((0,)), 0, "cell")

        def once() -> None:
            engine.submit(job)
            while not any(isinstance(event, Ended) for _, event in engine.wait(1.0)):
                pass

        _repeat(once, 3)
        benchmark.pedantic(_repeat, args=(once, 20), rounds=3)
    finally:
        engine.close()
    benchmark.extra_info["ms a task"] = round(1000 * benchmark.stats.stats.min / 20, 1)


def _repeat(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()
