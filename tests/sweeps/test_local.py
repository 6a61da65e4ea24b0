"""The pool of processes: how it divides a machine, what its processes are told, and how it ends."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import regbench
from regbench import cli
from regbench.config import Config, write_config
from regbench.results import read_result
from regbench.sweeps import local
from regbench.sweeps.local import LocalEngine, Share, share
from regbench.sweeps.schedule import run_seeds
from regbench.sweeps.work import Ended, Job
from regbench.utils import threads
from regbench.utils.errors import UserError
from tests.helpers.processes import wait_until
from tests.helpers.sweeps import Heard, cores_free, write_sweep

two_cores = pytest.mark.skipif(not cores_free(2), reason="needs two cores")
QUICK = {"d_model": 8, "training.batch_size": 8, "training.evaluations": 3, "training.train_tokens": 2000}


class TestShare:
    @pytest.fixture
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        def set_up(cores: int, gpus: int = 0, omp: str | None = None) -> None:
            monkeypatch.setattr(threads, "cores", lambda: cores)
            monkeypatch.setattr(local, "_gpus", lambda: gpus)
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            if omp is not None:
                monkeypatch.setenv("OMP_NUM_THREADS", omp)

        return set_up

    @pytest.mark.parametrize(
        ("cores", "omp", "jobs", "of_each", "wanted"),
        [
            (8, None, None, None, (8, 1)),
            (8, None, 2, None, (2, 4)),
            (8, None, 3, None, (3, 2)),
            (8, None, None, 4, (2, 4)),
            (8, "2", None, None, (4, 2)),
            (8, "1", 2, None, (2, 1)),
            (8, None, 1, None, (1, 8)),
            (1, None, None, None, (1, 1)),
            (2, None, None, 4, (1, 4)),
        ],
    )
    def test_of_cores(
        self,
        machine: Callable[..., None],
        cores: int,
        omp: str | None,
        jobs: int | None,
        of_each: int | None,
        wanted: tuple[int, int],
    ) -> None:
        machine(cores, omp=omp)
        assert share(jobs, of_each) == Share(*wanted)

    def test_of_gpus(self, machine: Callable[..., None]) -> None:
        machine(16, gpus=4)
        assert share() == Share(4, 1, 1.0)
        assert share(2) == Share(2, 8, 1.0)
        assert share(gpus=0.5) == Share(8, 1, 0.5)
        assert share(gpus=0.4) == Share(8, 1, 0.4), "two on each, and no fifth on two"
        assert share(device="cpu") == Share(16, 1, 0.0)

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            (
                {"device": "cuda:1"},
                "runs side by side share all GPUs: instead of the device cuda:1 say cuda, with CUDA_VIS",
            ),
            ({"device": "cpu", "gpus": 0.5}, "a run with 0.5 GPU asked for, and the device is cpu"),
            ({"jobs": 2, "of_each": 2}, "2 runs of 2 threads need 4 cores, and there are 2"),
            ({"jobs": 2, "gpus": 1.0}, "2 runs of 1 GPU asked for, and there are 0 GPUs here"),
        ],
    )
    def test_more_than_there_is(self, machine: Callable[..., None], asked: dict[str, Any], message: str) -> None:
        machine(2)
        with pytest.raises(UserError, match=message):
            share(**asked)

    def test_a_gpu_for_each_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = LocalEngine(Share(4, 2, 0.5), tmp_path / "log")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert [engine._environment(n)["CUDA_VISIBLE_DEVICES"] for n in range(4)] == ["0", "0", "1", "1"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
        assert [engine._environment(n)["CUDA_VISIBLE_DEVICES"] for n in range(4)] == ["3", "3", "5", "5"]


def job_of(folder: Path, architecture: str, track: Path, **settings: Any) -> Job:
    config = Config(track=str(track), architecture=architecture, settings=QUICK | settings)
    return Job("train", str(folder), config, 0, folder.name)


def ends_of(engine: LocalEngine, jobs: int) -> dict[str, Ended]:
    ends: dict[str, Ended] = {}
    until = time.monotonic() + 240
    while len(ends) < jobs and time.monotonic() < until:
        ends |= {job.label: event for job, event in engine.wait(0.5) if isinstance(event, Ended)}
    return ends


def test_a_process_that_dies_within_a_line_is_known_to_be_dead(tmp_path: Path) -> None:
    engine, worker = LocalEngine(Share(1, 1), tmp_path / "log"), object()
    engine._listen(worker, io.StringIO('{"a": 1}\n{"b"'))  # type: ignore[arg-type]
    assert [engine._events.get(timeout=1) for _ in range(2)] == [(worker, {"a": 1}), (worker, None)]


def test_a_pool_that_did_nothing_leaves_the_log_of_another(tmp_path: Path) -> None:
    """`regbench run --resume DIR --jobs 2`, given twice: the second is refused, and the first writes its errors there."""
    log = tmp_path / "workers.log"
    log.touch()
    LocalEngine(Share(1, 1), log).close()
    assert log.exists()


@pytest.mark.ci
def test_a_process_that_dies_fails_its_job_alone(tmp_path: Path, tiny_file: Path, plugin: Path) -> None:
    """And a job that is refused leaves its process alive. Each process has its threads and waits asleep."""
    deadly = tmp_path / "deadly.py"
    deadly.write_text("import os, signal\nprint('on stdout')\nos.kill(os.getpid(), signal.SIGKILL)\n")
    engine = LocalEngine(Share(1, 1), tmp_path / "workers.log")
    try:
        engine.submit(job_of(tmp_path / "dead", str(deadly), tiny_file))
        assert engine.free() == 0
        first = engine._workers[0].process
        environment = psutil.Process(first.pid).environ()
        assert {name: environment[name] for name in threads.environment(1)} == threads.environment(1)
        assert threads.environment(1)["OMP_WAIT_POLICY"] == "passive"
        (dead,) = ends_of(engine, 1).values()
        assert dead.message is not None
        assert dead.message.startswith("its process ended by signal 9")
        assert not dead.refused
        engine.submit(job_of(tmp_path / "refused", "manba", tiny_file))
        assert ends_of(engine, 1) == {
            "refused": Ended("unknown architecture 'manba'; did you mean 'mamba'?", refused=True)
        }
        engine.submit(job_of(tmp_path / "done", str(plugin), tiny_file))
        assert ends_of(engine, 1) == {"done": Ended()}
        assert len(engine._workers) == 1
    finally:
        engine.close()
    assert (tmp_path / "done" / "trained.json").exists()
    assert not (tmp_path / "done" / "scores.json").exists()


@pytest.mark.ci
def test_seeds_side_by_side_have_the_same_numbers(
    tmp_path: Path, tiny_file: Path, plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With as many threads a run, as here by OMP_NUM_THREADS."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "160")
    flags = [f"--set={key}={value}" for key, value in QUICK.items()]
    base = ["run", "--arch", str(plugin), "--track", str(tiny_file), *flags, "--seed", "0", "1", "--out"]
    jobs = str(min(2, threads.cores()))
    assert cli.main([*base, str(tmp_path / "together"), "--jobs", jobs]) == 0
    captured = capsys.readouterr()
    assert "average, seed 1" in captured.out
    assert "done: seed 1 (training and test)" in captured.err
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert cli.main([*base, str(tmp_path / "alone")]) == 0
    finally:
        torch.set_num_threads(before)
    one, two = (read_result(tmp_path / name) for name in ("together", "alone"))
    assert [seed.predictions_sha256 for seed in one.seeds] == [seed.predictions_sha256 for seed in two.seeds]
    assert [seed.scores for seed in one.seeds] == [seed.scores for seed in two.seeds]
    assert one.environment == two.environment
    names = [
        sorted(p.relative_to(tmp_path / n).as_posix() for p in (tmp_path / n).rglob("*")) for n in ("together", "alone")
    ]
    assert names[0] == names[1]
    with pytest.raises(UserError, match="holds a run already"):
        regbench.runner.begin(Config(track=str(tiny_file), architecture=str(plugin)), tmp_path / "together")  # type: ignore[attr-defined]


def test_of_a_finished_run_the_result_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without `--jobs`: no process is started, and its seeds are not looked into."""
    write_config(tmp_path, Config(track="pfa-small-v1", architecture="edited.py", seeds=(0, 1)))
    (tmp_path / "result.json").write_text("{}")
    monkeypatch.setattr("regbench.sweeps.schedule.read_result", lambda folder: f"of {folder.name}")
    heard = Heard()
    assert run_seeds(tmp_path, 1, heard) == f"of {tmp_path.name}"
    assert heard.jobs == []
    assert not list(tmp_path.glob("seed-*"))


def sweeping(folder: Path, out: str, jobs: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "regbench", "sweep", "sweep.yaml", "--jobs", str(jobs), "--out", out]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that were begun in the background ignore Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.ci
def test_ctrl_c_ends_all_processes(tmp_path: Path, tiny_file: Path) -> None:
    """Once is enough; a second sweep in the same folder is refused as long as the first runs."""
    base = QUICK | {"training.train_tokens": 6000, "training.batch_size": 1, "training.evaluations": 200}
    write_sweep(tmp_path, tiny_file, base=base)
    first = sweeping(tmp_path, "out", 1)
    wait_until(lambda: list(tmp_path.glob("out/cells/*/metrics.jsonl")))
    os.killpg(first.pid, signal.SIGSTOP)  # so that it does not end before the second has begun
    children = psutil.Process(first.pid).children(recursive=True)
    assert children
    out, err = sweeping(tmp_path, "out", 1).communicate(timeout=120)
    assert out == ""
    assert err.splitlines() == [
        f"regbench: {tmp_path / 'out'} is in use by another sweep; wait for it, or choose another --out"
    ]
    os.killpg(first.pid, signal.SIGCONT)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: to the sweep and its processes
    out, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert err.splitlines()[-1] == "regbench: interrupted; go on with: regbench sweep sweep.yaml --jobs 1 --out out"
    assert "Traceback" not in err
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert not (tmp_path / "out" / "table.csv").exists()
    assert not (tmp_path / "out" / "workers.log").exists()
