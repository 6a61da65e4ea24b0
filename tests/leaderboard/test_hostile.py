"""Hostile files: refused in a line, within 10 seconds and 1 GiB each, and nothing in them is run."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.leaderboard.conftest import Made
from tests.leaderboard.hostile import entries, runs, verified

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report(lstm: Made, tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All of them verified in one process of its own: its peak of memory is that of the worst."""
    folder = tmp_path_factory.mktemp("hostile")
    done = subprocess.run(
        [sys.executable, "-m", "tests.leaderboard.hostile", str(tiny_file), str(lstm.path), str(lstm.run), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(folder.rglob("hacked"))
    assert not (ROOT / "hacked").exists()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.ci
def test_some_of_them_in_this_process(lstm: Made, tmp_path: Path) -> None:
    attacks = [
        *itertools.islice(entries(lstm.path, tmp_path / "entries"), 3, None, 9),
        *itertools.islice(runs(lstm.run, tmp_path / "runs"), 0, None, 7),
    ]
    assert len(attacks) > 12
    for path in attacks:
        said = verified(path, lstm.track)
        assert said, path
        assert all(line.isprintable() for line in said)
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.slow
def test_every_one_is_refused(report: dict[str, Any]) -> None:
    assert len(report["report"]) >= 100
    assert [name for name, (said, _) in report["report"].items() if not said] == []


@pytest.mark.slow
def test_each_is_refused_in_lines_that_are_safe_to_print(report: dict[str, Any]) -> None:
    lines = [line for said, _ in report["report"].values() for line in said]
    assert [line for line in lines if not line.isprintable() or len(line) > 600] == []


@pytest.mark.slow
def test_none_takes_ten_seconds(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    slowest = sorted(((seconds, name) for name, (_, seconds) in report["report"].items()), reverse=True)
    with capsys.disabled():
        print(f"\n{len(slowest)} hostile files; slowest {slowest[0][0]:.2f} s ({slowest[0][1]}); ", end="")
        print(f"{report['memory'] / 2**20:.0f} MiB at most, with PyTorch loaded")
    assert slowest[0][0] < 10.0, slowest[:5]


@pytest.mark.slow
def test_none_takes_a_gigabyte(report: dict[str, Any]) -> None:
    assert report["memory"] < 1 << 30
