"""docs/entries.md keeps its word: its code runs, and it has every column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import regbench
from tests.helpers.documents import ROOT, blocks, body_rows

PAGE = (ROOT / "docs" / "entries.md").read_text(encoding="utf-8")
CHOOSE, READ = (block for kind, block in blocks(PAGE) if kind == "python")


def test_the_choice_is_what_the_entries_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(CHOOSE.strip().splitlines()) <= 10
    names: dict[str, object] = {}
    exec(CHOOSE, names)
    said = capsys.readouterr().out
    best = names["best"].sort_values("mean", ascending=False)  # type: ignore[attr-defined]
    assert best.index[0][0] in said
    assert (best.index.get_level_values("state") <= 16_384).all()
    assert (
        len(best)
        == regbench.entries()
        .query("track == 'recall-reach-v2' and state <= 16384 and tier != 'claimed'")
        .entry.nunique()
    )


def test_every_column_is_explained() -> None:
    named = [re.sub("`", "", name) for row in body_rows(PAGE) for name in row[0].split(", ")]
    assert sorted(named) == sorted(regbench.entries().columns)


def test_the_file_of_the_site_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is written as `make docs` writes it."""
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "site").mkdir()
    (write,) = re.findall(r"python -c '(.*)'", (ROOT / "Makefile").read_text())
    exec(write, {})
    exec(READ, {})
    assert capsys.readouterr().out.strip() == str(list(regbench.entries().columns))
