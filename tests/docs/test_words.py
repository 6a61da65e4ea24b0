"""A page stays short: its words are counted without generated tables, commands and the targets of links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT

LIMITS = {"docs/results.md": 2500, "docs/design.md": 900, "leaderboard/RULES.md": 1000}
LIMIT = 1500
"""Of every other page."""
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "architectures/README.md", "leaderboard/RULES.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def words(text: str) -> int:
    """Those of people: what stands between spaces and has a letter or a digit."""
    text = re.sub(r"<!-- (table: \S+|simulated|boards) -->.*?<!-- end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return sum(bool(re.search(r"\w", piece)) for piece in text.split())


def test_words_are_those_of_people() -> None:
    text = "Two words, [three](a.md).\n<!-- table: x -->\n\n| a | 1 |\n\n<!-- end -->\n```sh\nmake x\n```\n| four ± 5 |"
    assert words(text) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_keeps_its_limit(page: Path) -> None:
    limit = LIMITS.get(page.relative_to(ROOT).as_posix(), LIMIT)
    assert words(page.read_text(encoding="utf-8")) <= limit
