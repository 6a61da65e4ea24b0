"""The worked example of architectures/README.md keeps the whole contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from regbench import cli
from regbench.checks.architecture import CONTRACT
from tests.helpers.documents import blocks, commands

TEXT = (Path(__file__).resolve().parents[2] / "architectures" / "README.md").read_text(encoding="utf-8")


def test_the_example_is_short_and_keeps_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = (block for kind, block in blocks(TEXT) if kind == "python")
    (command,) = commands(TEXT)
    assert len(example.splitlines()) < 40
    monkeypatch.chdir(tmp_path)
    Path("averaging.py").write_text(example)
    assert cli.main(command.split()[1:]) == 0
    out = capsys.readouterr().out
    assert "1 checked, 0 faults" in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("  ")] == [
        ["holds", check.__name__] for check in CONTRACT
    ]
