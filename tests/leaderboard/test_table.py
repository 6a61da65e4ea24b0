"""The entries as one table: what the board computes, and what an installation holds."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import pandas as pd
import pytest

import regbench
from regbench import cli
from regbench.cli.arguments import read_settings
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.rank import rank
from regbench.leaderboard.store import ROOT, stored_in
from regbench.leaderboard.table import TABLE, table
from regbench.tracks import Track
from tests.leaderboard.conftest import Made


def test_a_row_is_one_seed_of_one_entry_by_one_score(
    entries: list[Entry], tiny: Track, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (board,) = rank(entries, tiny)
    (tmp_path / "entries.csv").write_text(table([board]))
    monkeypatch.setattr("regbench.leaderboard.table.__file__", str(tmp_path / "table.py"))
    found = regbench.entries()
    key = ["track", "entry", "seed", "score"]
    assert not found.duplicated(key).any()
    assert len(found) == sum(len(e.result.seeds) * len(e.metrics) for e in entries)
    seeds = found[found.score == board.main_score].groupby("entry")
    for row in board.rows:
        if row.entry is None:
            continue
        own = seeds.get_group(row.name)
        assert own.value.mean() == pytest.approx(row.scores[board.main_score].value, abs=1e-6)
        assert own.normalized.mean() == pytest.approx(row.normalized, abs=1e-6)
        state = row.entry.result.architecture.state_bytes
        assert (own.state.isna() if state is None else own.state == state).all()
        assert (own.tier == row.tier).all()


def test_an_installation_holds_the_committed_entries() -> None:
    """The options are read as `--set` reads them."""
    stored = [one.entry for one in stored_in(ROOT / "leaderboard" / "entries" / "recall-reach-v1")]
    found = regbench.entries()
    found = found[(found.track == "recall-reach-v1") & (found.score == "area")]
    assert set(found.entry) == {entry.name for entry in stored}
    for entry in stored:
        own = found[found.entry == entry.name]
        assert own.value.mean() == pytest.approx(statistics.fmean(s.scores["area"].value for s in entry.result.seeds))
        (options,) = set(own.options)
        assert read_settings(options.split()) == entry.configuration.settings


def test_the_command_writes_it_where_the_package_stands_beside_the_board(
    lstm: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = shutil.copytree(lstm.board, tmp_path / "leaderboard")
    command = ["leaderboard", "--board", str(board), "--track", str(tiny_file)]
    assert cli.main(command) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["leaderboard"], "a board of one's own has no package"
    (board / TABLE).parent.mkdir(parents=True)
    assert cli.main([*command, "--check"]) == 1
    assert f"{tmp_path / 'regbench' / 'leaderboard' / 'entries.csv'} does not agree" in capsys.readouterr().out
    assert cli.main(command) == 0
    assert list(pd.read_csv(board / TABLE).entry.unique()) == [lstm.entry.name]
    assert cli.main([*command, "--check"]) == 0
