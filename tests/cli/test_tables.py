"""Tables in a terminal of 80 columns: nothing is cut, and every part of a wide table has the names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from rich.table import Table

from regbench import cli
from regbench.cli.tables import best_entry, result_table, suite_table
from regbench.report.table import folded, print_fitting
from regbench.tracks import load_track
from regbench.utils import registry
from tests.helpers.published import ENTRIES, published


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_long_name_ends_its_lines_at_its_pluses() -> None:
    name = "deltanet+learning_rate-0.001+negative_eigenvalues"
    assert folded(name).splitlines() == ["deltanet+", "learning_rate-0.001+", "negative_eigenvalues"]
    assert folded("forgetting_transformer") == "forgetting_transformer"


@pytest.mark.ci
@pytest.mark.parametrize("track", ["state-tracking-small-v1", "mad-fuzzy-recall-small-v1", "pfa-small-v1"])
def test_entries_are_compared_in_80_columns(track: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With six scores, what each was trained with, and names of up to 49 letters."""
    results = published(track)
    names = sorted(results, key=len)[-4:]
    files = [str(next(ENTRIES.glob(f"{track}/{name}-????????.json"))) for name in names]
    assert cli.main(["compare", *files, "--track", track]) == 0
    lines = capsys.readouterr().out.partition("difference: from")[0].splitlines()
    assert "…" not in "".join(lines)
    assert all(len(line.rstrip()) <= 80 for line in lines)
    joined = "".join(line.split(" ")[0] for line in lines)
    heads = sum(line.startswith("predictor") for line in lines)
    assert heads <= 3
    assert all(joined.count(name) >= heads for name in names)
    for name in names:
        for metric in load_track(track).task.scores:
            assert f"{results[name].score(metric).value:.3f}" in "\n".join(lines)
        assert f"{results[name].architecture.parameters:,}" in "\n".join(lines)
        assert f"{results[name].tokens:,}" in "\n".join(lines)


def test_a_run_with_many_scores_has_names_and_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    result = next(iter(published("state-tracking-small-v1").values()))
    print_fitting(result_table(result, load_track(result.track.name).metrics), Console())
    lines = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines)
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert sum(line.split()[:1] == ["oracle"] for line in lines) == 2
    assert sum("predictor" in line for line in lines) == 2


def test_each_part_of_a_wide_table_has_the_columns_that_name_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("place", "name", *(f"score-{number}" for number in range(8)), title="scores")
    table.add_row("first", "whole_name", *(f"0.12{number} ±0.003" for number in range(8)))
    print_fitting(table, Console(), names=2)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    rows = [line for line in lines if "whole_name" in line]
    assert len(rows) == 3
    assert all("first" in row for row in rows)
    assert [number for number in range(8) for row in rows if f"0.12{number} ±0.003" in row] == list(range(8))
    assert sum("scores" in line for line in lines) == 1


@pytest.mark.parametrize("command", ["compare", "run"])
def test_what_a_command_does_is_said_in_80_columns(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    said = capsys.readouterr().out.partition("examples:")[0]
    assert all(len(line) <= 80 for line in said.splitlines())


@pytest.mark.ci
def test_a_suite_shows_whole_names_of_entries(capsys: pytest.CaptureFixture[str]) -> None:
    tracks = ("state-tracking-small-v1", "mqar-small-v1")
    results = [next(iter(published(track).values())) for track in tracks]
    print_fitting(suite_table([(Path("here"), result) for result in results]), Console())
    out = capsys.readouterr().out
    assert "…" not in out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    for track, result in zip(tracks, results, strict=True):
        best = best_entry(result, load_track(track).metrics)
        assert all(line in out for line in folded(best).splitlines())


def test_a_finished_run_whose_track_is_gone_is_shown(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"track": str(tmp_path / "gone.yaml")}))
    assert cli.main(["run", "--resume", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "cgt" in said
    assert "what comes next is not known: cannot read" in said


def test_lists_cut_no_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is cut cannot be typed."""
    kept = {"linear_transformer", "forgetting_transformer"}
    entries = registry.entries
    monkeypatch.setattr(
        registry,
        "entries",
        lambda group: {
            name: one for name, one in entries(group).items() if group != registry.ARCHITECTURE or name in kept
        },
    )
    for arguments in (["ls", "training"], ["ls", "architectures"]):
        assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    for name in (*kept, "plateau_learning_rate"):
        assert name in out
