"""The leaderboard of this repository: its tables and page are what its entries give, and every entry verifies."""

from __future__ import annotations

from pathlib import Path

from regbench.leaderboard.load import load_boards
from regbench.leaderboard.publish import outdated, render
from regbench.leaderboard.store import stored_entries, stored_in
from regbench.leaderboard.verify import verify_entry

BOARD = Path(__file__).resolve().parents[2] / "leaderboard"


def test_tables_page_and_entries_agree() -> None:
    boards, faults = load_boards(BOARD)
    assert faults == []
    assert sum(len(board.entries) for board in boards) == len(stored_entries(BOARD))
    if boards:
        assert outdated(BOARD, render(boards)) == [], "run `regbench leaderboard`"


def test_nothing_else_lies_among_the_entries() -> None:
    for stored in stored_entries(BOARD):
        kept = {
            stored.path.name,
            stored.source_name,
            stored.evidence_name,
            *(stored.predictions_name(seed) for seed in range(20)),
        }
        others = {path.name for path in stored.path.parent.iterdir() if path.name.startswith(stored.path.stem)}
        assert others <= kept


def test_an_entry_older_than_a_parameter_of_its_task_is_verified_by_computed_baselines() -> None:
    """`bigram` has got `predict` since. `leaderboard` compares with the baselines that are kept, `verify` computes them."""
    stored = stored_in(BOARD / "entries" / "bigram-small-v1")[0]
    assert "predict" not in stored.entry.result.baselines["solver"].options
    assert verify_entry(stored).faults == []
