"""Runs whose truth nobody knows are no entries: refused in one line, before anything is generated or computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from regbench import cli
from regbench.tracks import Track, track

WHY = "its text depends on the machine it was made on and its truth is unknown, so nobody else could check a claim"


@pytest.mark.parametrize("command", ["submit", "verify"])
def test_they_are_refused_at_once(
    command: str,
    text_run: Path,
    text_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_work(self: Track, split: str) -> None:
        raise AssertionError("instances were asked for")

    monkeypatch.setattr(track.Track, "instances", no_work)
    board = ["--board", str(tmp_path)] if command == "submit" else []
    assert cli.main([command, str(text_run), "--track", str(text_file), *board]) == 2
    out, error = capsys.readouterr()
    assert WHY in error
    assert error.count("\n") == 1
    assert not out
    assert not list(tmp_path.iterdir())
