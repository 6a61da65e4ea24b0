"""The tables and boards of the pages are what `docs/tables.py` and `docs/figures/boards.py` make today."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT, body_rows, section
from tests.helpers.published import ENTRIES, published

pytestmark = pytest.mark.ci
TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
RESULTS = {
    "## Associative recall": "assoc-recall-small-v1",
    "## In-context bigrams": "bigram-small-v1",
    "## Bigram outputs": "bigram-outputs-small-v1",
    "## Outputs and the shared chain": "bigram-outputs-all-small-v1",
    "## Linear regression": "linear-regression-small-v1",
    "## Arithmetic": "arithmetic-small-v1",
    "## With a larger budget": "pfa-medium-v1",
}


@pytest.mark.parametrize("page", TABLES["pages"](), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_tables_that_are_made(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert TABLES["filled"](text) == text, "python docs/tables.py"
    assert text.count("<!-- table: ") == len(TABLES["PLACE"].findall(text)), "a table has no end"


def test_every_table_is_asked_for() -> None:
    texts = "".join(page.read_text(encoding="utf-8") for page in TABLES["pages"]())
    asked = set(re.findall(r"<!-- table: (\S+) -->", texts))
    assert asked == {*TABLES["TABLES"], *(path.name for path in TABLES["MEASURED"].iterdir())}


@pytest.mark.parametrize(("heading", "track"), RESULTS.items())
def test_rows_are_all_entries_with_the_scores_of_the_leaderboard(heading: str, track: str) -> None:
    """Best first. The page of the board is written by other code."""
    rows = body_rows(section((ROOT / "docs" / "results.md").read_text(encoding="utf-8"), heading))
    board = (ROOT / "leaderboard" / f"{track}.md").read_text(encoding="utf-8").replace("\\", "")
    on_it = {row[1].split()[0]: row for row in body_rows(board) if len(row) > 8}
    main = [float(row[1].split()[0]) for row in rows]
    assert main in (sorted(main), sorted(main, reverse=True))
    entries = [row for row in rows if row[0] in published(track)]
    assert {row[0] for row in entries} == set(published(track))
    assert len(entries) == len([p for p in (ENTRIES / track).glob("*.json") if "evidence" not in p.name])
    for row in entries:
        assert row[1] in on_it[row[0]], row[0]


def test_the_default_track_has_every_architecture_with_default_options() -> None:
    rows = body_rows(section((ROOT / "docs" / "results.md").read_text(encoding="utf-8"), "## The default track"))
    assert {name for name in published("pfa-small-v1") if "+" not in name} <= {row[0] for row in rows}


def test_the_boards_are_drawn_of_the_entries() -> None:
    """A figure carries the digest of what it was drawn from. Right is better in each panel."""
    path = ROOT / "docs" / "figures" / "boards.py"
    script = runpy.run_path(str(path))
    for file, tracks in script["DRAWINGS"].items():
        found = script["boards"](tracks)
        assert script["digest"](found) in path.with_name(f"{file}.svg").read_text(encoding="utf-8"), "make figures"
        panels = script["draw"](found, tracks).axes
        assert [panel.xaxis.get_inverted() for panel in panels] == [m in ("nll", "mse") for _, m, _ in found.values()]
        for track, (dots, _, _) in found.items():
            assert sum(map(len, dots.values())) == sum(len(one.seeds) for one in published(track).values())
    assert script["digest"](script["changes"]()) in path.with_name("ablations.svg").read_text(encoding="utf-8"), (
        "make figures"
    )
    script = runpy.run_path(str(path.with_name("tint.py")))
    assert script["digest"](script["points"]()) in path.with_name("tint.svg").read_text(encoding="utf-8"), (
        "make figures"
    )
