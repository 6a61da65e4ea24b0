"""The example of docs/own-task.md, as files to be used and broken; a folder of text, and tracks of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.data.text.conftest import write_corpus
from tests.helpers.documents import ROOT, blocks

PAGE = (ROOT / "docs" / "own-task.md").read_text(encoding="utf-8")
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty documents of text."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "texts", documents=30)


def write_text_track(path: Path, task: str, parameters: dict[str, object], **splits: int) -> Path:
    """Writes the file of a small track of text."""
    content = {
        "name": "own-v1",
        "task": task,
        "parameters": parameters,
        "splits": {"train": 30, "validation": 5, "test": 9, "seed": 0, **splits},
        "budget": {"train_tokens": 1000},
        "main_score": "nll",
    }
    path.write_text(yaml.safe_dump(content))
    return path
