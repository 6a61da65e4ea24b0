"""The leaderboard of this repository: its tables and page are what its entries give, and every entry verifies."""

from __future__ import annotations

import pytest

from regbench.leaderboard.publish import load_boards, outdated, render
from regbench.leaderboard.store import stored_in
from regbench.leaderboard.table import TABLE, table
from regbench.leaderboard.verify import verify_entry
from regbench.results import BaselineRecord
from tests.helpers.documents import ROOT

BOARD = ROOT / "leaderboard"


@pytest.mark.ci
def test_tables_page_and_entries_agree() -> None:
    """No entry has a fault, and none is a copy of another."""
    boards, faults = load_boards(BOARD)
    assert faults == []
    assert sum(len(board.entries) for board in boards) == len(stored_in(BOARD))
    if boards:
        assert outdated(BOARD, {**render(boards), TABLE: table(boards)}) == [], "run `regbench leaderboard`"


def test_nothing_else_lies_among_the_entries() -> None:
    kept = {path.name for stored in stored_in(BOARD) for path in stored.files}
    there = [path for path in (BOARD / "entries").rglob("*") if path.is_file()]
    assert [path for path in there if path.name not in kept] == []


def without_predict(baselines: dict[str, BaselineRecord]) -> dict[str, BaselineRecord]:
    """Baselines as they were before `bigram` got its parameter `predict`."""
    return {
        name: record.model_copy(update={"options": {k: v for k, v in record.options.items() if k != "predict"}})
        for name, record in baselines.items()
    }


@pytest.mark.ci
def test_an_entry_older_or_newer_than_a_parameter_of_its_task_is_verified() -> None:
    """`bigram` has got `predict` since some entries. Its default is what was, so both ways agree; another value does not."""
    stored = stored_in(BOARD / "entries" / "bigram-small-v1")
    by_age = {"predict" in one.entry.result.baselines["solver"].options: one for one in stored}
    older, newer = by_age[False], by_age[True]
    today = newer.entry.result.baselines
    assert verify_entry(older).faults == []  # baselines are computed
    assert verify_entry(older, baselines=today).faults == []
    assert verify_entry(newer, baselines=without_predict(today)).faults == []
    solver = today["solver"].model_copy(update={"options": {**today["solver"].options, "predict": "outputs"}})
    for one in (older, newer):
        assert "solver has other options" in str(verify_entry(one, baselines={**today, "solver": solver}).faults)
