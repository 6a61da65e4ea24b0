"""Tables and page: made from the entries, the same bytes every time, and found out of date when they are."""

from __future__ import annotations

import csv
import dataclasses
import io
import shutil
from pathlib import Path

import pytest

from regbench import cli
from regbench.leaderboard import publish
from regbench.leaderboard.entry import Entry, canonical
from regbench.leaderboard.overview import overview
from regbench.leaderboard.page import build_page
from regbench.leaderboard.publish import load_boards, outdated, render, write
from regbench.leaderboard.rank import Board, rank
from regbench.leaderboard.store import ROOT, Stored
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
    assert "These tracks have no entries yet: pfa-small-v1." in publish.readme([], [track])
    own = Board(**{**vars(board), "track": "pfa-small-v1"})
    text = " ".join(publish.readme([own], [track]).split())
    assert f"| [pfa-small-v1]({own.track}.md) | 5,000 | 8,000,000 |" in text
    assert "no entries yet" not in text


def test_readme_and_picture_show_how_far_each_architecture_goes(reach_boards: list[Board], tmp_path: Path) -> None:
    files = render(reach_boards)
    text = files["README.md"].replace("\\", "").partition("## How far")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    found = overview(reach_boards)
    first = [list(found.farthest[0]), *([*row.values()] for row in found.farthest)]
    assert [rows.pop(0) for _ in first] == first
    assert rows[0][3:5] == ["recall (pairs)", "state tracking (steps)"]
    assert [row[0].partition("]")[0][1:] for row in rows[1:]] == [line.name for line in found.lines]
    for row, line in zip(rows[1:], found.lines, strict=True):
        assert row[0].endswith(f"(../{line.links['file']})")
        assert (ROOT / line.links["file"]).is_file()
        cells = [line.cells.get(one.track) for one in found.abilities]
        words = [f"{cell.words} ({cell.area:.2f})" if cell else "" for cell in cells]
        assert row[3:5] == words, "what an architecture lacks is blank"
    assert "![Reach in pairs against bytes of state](../leaderboard/recall-reach-v2.svg)" in text
    picture = files["recall-reach-v2.svg"]
    assert render(reach_boards)["recall-reach-v2.svg"] == picture
    write(tmp_path, files)
    (tmp_path / "recall-reach-v2.svg").write_text(picture.replace("<path", "<path "))
    assert outdated(tmp_path, files) == [], "what it was drawn from is the same"
    fewer = [dataclasses.replace(board, rows=board.rows[2:]) for board in reach_boards]
    assert "recall-reach-v2.svg" in outdated(tmp_path, render(fewer))
    assert "## How far" not in publish.readme(reach_boards[2:], [])


def test_what_half_of_the_entries_solve_is_listed_by_itself_and_marked(board: Board) -> None:
    def with_solved(count: int) -> Board:
        entries = [row for row in board.rows if row.entry is not None][:4]
        scored = [dataclasses.replace(row, normalized=0.985 if i < count else 0.98) for i, row in enumerate(entries)]
        return dataclasses.replace(board, track="pfa-small-v1", rows=tuple(scored))

    for count, marked in ((1, False), (2, True)):
        one = with_solved(count)
        assert (one.solved, one.mark != "") == ((count, 4), marked)
        text = publish.readme([one], [load_track("pfa-small-v1")])
        assert f"| {count} of 4 " in text
        assert ("## Solved tracks" in text, "## Tracks" in text) == (marked, not marked)
        assert (f"Solved by {count} of 4 entries." in publish.markdown(one)) == marked
        assert (f"Solved by {count} of 4 entries." in build_page([one])) == marked


def test_the_same_entries_give_the_same_bytes(folder: Path, tiny: Track) -> None:
    boards, faults = load_boards(folder, tiny)
    assert faults == []
    files = render(boards)
    assert sorted(files) == ["README.md", "tiny-v1.csv", "tiny-v1.md", "tiny-v1.tex"]
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
    files = {name: (folder / name).read_text() for name in ("README.md", "tiny-v1.md", "tiny-v1.csv", "tiny-v1.tex")}
    for name, text in files.items():
        (folder / name).write_text(text + " ")
        assert outdated(folder, files) == [name]
        (folder / name).write_text(text)
    (folder / "tiny-v1.tex").unlink()
    capsys.readouterr()
    assert cli.main([*arguments, "--check"]) == 1
    assert f"{folder / 'tiny-v1.tex'} does not agree with the entries" in capsys.readouterr().out
    (folder / "pfa-v1.md").write_text("# pfa-v1\n")
    mine = [folder / name for name in ("RULES.md", "notes.md", "other-v1.md", "data.csv")]
    for path in mine:
        path.write_text("mine")
    capsys.readouterr()
    assert cli.main(arguments) == 0
    assert f"removed {folder / 'pfa-v1.md'}\n" in capsys.readouterr().out
    assert not (folder / "pfa-v1.md").exists()
    assert {path.read_text() for path in mine} == {"mine"}
    next((folder / "entries" / "tiny-v1").glob("lstm*.json")).unlink()
    assert cli.main([*arguments, "--check"]) == 1


def test_the_page_is_written_where_it_is_asked_for(
    folder: Path, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["leaderboard", "--board", str(folder), "--track", str(tiny_file)]
    assert cli.main([*arguments, "--page", str(tmp_path / "board.html")]) == 0
    assert "<title>regbench leaderboard</title>" in (tmp_path / "board.html").read_text()
    assert not (folder / "README.md").exists()
    assert cli.main([*arguments, "--page", str(tmp_path), "--check"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_forged_entry_stops_the_board(
    folder: Path, lstm: Made, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = lstm.entry.content()
    content["result"]["seeds"][0]["scores"]["legal_accuracy"]["value"] = 0.999
    store(seal(content), folder / "entries")
    assert cli.main(["leaderboard", "--board", str(folder), "--track", str(tiny_file)]) == 1
    assert "scores: seed 0: legal_accuracy: 0.999, and the instances give" in capsys.readouterr().out
    assert not (folder / "README.md").exists()


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


@pytest.mark.parametrize("name", ["RULES", "README", "rules-v1<script>", "../x-v1", "Tiny-v1", "x|y-v1", "tiny-v1\n"])
def test_the_names_of_tracks_have_a_pattern(folder: Path, lstm: Made, name: str) -> None:
    content = lstm.entry.content()
    content["result"]["track"]["name"] = content["configuration"]["track"] = name
    path = store(seal(content), folder / "entries")
    fault = str(verify_entry(Stored(path), track=lstm.track).faults[0])
    assert "track.name: a track's name has small letters" in fault or "not printable" in fault


def test_an_empty_board(tmp_path: Path) -> None:
    assert cli.main(["leaderboard", "--board", str(tmp_path)]) == 0
    assert "pfa-small-v1" in (tmp_path / "README.md").read_text()
    assert cli.main(["leaderboard", "--board", str(tmp_path), "--check"]) == 0
