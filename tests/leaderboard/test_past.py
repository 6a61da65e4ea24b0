"""An architecture whose source has changed: the weights of an entry are run, and trained again, by the source of its commit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from regbench import cli
from regbench.leaderboard import history
from regbench.leaderboard.against_run import repredict
from regbench.leaderboard.challenge import challenge
from regbench.leaderboard.history import missing, tree_at
from regbench.leaderboard.job import Job, fill
from regbench.leaderboard.past import past_of
from regbench.leaderboard.run_folder import RunFolder
from regbench.leaderboard.store import Stored
from regbench.leaderboard.submit import submit
from regbench.leaderboard.tiers import read_evidence
from regbench.leaderboard.verify import verify_entry, verify_run
from regbench.tracks import Track, load_track
from regbench.utils.errors import UserError
from tests.helpers.processes import wait_until
from tests.leaderboard.conftest import SETTINGS, Made
from tests.leaderboard.test_verify import commit_of

ROOT = history.ROOT
SLEEPER = """
import os, pathlib, time
def main(arguments):
    pathlib.Path(arguments[0]).write_text(f"{os.getpid()}\\n")
    time.sleep(300)
"""
PARENT = """
import pathlib, sys
from regbench.leaderboard.past import Past
Past("a" * 40, pathlib.Path(sys.argv[1])).command(sys.argv[2:])
"""


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def small_repository(folder: Path) -> str:
    """A repository with a few files; its commit."""
    for name, text in (("regbench/__init__.py", "then = 1\n"), ("architectures/lstm.py", ""), ("docs/page.md", "")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return commit_of(folder)


def test_the_tree_of_a_commit_holds_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = small_repository(tmp_path)
    (tmp_path / "regbench" / "__init__.py").write_text("then = 2\n")
    git(tmp_path, "commit", "-qam", "later")
    monkeypatch.setattr(history, "ROOT", tmp_path)
    with tree_at(commit) as tree:
        assert (tree / "regbench" / "__init__.py").read_text() == "then = 1\n"
        assert sorted(path.name for path in tree.iterdir()) == ["architectures", "regbench"]
    assert not tree.exists()
    assert git(tmp_path, "status", "--porcelain") == "", "the checkout is left as it was"


@pytest.mark.ci
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_of_then_ends_with_whoever_runs_it(sent: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "regbench").mkdir()
    (tmp_path / "regbench" / "__init__.py").write_text("")
    (tmp_path / "regbench" / "cli.py").write_text(SLEEPER)
    pid = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), str(pid)])
    wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    child = psutil.Process(int(pid.read_text()))
    parent.send_signal(sent)
    assert parent.wait(60) == -sent
    assert psutil.wait_procs([child], timeout=60)[1] == []


def test_why_a_source_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ROOT", tmp_path)
    assert missing(None) == "no commit is named"
    assert missing("--help") == "'--help' is no commit"
    assert "does not run from a checkout" in str(missing("a" * 40))
    commit = small_repository(tmp_path)
    assert missing(commit) is None
    assert missing("a" * 40) == "commit aaaaaaaaaaaa is not in the history here"
    (tmp_path / ".git" / "shallow").touch()
    assert "git fetch --unshallow" in str(missing("a" * 40))
    (tmp_path / ".git" / "shallow").unlink()
    git(tmp_path, "checkout", "-q", "--orphan", "other")
    git(tmp_path, "rm", "-rqf", ".")
    (tmp_path / "page.md").touch()
    without = commit_of(tmp_path)
    assert "is not in the history here" in str(missing(commit)), "a commit of another branch"
    with pytest.raises(UserError, match="has no source of regbench"), tree_at(without):
        pass
    monkeypatch.setenv("PATH", "")
    assert "git is not installed" in str(missing(commit))
    with pytest.raises(UserError, match="git is not installed"), tree_at(commit):
        pass


@pytest.fixture(scope="module")
def old(tiny_file: Path, tiny: Track, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An entry that was made when the LSTM was another: its output had the other sign. The repository is beside the run."""
    folder = tmp_path_factory.mktemp("old")
    repository = folder / "repository"
    ignore = shutil.ignore_patterns("__pycache__")
    for package in ("regbench", "architectures", "baselines"):
        shutil.copytree(ROOT / package, repository / package, ignore=ignore)
    lstm = repository / "architectures" / "lstm.py"
    now = lstm.read_text()
    then = now.replace("        return found\n", "        return -found[0], found[1]\n")
    assert then != now
    lstm.write_text(then)
    commit_of(repository)
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-P", "-m", "regbench", "run", "--arch", "lstm", "--track", str(tiny_file), *settings]
    done = subprocess.run(
        [*command, "--seed", "0", "1", "2", "--out", str(folder / "run")],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lstm.write_text(now)
    git(repository, "commit", "-qam", "today")
    (folder / "board").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "ROOT", repository)
        made = submit(folder / "run", folder / "board", track=tiny)
    assert made.findings.faults == []
    assert made.path is not None
    return Made(folder / "run", folder / "board", made.path, tiny)


@pytest.fixture
def there(old: Made, monkeypatch: pytest.MonkeyPatch) -> Path:
    repository = old.run.parent / "repository"
    monkeypatch.setattr(history, "ROOT", repository)
    return repository


def test_an_old_source_is_told_no_more_of_the_io_than_the_task_sets(tiny: Track, tmp_path: Path) -> None:
    for task, told in ((tiny.task, False), (load_track("mad-compression-small-v1").task, True)):
        folder = tmp_path / str(told)
        fill(folder, Job("lstm", {}, task), [], [])
        assert ("bottleneck" in json.loads((folder / "job.json").read_text())["io"]) == told


@pytest.mark.ci
def test_weights_are_run_by_the_source_of_the_commit(old: Made, there: Path, tmp_path: Path) -> None:
    commit = str(old.entry.result.code.commit)
    findings = verify_run(old.run, old.track)[1]
    repredict(old.run, findings, old.track)
    assert findings.faults == []
    assert (
        f"seed 0: predicted again from its weights by architectures.lstm of commit {commit[:12]}: 0 apart"
        in " ".join(findings.notes)
    )
    shutil.copytree(old.board, tmp_path / "board")
    path = tmp_path / "board" / old.path.relative_to(old.board)
    said: list[str] = []
    found = challenge(Stored(path), old.run, by="a reader", track=old.track, instances=100, announce=said.append)
    assert found.findings.faults == []
    assert read_evidence(Stored(path)).tier == "verified"
    assert f"architectures.lstm has changed: that of commit {commit[:12]} is run" in said


@pytest.mark.ci
def test_other_weights_are_refused(old: Made, there: Path, tmp_path: Path) -> None:
    run = old.copy(tmp_path / "run")
    shutil.copy(run / "seed-1" / "checkpoint.safetensors", run / "seed-0" / "checkpoint.safetensors")
    findings = verify_run(run, old.track)[1]
    repredict(run, findings, old.track)
    assert {fault.check for fault in findings.faults} == {"checkpoint"}
    (run / "seed-0" / "checkpoint.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    findings.faults.clear()
    repredict(run, findings, old.track)
    assert "failed: " in str(findings.faults[0])


@pytest.mark.slow
def test_it_is_trained_again_by_the_source_of_the_commit(
    old: Made, there: Path, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "again"
    shutil.copytree(old.board, tmp_path / "board")
    path = tmp_path / "board" / old.path.relative_to(old.board)
    arguments = ["reproduce", str(path), "--track", str(tiny_file), "--out", str(out), "--by", "a reader"]
    assert cli.main(arguments) == 0
    assert "predictions the same to the bit: seeds 0, 1, 2" in capsys.readouterr().out.replace("\n", " ")
    assert read_evidence(Stored(path)).tier == "reproduced"
    assert RunFolder(out).result.architecture.source_sha256 == old.entry.result.architecture.source_sha256
    assert cli.main(arguments) == 0, "a finished one is compared again"


def test_without_the_commit_nothing_is_run(lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ROOT", tmp_path)
    record = lstm.entry.result.architecture
    changed = record.model_copy(update={"source_sha256": "0" * 64})
    with pytest.raises(UserError, match=r"lstm is not today's, and commit a+ is not known"), past_of(changed, "a" * 40):
        pass
    with past_of(record, None) as past:
        assert past is None
    assert verify_entry(lstm.stored, track=lstm.track).faults == [], "today's source needs no history"
