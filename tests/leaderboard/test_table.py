"""The entries as one table: what the board computes, and what an installation holds."""

from __future__ import annotations

import math
import shutil
import statistics
from pathlib import Path

import pandas as pd
import pytest

import regbench
from regbench import cli
from regbench.cli.arguments import read_settings
from regbench.evaluation.find_predictors import KnownScores
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.rank import rank
from regbench.leaderboard.standing import Entries
from regbench.leaderboard.store import ROOT, stored_in
from regbench.leaderboard.table import TABLE, table
from regbench.tracks import Track, load_track
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
        mean = statistics.fmean(s.scores["area"].value for s in entry.result.seeds)
        assert own.value.mean() == pytest.approx(mean, abs=1e-6)  # it holds six decimals
        (options,) = set(own.options)
        assert read_settings(options.split()) == entry.configuration.settings


def test_without_a_board_entries_are_compared_by_names_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the board's, but for the error: without instances the errors of both add up."""
    on_board, paired = pair(), "+0.032 ±.003"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regbench.leaderboard.store.ROOT", tmp_path)
    shipped = pair()
    errors = [one.main.error for one in shipped]
    assert all(error is not None for error in errors)
    for there, here in zip(on_board, shipped, strict=True):
        assert there.scores.keys() == here.scores.keys()
        for metric, score in there.scores.items():
            assert here.scores[metric].value == pytest.approx(score.value, abs=1e-6)
            assert here.scores[metric].stderr == pytest.approx(score.stderr, abs=1e-6)
        assert (there.result.tokens, there.result.architecture.parameters) == (  # type: ignore[union-attr]
            here.result.tokens,  # type: ignore[union-attr]
            here.result.architecture.parameters,  # type: ignore[union-attr]
        )
    counts = load_track("pfa-small-v1").instances("test").scored.sum(1)
    assert shipped[0].main.error_from(shipped[1].main, counts) == pytest.approx(math.hypot(*errors))  # type: ignore[arg-type]
    assert on_board[0].main.error_from(on_board[1].main, counts) < shipped[0].main.error_from(on_board[1].main, counts)
    assert cli.main(["compare", "lstm", "mamba", "3-gram"]) == 0
    out = capsys.readouterr().out
    assert "+0.032 ±" in out
    assert paired not in out
    assert "lstm, mamba: from the table that ships with regbench" in out
    assert cli.main(["compare", "lstm", "mamda"]) == 2
    assert "unknown predictor 'mamda'; did you mean 'mamba'?" in capsys.readouterr().err


def pair() -> list[KnownScores]:
    track = load_track("pfa-small-v1")
    found = [Entries().scores(name, track) for name in ("lstm", "mamba")]
    return [one for one in found if one is not None]


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
