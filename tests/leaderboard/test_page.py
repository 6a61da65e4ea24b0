"""The board's page as a file: every entry's figures are in it, nothing of a stranger's is markup, and bytes are stable."""

from __future__ import annotations

import dataclasses
import random
import re
import statistics
from html import escape

import pytest

from regbench.config import Config
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.overview import overview
from regbench.leaderboard.page import build_page, chart_data
from regbench.leaderboard.rank import Board, rank
from regbench.tracks import Track
from tests.helpers.browser import data_of
from tests.leaderboard.examples import make_entry

HOSTILE = "</script><script>problems.push('ran')</script><img src=x onerror=problems.push('ran')>\"'&\u2028"


@pytest.fixture(scope="module")
def board(entries: list[Entry]) -> Board:
    (only,) = rank(entries)
    return only


@pytest.fixture(scope="module")
def html(board: Board) -> str:
    return build_page([board])


def rows_of(html: str) -> list[str]:
    return re.findall(r'<tr class="(?:entry|baseline)[^"]*".*?</tr>', html, flags=re.DOTALL)


def test_the_same_entries_give_the_same_bytes(entries: list[Entry], html: str) -> None:
    shuffled = list(entries)
    random.Random(1).shuffle(shuffled)
    assert build_page(rank(shuffled)) == html


def test_every_row_of_the_board_is_there_in_order(board: Board, html: str) -> None:
    rows = rows_of(html)
    assert len(rows) == len(board.rows)
    assert any("–" in row.place for row in board.rows), "the examples must have ties"
    for row, shown in zip(board.rows, rows, strict=True):
        assert re.findall(r'<td class="rank"[^>]*>([^<]*)</td>', shown) == [row.place]
        for record in row.scores.values():
            assert f'>{record.value:.3f} <span class="err">± {record.stderr:.3f}</span>' in shown
        if row.entry is None:
            assert '<td class="rank" data-value=""></td>' in shown
            assert f'{row.name} <span class="badge">{"truth" if row.name == "oracle" else "baseline"}</span>' in shown
            continue
        assert f'<td class="rank" data-value="{row.rank}">' in shown
        assert f">{row.entry.result.architecture.parameters:,}</td>" in shown
        speed = statistics.median(seed.tokens_per_second for seed in row.entry.result.seeds)
        assert f">{speed:,.0f}</td>" in shown
        assert ("grows with L" in shown) == (row.entry.result.architecture.state_bytes is None)
        anchor = re.search(r'href="#([^"]*)"', shown)
        assert anchor is not None
        assert f'<details id="{anchor[1]}"><summary>{row.name}</summary>' in html
        assert f"<pre><code>{escape(row.entry.command)}</code></pre>" in html
    assert "The test counts the noise of seeds and of instances." in html


def test_the_charts_get_the_boards_figures(board: Board, html: str) -> None:
    (drawn,) = data_of(html)["boards"]
    assert [entry["name"] for entry in drawn["entries"]] == [entry.name for entry in board.entries]
    assert [m["key"] for m in drawn["metrics"]] == list(board.metrics)
    for shown, row in zip(drawn["entries"], (r for r in board.rows if r.entry is not None), strict=True):
        assert row.entry is not None
        assert shown["rank"] == row.place
        assert shown["state"] == row.entry.result.architecture.state_bytes
        for metric in board.metrics:
            assert shown["scores"][metric] == pytest.approx(
                [row.scores[metric].value, row.scores[metric].stderr], abs=1e-6
            )
            curves = [seed.curves[metric].value for seed in row.entry.result.seeds]
            means = [round(statistics.fmean(at), 4) for at in zip(*curves, strict=True)]
            (line,) = shown["curves"][metric]
            assert {y for _, y in line} <= set(means)
    assert {b["name"] for b in drawn["baselines"]} == {r.name for r in board.rows if r.entry is None}
    assert {b["name"] for b in drawn["baselines"] if not b["level"]} == {"uniform"}


def test_an_architecture_looks_alike_on_every_track(entries: list[Entry], tiny: Track) -> None:
    few = [entry for entry in entries if entry.name in ("lstm+ngh-1-2-3", "mamba", "mamba-short")]
    (all_of_them,), (some,) = rank(entries), rank(few)
    data = chart_data({"a": all_of_them, "b": dataclasses.replace(some, track="other-v1")})
    assert data["architectures"] == ["hyena", "lstm", "mamba", "retnet", "transformer"]
    a, b = ({e["name"]: e["variant"] for e in one["entries"]} for one in data["boards"])
    assert b == {name: a[name] for name in b}
    assert (a["lstm"], a["lstm+ngh-1-2-3"]) == (0, 1)


def test_no_entries_is_a_page_too() -> None:
    html = build_page([])
    assert "There are no entries yet." in html
    assert data_of(html) == {"architectures": [], "boards": [], "overview": {"abilities": [], "lines": []}}


def test_a_page_needs_nothing_but_itself(html: str) -> None:
    """It links the files of the architectures, their papers, the rules and the tables."""
    links = set(re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", html))
    files = {f"architectures/{name}.py" for name in ("hyena", "lstm", "mamba", "retnet", "transformer")}
    papers = {f"https://arxiv.org/abs/{number}" for number in ("1706.03762", "2302.10866", "2307.08621", "2312.00752")}
    tables = {f"tiny-v1.{kind}" for kind in ("md", "csv", "tex")}
    assert {link for link in links if not link.startswith("#")} == {"RULES.md", *tables, *files, *papers}
    assert not re.findall(r"url\(|@import|fetch\(|XMLHttp|import\(", html)
    assert "default-src 'none'" in html


def test_a_stranger_s_file_is_linked_and_nothing_of_it_is_loaded(tiny: Track) -> None:
    entry = make_entry(tiny, "mine", "mine", 0.5)
    assert f'<a href="{entry.file_name.removesuffix(".json")}.py.txt">source</a>' in build_page(rank([entry]))


def test_a_cell_has_the_reach_and_a_track_without_an_entry_is_blank(reach_boards: list[Board]) -> None:
    found, html = overview(reach_boards), build_page(reach_boards)
    table = (
        html.partition('<section class="overview">')[2].partition('<table class="board">')[2].partition("</table>")[0]
    )
    rows = re.findall(r'<tr class="entry".*?</tr>', table, flags=re.DOTALL)
    assert len(rows) == len(found.lines)
    for line, row in zip(found.lines, rows, strict=True):
        cells = re.findall(r'<td class="cell"[^>]*>(.*?)</td>', row)
        for one, cell in zip(found.abilities, cells, strict=True):
            text = re.sub("<[^>]*>", " ", cell).split()
            there = line.cells.get(one.track)
            words = there.words.replace(">= ", "≥ ").replace("-generators", "").replace(",", "") if there else ""
            assert text == escape(words).split()
        assert f'href="{line.links["file"]}"' in row
    first = [escape(cell.replace(">= ", "≥ ")) for row in found.farthest for cell in row.values()]
    assert all(f">{cell}</t" in html for cell in first)
    drawn = data_of(html)["overview"]
    assert [line["name"] for line in drawn["lines"]] == [line.name for line in found.lines]
    assert [one["trained"] for one in drawn["abilities"]] == [64, 32]


def hostile(entry: Entry) -> Entry:
    """What the schema lets a stranger write, written by a stranger. Names it refuses are forced past it."""
    result = entry.result
    architecture = result.architecture.model_copy(
        update={"name": HOSTILE, "source": HOSTILE, "options": {HOSTILE: [HOSTILE]}}
    )
    environment = result.environment.model_copy(
        update={"processor": HOSTILE, "packages": {HOSTILE: HOSTILE}, "backend": {HOSTILE: HOSTILE}}
    )
    track = result.track.model_copy(update={"name": HOSTILE})
    baselines = {f"{name}{HOSTILE}": record for name, record in result.baselines.items()}
    changed = result.model_copy(
        update={"architecture": architecture, "environment": environment, "track": track, "baselines": baselines}
    )
    asked = Config(track=HOSTILE, architecture=HOSTILE, settings={HOSTILE: HOSTILE}, backend=HOSTILE)
    return entry.model_copy(update={"result": changed, "name": f"x{HOSTILE}", "configuration": asked})


def test_what_a_stranger_wrote_is_text(tiny: Track) -> None:
    boards = rank([hostile(make_entry(tiny, "lstm", "lstm", 0.5))])
    made = build_page(boards)
    assert made.count("<script") == 3
    assert "<img" not in made
    assert "onerror=problems" in made  # it is there, as text
    assert "javascript:" not in made
    assert data_of(build_page(boards))["boards"][0]["entries"][0]["architecture"] == HOSTILE
