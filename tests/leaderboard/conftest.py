"""Runs of three seeds on the tiny track, made once: a built-in architecture, and one that a stranger wrote."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import regbench
from regbench.leaderboard.against_run import can_isolate
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.rank import Board, rank
from regbench.leaderboard.store import ROOT, Stored, stored_in
from regbench.leaderboard.verify import submit
from regbench.results import Code
from regbench.tracks import Track
from regbench.training.provenance import describe_code
from tests.helpers.typed import AVERAGE
from tests.leaderboard.examples import make_entries

isolates = pytest.mark.skipif(not can_isolate(), reason="no bubblewrap that may make namespaces")

SETTINGS = {"d_model": 8, "n_layers": 1, "training.batch_size": 8, "training.evaluations": 3, "training.epochs": 2}


def git(folder: Path, *words: str) -> str:
    """What git says in a repository."""
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> str:
    """Commits all that a folder holds, and returns the commit. The folder becomes a repository if it is none."""
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


@dataclass(frozen=True)
class Made:
    """A run folder, the board it was submitted to, and its entry."""

    run: Path
    board: Path
    path: Path
    track: Track
    source: Path | None = None

    @property
    def stored(self) -> Stored:
        """The entry, which is read anew."""
        return Stored(self.path)

    @property
    def entry(self) -> Entry:
        return self.stored.entry

    def copy(self, to: Path) -> Path:
        """The run folder, to be spoiled."""
        shutil.copytree(self.run, to)
        return to


def made_in(folder: Path, track: Track, source: Path | None = None) -> Made:
    """Submits the run of a folder to a new board there."""
    (folder / "board").mkdir()
    made = submit(folder / "run", folder / "board", track=track)
    assert made.findings.faults == []
    assert made.path is not None
    return Made(folder / "run", folder / "board", made.path, track, source)


def board_of(made: Made, folder: Path) -> Path:
    """A copy of the board, which is committed; the entry's file in it."""
    shutil.copytree(made.board, folder / "board")
    commit(folder / "board")
    return folder / "board" / made.path.relative_to(made.board)


@pytest.fixture(scope="session")
def committed() -> Iterator[None]:
    """Runs are made as from a clean checkout, whatever state this one is in, or none."""
    code = Code(commit=describe_code().commit or "0" * 40, dirty=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regbench.runner.train.describe_code", lambda: code)
        yield


@pytest.fixture(scope="session")
def lstm(committed: None, tiny_file: Path, tiny: Track, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A built-in architecture."""
    folder = tmp_path_factory.mktemp("lstm")
    regbench.run(str(tiny_file), "lstm", (0, 1, 2), settings=SETTINGS, trials=2, out=folder / "run")
    return made_in(folder, tiny)


@pytest.fixture(scope="session")
def stranger(committed: None, tiny_file: Path, tiny: Track, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An architecture of someone's own file."""
    folder = tmp_path_factory.mktemp("stranger")
    source = folder / "my_average.py"
    source.write_text(AVERAGE)
    regbench.run(str(tiny_file), str(source), (0, 1, 2), settings=SETTINGS, out=folder / "run")
    return made_in(folder, tiny, source)


@pytest.fixture(scope="session")
def entries(tiny: Track) -> list[Entry]:
    """Eight entries of several architectures, without a training."""
    return make_entries(tiny)


@pytest.fixture(scope="session")
def reach_boards() -> list[Board]:
    """The boards of recall and of state tracking, of the committed entries."""
    tracks = ("recall-reach-v2", "state-reach-v1")
    return rank([one.entry for track in tracks for one in stored_in(ROOT / "leaderboard" / "entries" / track)])
