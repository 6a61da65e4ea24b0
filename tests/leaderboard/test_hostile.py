"""Hostile files: refused in a line, within 10 seconds and 1 GiB each, and nothing in them is run."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT
from tests.leaderboard.conftest import Made
from tests.leaderboard.hostile import entries, runs, verified


@pytest.mark.ci
def test_some_of_them_in_this_process(lstm: Made, tmp_path: Path) -> None:
    attacks = [
        *itertools.islice(entries(lstm.path, tmp_path / "entries"), 3, None, 4),
        *itertools.islice(runs(lstm.run, tmp_path / "runs"), 0, None, 7),
    ]
    assert len(attacks) >= 10
    for path in attacks:
        said = verified(path, lstm.track)
        assert said, path
        assert all(line.isprintable() for line in said)
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.slow
def test_every_one_is_refused_in_lines_that_are_safe_to_print(
    lstm: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them are verified in one process of its own: its peak of memory is that of the worst."""
    words = [str(tiny_file), str(lstm.path), str(lstm.run), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.leaderboard.hostile", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(tmp_path.rglob("hacked"))
    assert not (ROOT / "hacked").exists()
    report = json.loads(done.stdout)
    assert [name for name, (said, _) in report["report"].items() if not said] == []
    lines = [line for said, _ in report["report"].values() for line in said]
    assert [line for line in lines if not line.isprintable() or len(line) > 600] == []
    assert max(seconds for _, seconds in report["report"].values()) < 10.0
    assert report["memory"] < 1 << 30
