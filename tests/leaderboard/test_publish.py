"""Tables and page: made from the entries, the same bytes every time, and found out of date when they are."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from regbench import cli
from regbench.leaderboard import publish
from regbench.leaderboard.entry import Entry, canonical
from regbench.leaderboard.publish import PAGE, load_boards, outdated, render, write
from regbench.leaderboard.rank import Board, rank
from regbench.leaderboard.store import Stored
from regbench.leaderboard.tiers import Challenge, Evidence, Reproduced, write_evidence
from regbench.leaderboard.verify import verify_entry
from regbench.tracks import Track, load_track
from tests.leaderboard.attacks import seal, store
from tests.leaderboard.conftest import Made


@pytest.fixture(scope="module")
def board(entries: list[Entry], tiny: Track) -> Board:
    return rank(entries, tiny)[0]


@pytest.fixture
def folder(lstm: Made, stranger: Made, tmp_path: Path) -> Path:
    """A board of two entries."""
    place = tmp_path / "board"
    for made in (lstm, stranger):
        shutil.copytree(made.board, place, dirs_exist_ok=True)
    return place


def test_markdown_has_a_line_for_everyone_best_first(board: Board) -> None:
    text = publish.markdown(board)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1
    assert rows[0][:4] == ["rank", "predictor", "legal accuracy ↑", "token accuracy ↑"]
    names = [row.name.replace("_", "\\_") + " (25 % of the budget)" * (row.budget_share < 1) for row in board.rows]
    assert [row[1].strip("*") for row in rows[2:]] == names
    assert sum("budget" in name for name in names) == 1
    for cells, row in zip(rows[2:], board.rows, strict=True):
        score = f"{row.scores['legal_accuracy'].value:.3f} ± {row.scores['legal_accuracy'].stderr:.3f}"
        assert cells[2] == (score if row.kind == "entry" else f"*{score}*")
        assert cells[0] == row.place
    assert any("–" in row.place for row in board.rows), "the examples must have ties"
    assert "ranked by the mean of legal accuracy over their seeds" in text
    assert "The test counts the noise of seeds and of instances." in text
    assert "0 at unigram, 100 at oracle" in text


def test_csv_holds_every_figure(board: Board) -> None:
    rows = list(csv.DictReader(io.StringIO(publish.csv(board))))
    assert [row["name"] for row in rows] == [row.name for row in board.rows]
    for got, row in zip(rows, board.rows, strict=True):
        for metric in board.metrics:
            assert float(got[metric]) == pytest.approx(row.scores[metric].value, abs=1e-6)
        if row.entry is not None and row.rank is None:
            assert (got["rank"], got["best_rank"]) == ("", "")
        elif row.entry is not None:
            assert (int(got["best_rank"]), int(got["worst_rank"])) == row.ties
            assert got["entry"] == row.entry.file_name
            assert len(got["tvd_by_seed"].split()) == len(row.entry.result.seeds)
            assert int(got["parameters"]) == row.entry.result.architecture.parameters


def test_latex_is_escaped_and_ruled(board: Board) -> None:
    text = publish.latex(board)
    assert all(text.count(rule) == 1 for rule in ("\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}"))
    body = text.partition("\n")[2]
    assert body.isascii()
    assert " % " not in body.replace("\\%", "")
    assert "selective\\_scan cpu" in body


def test_what_people_write_does_not_break_a_table(board: Board) -> None:
    row = board.rows[-1]
    evil = Board(**{**vars(board), "rows": (*board.rows[:-1], type(row)(**{**vars(row), "name": "a|b*c_<i>\\"}))})
    lines = [line for line in publish.markdown(evil).splitlines() if line.startswith("|")]
    assert "a\\|b\\*c\\_\\<i\\>\\\\" in lines[-1]
    assert "a|b*c\\_<i>\\textbackslash{}" in publish.latex(evil)


def test_readme_lists_tracks_with_their_budgets(board: Board) -> None:
    track = load_track("pfa-small-v1")
    text = publish.readme([], [track])
    assert "| pfa-small-v1 | 5,000" in " ".join(text.split())
    assert "8,000,000" in text
    retired = Board(**{**vars(board), "retired": "tiny-v2 has taken its place"})
    text = publish.readme([retired], [track])
    assert "## Retired" in text
    assert "tiny-v2 has taken its place" in text
    assert "**Retired: tiny-v2 has taken its place.**" in publish.markdown(retired)


def test_the_same_entries_give_the_same_bytes(folder: Path, tiny: Track) -> None:
    boards, faults = load_boards(folder, tiny)
    assert faults == []
    files = render(boards)
    assert sorted(files) == ["README.md", "index.html", "tiny-v1.csv", "tiny-v1.md", "tiny-v1.tex"]
    write(folder, files)
    assert outdated(folder, files) == []
    assert render(load_boards(folder, tiny)[0]) == files


def test_the_command_writes_and_checks(folder: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["leaderboard", "--board", str(folder), "--track", str(tiny_file)]
    assert cli.main([*arguments, "--check"]) == 1
    assert not (folder / "README.md").exists()
    assert cli.main(arguments) == 0
    assert "lstm+" in capsys.readouterr().out
    assert cli.main([*arguments, "--check"]) == 0
    files = {
        name: (folder / name).read_text() for name in ("README.md", "tiny-v1.md", "tiny-v1.csv", "tiny-v1.tex", PAGE)
    }
    for name, text in files.items():
        (folder / name).write_text(text + " ")
        assert outdated(folder, files) == [name]
        (folder / name).write_text(text)
    (folder / PAGE).unlink()
    capsys.readouterr()
    assert cli.main([*arguments, "--check"]) == 1
    assert f"{folder / PAGE} does not agree with the entries" in capsys.readouterr().out
    (folder / "gone-v1.md").write_text("# gone-v1\n")
    mine = [folder / name for name in ("RULES.md", "notes.md", "other-v1.md", "data.csv")]
    for path in mine:
        path.write_text("mine")
    capsys.readouterr()
    assert cli.main(arguments) == 0
    assert f"removed {folder / 'gone-v1.md'}\n" in capsys.readouterr().out
    assert not (folder / "gone-v1.md").exists()
    assert {path.read_text() for path in mine} == {"mine"}
    next((folder / "entries" / "tiny-v1").glob("lstm*.json")).unlink()
    assert cli.main([*arguments, "--check"]) == 1


def test_a_forged_entry_stops_the_board(
    folder: Path, lstm: Made, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = lstm.entry.content()
    content["result"]["seeds"][0]["scores"]["legal_accuracy"]["value"] = 0.999
    store(seal(content), folder / "entries")
    assert cli.main(["leaderboard", "--board", str(folder), "--track", str(tiny_file)]) == 1
    assert "scores: seed 0: legal_accuracy: 0.999, and the instances give" in capsys.readouterr().out
    assert not (folder / "README.md").exists()


def test_a_file_that_is_no_table_is_never_overwritten(
    folder: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tiny-v1.csv", "README.md", "index.html"):
        (folder / name).write_text("mine")
        assert cli.main(["leaderboard", "--board", str(folder), "--track", str(tiny_file)]) == 2
        assert f"{folder / name} was not written by `regbench leaderboard`" in capsys.readouterr().err
        assert (folder / name).read_text() == "mine"
        (folder / name).unlink()
    assert not (folder / "tiny-v1.md").exists()


def test_no_cell_is_a_formula(board: Board) -> None:
    row = next(row for row in board.rows if row.entry is not None)
    assert row.entry is not None
    content = row.entry.content()
    content["result"]["environment"].update(device="=HYPERLINK(1)", backend={})
    content["result"]["architecture"]["source"] = "@SUM(1)"
    evil = type(row)(**{**vars(row), "entry": Entry.model_validate(content)})
    text = publish.csv(Board(**{**vars(board), "rows": (evil,)}))
    (cells,) = csv.DictReader(io.StringIO(text))
    assert (cells["device"], cells["source"]) == ("'=HYPERLINK(1)", "'@SUM(1)")
    assert cells["architecture"] == row.entry.result.architecture.name


def test_baselines_are_not_taken_on_trust(
    folder: Path, lstm: Made, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where all entries agree on them."""
    command = ["leaderboard", "--board", str(folder), "--track", str(tiny_file)]
    assert cli.main(command) == 0
    for path in (folder / "entries" / "tiny-v1").glob("*.json"):
        path.unlink()
    content = lstm.entry.content()
    content["result"]["baselines"]["SOTA"] = content["result"]["baselines"]["unigram"]
    path = store(seal(content), folder / "entries")
    assert cli.main([*command, "--check"]) == 1
    assert "there is no baseline 'SOTA'" in capsys.readouterr().out
    content = lstm.entry.content()
    content["result"]["baselines"]["3-gram"]["scores"]["tvd"]["stderr"] = 0.9
    path.write_text(canonical(seal(content)))
    assert cli.main([*command, "--check"]) == 1
    assert "baselines: 3-gram: the standard error of tvd is 0.9" in capsys.readouterr().out


def retire(folder: Path, made: Made) -> None:
    """Lists the definition of the entry's track as one that is gone."""
    digest = made.entry.result.track.digest
    (folder / "retired.json").write_text(json.dumps({made.entry.track: [digest]}))


def test_a_made_up_track_is_refused(folder: Path, lstm: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["leaderboard", "--board", str(folder)]) == 1
    assert "is no track of today, and retired.json does not list it" in capsys.readouterr().out
    retire(folder, lstm)
    content = lstm.entry.content()
    content["result"]["seeds"][0]["scores"]["legal_accuracy"]["value"] = 7.5
    store(seal(content), folder / "entries")
    assert cli.main(["leaderboard", "--board", str(folder)]) == 1
    assert "legal_accuracy: 7.5, and the instances give" in capsys.readouterr().out
    content["instances"]["sums"][0]["legal_accuracy"] = [7.5 * n for n in content["instances"]["counts"]]
    store(seal(content), folder / "entries")
    assert cli.main(["leaderboard", "--board", str(folder)]) == 1
    assert "an instance's sum is more than its positions can give" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        (lambda n: [0] * n, "not every instance has a score"),
        (lambda n: [1], "not every instance has a score"),
        (lambda n: [2**62] * n, "the instances have more positions than a track can have"),
    ],
)
def test_counts_of_a_track_that_is_gone(entries: list[Entry], tmp_path: Path, counts: Any, fault: str) -> None:
    content = entries[0].content()
    content["instances"]["group_counts"] = {"tvd": counts(len(content["instances"]["counts"]))}
    path = store(seal(content), tmp_path / "entries")
    (tmp_path / "retired.json").write_text(json.dumps({entries[0].track: [entries[0].result.track.digest]}))
    assert load_boards(tmp_path) == ([], [f"{path.name}: {fault}"])


def test_seconds_of_a_track_that_is_gone(entries: list[Entry], tmp_path: Path) -> None:
    content = entries[0].content()
    for seed in content["result"]["seeds"]:
        seed["seconds"] = 1.7e308
    path = store(seal(content), tmp_path / "entries")
    (tmp_path / "retired.json").write_text(json.dumps({entries[0].track: [entries[0].result.track.digest]}))
    assert load_boards(tmp_path) == ([], [f"{path.name}: seconds or tokens per second are beyond measure"])


def test_a_digest_that_is_a_path_names_no_file(entries: list[Entry], tmp_path: Path) -> None:
    content, board = entries[0].content(), tmp_path / "board"
    content["result"]["track"]["digest"] = "/../../a"
    store(seal(content), board / "entries")
    (board / "retired.json").write_text(json.dumps({entries[0].track: ["/../../a"]}))
    assert cli.main(["leaderboard", "--board", str(board)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["board"]


def test_evidence_counts_where_the_track_is_gone_too(entries: list[Entry], tmp_path: Path) -> None:
    entry = entries[0]
    stored = Stored(store(entry.content(), tmp_path / "entries"))
    (tmp_path / "retired.json").write_text(json.dumps({entry.track: [entry.result.track.digest]}))
    scores = [{metric: record.value for metric, record in seed.scores.items()} for seed in entry.result.seeds]
    again = Reproduced(
        date="2026-11-27", by="a reader", machine="a machine", seeds=[0, 1, 2], scores=scores, identical=[]
    )
    fresh = {metric: entry.instances.score(0, metric) for metric in entry.metrics}
    asked = Challenge(
        date="2026-11-27", by="a", machine="m", number=1, instances=100, fingerprint="0" * 64, scores=fresh
    )
    write_evidence(stored, Evidence(entry=entry.digest, challenge=asked, reproduced=again))
    (board,), faults = load_boards(tmp_path)
    assert faults == []
    assert board.rows[0].tier == "reproduced" or board.rows[1].tier == "reproduced"
    write_evidence(stored, Evidence(entry="0" * 64, challenge=asked, reproduced=again))
    assert load_boards(tmp_path)[1] == [
        f"{stored.path.name}: tier: it is of another entry, or the entry has changed since"
    ]
    worse = [{**one, "nll": 2 * one["nll"]} for one in scores]
    write_evidence(stored, Evidence(entry=entry.digest, reproduced=again.model_copy(update={"scores": worse})))
    (fault,) = load_boards(tmp_path)[1]
    assert "tier: the nll of the second training is " in fault


@pytest.mark.parametrize("name", ["RULES", "README", "rules-v1<script>", "../x-v1", "Tiny-v1", "x|y-v1", "tiny-v1\n"])
def test_the_names_of_tracks_have_a_pattern(folder: Path, lstm: Made, name: str) -> None:
    content = lstm.entry.content()
    content["result"]["track"]["name"] = content["configuration"]["track"] = name
    path = store(seal(content), folder / "entries")
    fault = str(verify_entry(Stored(path), track=lstm.track).faults[0])
    assert "track.name: string should match pattern" in fault or "not printable" in fault


def test_entries_of_a_track_that_is_gone_stay_readable(
    folder: Path, lstm: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    retire(folder, lstm)
    assert cli.main(["leaderboard", "--board", str(folder)]) == 0
    assert "## Retired" in (folder / "README.md").read_text()
    assert "**Retired: its definition is no longer here.**" in (folder / "tiny-v1.md").read_text()
    assert cli.main(["leaderboard", "--board", str(folder), "--check"]) == 0
    path = next((folder / "entries" / "tiny-v1").glob("*.json"))
    path.write_text(path.read_text().replace('"schema_version": 2', '"schema_version": 9', 1))
    capsys.readouterr()
    assert cli.main(["leaderboard", "--board", str(folder), "--check"]) == 1
    assert "schema_version must be 2" in capsys.readouterr().out


def test_an_empty_board(tmp_path: Path) -> None:
    assert cli.main(["leaderboard", "--board", str(tmp_path)]) == 0
    assert "pfa-small-v1" in (tmp_path / "README.md").read_text()
    assert cli.main(["leaderboard", "--board", str(tmp_path), "--check"]) == 0


def test_a_table_of_another_size_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    os.truncate(tmp_path / "README.md", 1 << 40)
    assert outdated(tmp_path, {"README.md": "a"}) == ["README.md"]
