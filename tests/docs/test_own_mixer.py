"""docs/own-mixer.md: its example is short, and its table is the contract. That the example keeps it, `test_contributing` asks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from regbench.checks.architecture import CONTRACT, SCORABLE, compiles
from regbench.checks.contract import examine
from regbench.checks.training import overfits, trains
from regbench.tasks.base import TokenIO
from regbench.utils import registry
from tests.helpers.documents import ROOT, blocks, body_rows, commands, section
from tests.helpers.subjects import subject_of

PAGE = (ROOT / "docs" / "own-mixer.md").read_text(encoding="utf-8")


def test_the_example_is_short() -> None:
    example = next(block for kind, block in blocks(PAGE) if kind == "python")
    assert len(example.splitlines()) < 40
    assert commands(PAGE) == ["regbench check --arch averaging.py"]


@pytest.mark.ci
def test_the_hybrid_keeps_the_contract_and_takes_what_mixers_take(tmp_path: Path) -> None:
    _, text = (block for kind, block in blocks(PAGE) if kind == "python")
    path = tmp_path / "hybrid.py"
    path.write_text(text)
    io = TokenIO(vocab_size=5, separator=4, max_length=36, names=("a", "b", "c", "d", "|"))
    for settings in ({}, {"ngram_heads": [1], "short_conv": 3}):
        subject = subject_of(str(path), io, d_model=16, **settings)
        checks = [check for check in CONTRACT if check not in (compiles, overfits)]
        assert {o.check: o.fault for o in examine(subject, checks) if o.fault} == {}
        kinds = [type(block.mixer).__name__ for block in subject.model().blocks]  # type: ignore[union-attr]
        assert kinds == ["Mamba", "Mamba", "Transformer"]


def test_every_check_of_the_contract_is_listed() -> None:
    part = section(PAGE, "## The contract")
    assert [row[0] for row in body_rows(part)] == [check.__name__ for check in CONTRACT]
    assert "the first six and `options_round_trip` before it trains" in " ".join(part.split())
    assert CONTRACT[:6] == (*SCORABLE, trains)


def test_the_sweep_of_ones_own_mixer_has_the_trials_of_the_boards() -> None:
    ((_, text),) = ((kind, block) for kind, block in blocks(PAGE) if kind == "yaml")
    board = yaml.safe_load((ROOT / "sweeps" / "board-grid.yaml").read_text())
    mine = yaml.safe_load(text)
    assert all(heads == {"n_heads": [1, 4]} for name, heads in board["options_of"].items() if name != "transformer")
    assert "add `n_heads: [1, 4]` to `grid`, and `n_heads` to `over`" in PAGE
    board["grid"] |= {"arch": ["./averaging.py"]}
    assert set(board.pop("options_of")) < set(registry.entries(registry.ARCHITECTURE))
    board["select"]["over"] = [name for name in board["select"]["over"] if name in mine["select"]["over"]]
    assert mine == board
