"""Commands are typed in an empty folder, into a wide terminal."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
