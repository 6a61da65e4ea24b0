"""The example of docs/own-task.md, as files to be used and broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.documents import blocks

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-task.md").read_text(encoding="utf-8")
SMALLER = {"train: 5000": "train: 60", "validation: 100": "validation: 10", "test: 200": "test: 20"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, to work in, with the page's `repeating.py` and its track, the splits smaller."""
    monkeypatch.chdir(tmp_path)
    ((_, task), (_, track)) = [(kind, block) for kind, block in blocks(PAGE) if kind in ("python", "yaml")]
    for old, new in SMALLER.items():
        assert old in track
        track = track.replace(old, new)
    (tmp_path / "repeating.py").write_text(task)
    (tmp_path / "repeating-v1.yaml").write_text(track)
    return tmp_path
