"""docs/own-mixer.md: its example is short, and its table is the contract. That the example keeps it, `test_contributing` asks."""

from __future__ import annotations

from pathlib import Path

from regbench.checks.architecture import CONTRACT, SCORABLE
from regbench.checks.training import trains
from tests.helpers.documents import blocks, body_rows, commands, section

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-mixer.md").read_text(encoding="utf-8")


def test_the_example_is_short() -> None:
    (example,) = (block for kind, block in blocks(PAGE) if kind == "python")
    assert len(example.splitlines()) < 40
    assert commands(PAGE) == ["regbench check --arch averaging.py"]


def test_every_check_of_the_contract_is_listed() -> None:
    part = section(PAGE, "## The contract")
    assert [row[0] for row in body_rows(part)] == [check.__name__ for check in CONTRACT]
    assert "the first five before it trains" in part
    assert CONTRACT[:5] == (*SCORABLE, trains)
