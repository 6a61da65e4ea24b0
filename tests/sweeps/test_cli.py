"""`regbench sweep` as people type it: what they see, the exit codes, and one line where the input was wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from regbench.cli.live import Live
from regbench.config import Config
from regbench.results import read_result
from regbench.sweeps.schedule import Counts
from regbench.sweeps.sweep import Sweep
from regbench.sweeps.work import Ended, Job, Note
from regbench.utils import threads
from tests.helpers import typed
from tests.helpers.sweeps import InProcess, write_sweep
from tests.helpers.typed import refused


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setattr(Sweep, "_engine", lambda *_: InProcess())


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return typed.said(capsys, "sweep", *arguments)


def test_a_sweep_is_told_and_tabulated(capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_file: Path) -> None:
    """The default folder is called as the file is; what fails is in a table, and the exit code says so."""
    (tmp_path / "breaks.py").write_text(
        "import regbench\nclass Breaks(regbench.Mixer):\n    def forward(self, x):\n        return x.flip(1)\n"
    )
    arch = [str(tmp_path / "average.py"), str(tmp_path / "breaks.py")]
    write_sweep(tmp_path, tiny_file, grid={"arch": arch, "training.learning_rate": [1e-3, 1e-2]}, seeds=[0])
    code, out, err = said(capsys, "sweep.yaml", "--jobs", "1")
    assert code == 1
    row = next(line for line in out.splitlines() if line.strip().startswith("average"))
    assert "learning_rate=0.01" in row
    assert out.count("it sees the future") == 2
    assert (
        "next, as an entry needs: write seeds: [0, 1, 2] in sweep.yaml, leave out what shortens the training, and sweep again"
        in out
    )
    assert "regbench submit" not in out
    assert "best.yaml, table.csv, trials.csv" in out
    assert f"1 run at once, {threads.asked() or threads.cores()} thread" in err
    assert "chosen of 2: average learning_rate=0.01, validation loss" in err
    assert "failed: breaks learning_rate=0.001 seed 0 (trial): architecture 'breaks' cannot be scored" in err


@pytest.mark.ci
def test_an_entry_that_was_chosen_among_groups_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_file: Path
) -> None:
    """Its own group has two trials. The best of two groups was chosen among four."""
    grid = {"arch": [str(tmp_path / "average.py")], "n_layers": [1, 2], "training.learning_rate": [1e-3, 1e-2]}
    write_sweep(tmp_path, tiny_file, grid=grid, seeds=[0, 1, 2])
    code, out, _ = said(capsys, "sweep.yaml", "--jobs", "1")
    assert code == 0
    assert "it states 2 trials, and all groups of average had 4" in out
    assert "train this configuration again with --trials 4" in out


@pytest.mark.ci
def test_seeds_that_are_added_lead_to_an_entry(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_file: Path
) -> None:
    """What the first sweep asks for: more seeds in the same file. Its trials are not trained again, and analyses stay."""
    grid = {"arch": [str(tmp_path / "average.py")], "training.learning_rate": [1e-3, 1e-2]}
    write_sweep(tmp_path, tiny_file, grid=grid, seeds=[0])
    assert said(capsys, "sweep.yaml", "--jobs", "1")[0] == 0
    (run,) = (tmp_path / "runs" / "sweeps" / "sweep" / "runs" / "tiny-v1").iterdir()
    (run / "analysis").mkdir()
    (run / "analysis" / "table.csv").write_text("mine")
    write_sweep(tmp_path, tiny_file, grid=grid, seeds=[0, 1, 2])
    code, out, err = said(capsys, "sweep.yaml", "--jobs", "1")
    assert code == 0
    assert [seed.seed for seed in read_result(run).seeds] == [0, 1, 2]
    assert (run / "analysis" / "table.csv").read_text() == "mine"
    assert list(run.parent.iterdir()) == [run]
    assert f"next: regbench submit {tmp_path / 'runs' / 'sweeps' / 'sweep' / 'runs' / 'tiny-v1'}/average-" in out
    assert "begun: average learning_rate=0.01 seed 1" in err
    assert "(trial)" not in err


def test_a_dry_run_trains_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_file: Path) -> None:
    path = write_sweep(tmp_path, tiny_file)
    code, out, err = said(capsys, str(path), "--dry-run")
    assert code == 0
    cells = [line for line in out.splitlines() if line.endswith("seed 0")]
    assert len(cells) == 4
    assert all(len(line.split()[0]) == 8 for line in cells)
    assert out.count("the best of these 2: seeds 0 1") == 2
    assert "6 cells, about" in out
    assert "timing average on tiny-v1" in err
    assert not (tmp_path / "runs").exists()
    (row,) = (line.split() for line in out.splitlines() if line.split()[:2] == ["tiny-v1", "average"] and "k" in line)
    assert row[2:5] == ["4", "2", "6"]


def test_cells_and_seeds_are_counted_alike_before_and_within_a_sweep(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_file: Path
) -> None:
    """Three depths with one seed are three cells and one seed."""
    grid = {"arch": ["lstm"], "n_layers": [1, 2, 3]}
    path = write_sweep(tmp_path, tiny_file, grid=grid, options_of={}, select=None, seeds=[0])
    out = said(capsys, str(path), "--dry-run")[1]
    (row,) = (line.split() for line in out.splitlines() if line.split()[:2] == ["tiny-v1", "lstm"] and "–" in line)
    assert row[2:5] == ["0", "1", "3"]
    assert "3 cells, about" in out
    err = said(capsys, str(path), "--jobs", "1")[2]
    assert re.findall(r"; (\d) of 3 done", err) == ["1", "1", "2", "2", "3", "3"], "every second joins the seeds of one"


def test_no_cell_is_divided(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cell takes its own time, however many could run at once."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("regbench.utils.threads.cores", lambda: 8)
    grid = {"arch": ["lstm"], "n_layers": [1]}
    path = write_sweep(tmp_path, tiny_file, grid=grid, options_of={}, select=None, seeds=[0])
    code, out, _ = said(capsys, str(path), "--dry-run", "--jobs", "8")
    assert code == 0
    (row,) = (line for line in out.splitlines() if line.split()[:2] == ["tiny-v1", "lstm"] and "k" in line)
    last = next(line for line in out.splitlines() if line.startswith("1 cell, about "))
    assert last.split(" about ")[1].split(" with ")[0] in row


def test_a_dry_run_of_trials_of_another_size(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_file: Path
) -> None:
    select = {"over": ["training.learning_rate"], "with": {"d_model": 4}}
    code, out, _ = said(capsys, str(write_sweep(tmp_path, tiny_file, select=select)), "--dry-run")
    assert code == 0
    assert "8 cells, about" in out


def test_a_dry_run_of_a_cluster_asks_for_nothing_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a login node, which has fewer cores, and no GPU. Nothing is timed: the nodes may be other machines."""
    monkeypatch.setattr("regbench.sweeps.local._gpus", lambda: 0)
    monkeypatch.setattr("regbench.sweeps.estimate._time", lambda *_: pytest.fail("it is timed here"))
    path = write_sweep(tmp_path, tiny_file, device="cuda", gpus=1, threads=4)
    code, out, err = said(capsys, str(path), "--dry-run", "--on", "ray", "--jobs", "4096")
    assert (code, err) == (0, "")
    assert len([line for line in out.splitlines() if line.endswith("seed 0")]) == 4
    assert out.count("the best of these 2: seeds 0 1") == 2
    assert out.splitlines()[-1] == (
        "6 cells, 4 threads each; not timed, because the nodes of a cluster may be other machines than this one"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "cannot read nothing.yaml: No such file or directory"),
        (["sweep.yaml", "--jobs", "0"], "--jobs 0: at least one process is needed"),
        (["sweep.yaml", "--jobs", "4096"], "4096 runs of 1 thread need 4096 cores"),
        (["sweep.yaml", "--on", "slurm"], "unknown choice 'slurm'; known: local, ray"),
        (["sweep.yaml", "--ray-address", "a:1"], "--ray-address says where Ray runs: give --on ray too"),
        (["sweep.yaml", "--out", "sweep.yaml"], "cannot write"),
        (["sweep.yaml", "--dry-run", "--out", "x"], "--out has no effect with --dry-run, which writes nothing"),
        (
            ["sweep.yaml", "--dry-run", "--on", "ray", "--ray-address", "a:1"],
            "--ray-address has no effect with --dry-run, which writes nothing",
        ),
        (["sweep.yaml", "--dry-run", "--on", "ray", "--jobs", "0"], "--jobs 0: at least one run at once is needed"),
        (["gpus.yaml"], "a run with 1 GPU asked for, and there are 0 GPUs here"),
    ],
)
def test_wrong_input(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    tiny_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("regbench.sweeps.local._gpus", lambda: 0)
    write_sweep(tmp_path, tiny_file, gpus=1).rename(tmp_path / "gpus.yaml")
    write_sweep(tmp_path, tiny_file)
    refused(capsys, ["sweep", *arguments], message)


@pytest.fixture
def job() -> Callable[[str], Job]:
    config = Config(track="t", architecture="a")
    return lambda name: Job("train", f"cells/{name}", config, 0, f"a {name}", size=100)


def test_a_line_for_each_run_and_one_for_the_whole(job: Callable[[str], Job]) -> None:
    console = Console(force_terminal=True, width=100, record=True)
    counts = Counts(total=10, done=4, size=600)
    now = [0.0]
    with Live(console, clock=lambda: now[0]) as live:
        live.started(job("x"), counts)
        live.started(job("y"), counts)
        live.noted(job("y"), Note("training  loss 1.250  5,000 tokens/s", 0.25))
        live.noted(job("y"), Note("training  loss 1.234  5,000 tokens/s", 0.5))
        now[0] = 60.0
        live.ticked(counts)
        console.print(live._live.renderable)
        live.ended(job("x"), Ended("it diverged", refused=True), counts)
    shown = console.export_text()
    assert "a x" in shown
    assert "━━━━━━╌╌╌╌╌╌  50 %  training  loss 1.234  5,000 tokens/s" in shown
    assert "4 of 10 done, 0 failed, 6 left, end about" in shown
    assert "failed: a x (trial): it diverged" in shown


def test_plain_lines_where_no_terminal_is(job: Callable[[str], Job], capsys: pytest.CaptureFixture[str]) -> None:
    now, counts = [0.0], Counts(total=2, size=200)
    with Live(Console(width=100), clock=lambda: now[0]) as live:
        live.started(job("x"), counts)
        live.ticked(counts)
        now[0] = 61.0
        live.ticked(counts)
        live.noted(job("x"), Note("training", 0.25))
        live.noted(job("x"), Note("training", 0.5))
        counts.done, counts.size = 1, 100
        live.ended(job("x"), Ended(), counts)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["begun: a x (trial)", "0 of 2 done, 0 failed, 2 left"]
    assert lines[2].startswith("done: a x (trial); 1 of 2 done, 0 failed, 1 left, end about ")


def test_the_end_is_expected_from_the_tokens_that_are_left(
    job: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running job counts by its share. What a resumed or a trained one had done before does not."""
    now = [0.0]
    begin = datetime(2026, 1, 1, 12, 0)
    monkeypatch.setattr("regbench.cli.live.datetime", SimpleNamespace(now=lambda: begin + timedelta(seconds=now[0])))
    counts = Counts(total=3, size=600)
    live = Live(Console(width=100), clock=lambda: now[0])
    live.started(job("x"), counts)
    live.noted(job("x"), Note("training", 0.4))
    assert "end" not in live._whole(counts)
    now[0] = 60.0
    live.noted(job("x"), Note("training", 0.5))
    assert live._whole(counts).endswith("end about 12:56")  # 10 in a minute: 550 are left
    live.noted(job("x"), Note("validation"))
    assert live._whole(counts).endswith("end about 12:56")
    counts.size = 500
    live.ended(job("x"), Ended(), counts)
    live.started(job("y"), counts)
    live.noted(job("y"), Note("scoring"))
    assert live._whole(counts).endswith("end about 12:09")  # 60 in a minute
    counts.size = 400
    live.ended(job("y"), Ended(), counts)
    assert live._whole(counts).endswith("end about 12:07"), "it had been trained before"
