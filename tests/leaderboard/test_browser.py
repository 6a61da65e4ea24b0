"""The board's page in Chromium: it loads without an error, sorts, filters, draws every entry, and keeps its layout."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from regbench.leaderboard.overview import overview
from regbench.leaderboard.page import build_page
from regbench.leaderboard.rank import Board, rank
from regbench.tracks import Track
from tests.helpers.browser import Visit, needs_chromium, visit
from tests.leaderboard.examples import make_entries, make_entry
from tests.leaderboard.test_page import hostile

pytestmark = [pytest.mark.ci, needs_chromium]

_LOOK = """
await frame();
const seen = {};
const section = one(".track.current");
const inSection = (selector) => [...section.querySelectorAll(selector)];
const shownRows = () => inSection("tbody tr").filter((row) => !row.classList.contains("out"));
const names = () => shownRows().map((row) => row.querySelector(".name").firstChild.textContent.trim());
const widths = () => inSection("thead th").map((th) => Math.round(th.getBoundingClientRect().width * 10));
const top = () => inSection(".scatter")[0].getBoundingClientRect().top + scrollY;
const head = (text) => inSection("thead th").find((th) => th.textContent.trim().startsWith(text));
seen.names = names();
seen.fits = document.documentElement.scrollWidth <= innerWidth;
seen.colour = getComputedStyle(document.body).backgroundColor;
seen.tracks = all("#tracks label").map((l) => l.textContent);
seen.visible = all(".track").filter((t) => t.offsetHeight > 0).length;

const overlaps = () => {
  const found = [];
  for (const svg of all(".track.current .chart svg[role=group]")) {
    const boxes = [...svg.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (across > 1 && down > 2) found.push([a, b, across, down]);
    }));
  }
  return found;
};

const before = [widths(), top()];
head("parameters").querySelector("button").click();
seen.byParameters = names();
seen.ascending = head("parameters").getAttribute("aria-sort");
seen.sortedHeads = inSection("[aria-sort]").length;
head("parameters").querySelector("button").click();
seen.byParametersDown = names();
head("state").querySelector("button").focus();
seen.focused = document.activeElement.textContent;
document.activeElement.click();
seen.byState = names();
head("legal").querySelector("button").click();
seen.byScore = names();
seen.sortedStill = JSON.stringify([widths(), top()]) === JSON.stringify(before);

const search = inSection("input[type=search]")[0];
const type = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
type("LSTM");
seen.filtered = names();
seen.count = inSection(".count")[0].textContent;
seen.filteredWidths = JSON.stringify(widths()) === JSON.stringify(before[0]);
type("transformer 1,2");
seen.byWords = names();
type("ngram_heads=[1");
seen.byOption = names();
type("nothing like it");
seen.none = names();
type("");
const box = inSection(".controls input[type=checkbox]")[0];
box.click();
seen.entriesOnly = names();
box.click();
seen.back = names().length;

seen.charts = inSection(".chart").map((c) => c.querySelectorAll("svg").length);
seen.marks = [0, 1, 2].map((i) => inSection(".scatter .chart")[i].querySelectorAll("path:not([opacity])").length);
seen.missing = inSection(".scatter .chart")[1].textContent.includes("with L");
seen.tips = [];
const plot = () => inSection(".scatter .chart svg")[0];
plot().focus();
for (let i = 0; i < 8; i++) {
  plot().dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  seen.tips.push(one("#tip b").textContent);
}
seen.tip = one("#tip").innerText;
plot().dispatchEvent(new Event("blur"));
seen.tipGone = one("#tip").hidden;
seen.scatterTitle = plot().getAttribute("aria-label");
inSection(".scatter input[value=tvd]")[0].click();
seen.scatterTitleThen = plot().getAttribute("aria-label");

const curve = () => inSection(".position .chart svg")[0];
const lines = () => curve().querySelectorAll("path[stroke-linejoin]").length;
seen.legend = inSection(".position .legend .name").map((n) => n.textContent);
const boxes = inSection(".position .legend input");
seen.lines = lines() - boxes.filter((b) => b.checked).length;
boxes.forEach((b) => b.checked || b.click());
seen.allLines = lines();
boxes.forEach((b) => b.click());
seen.noLines = lines();
boxes.forEach((b) => b.click());

seen.overlaps = overlaps();
const link = inSection("tbody a")[0];
location.hash = link.getAttribute("href");
await frame();
const details = document.getElementById(decodeURIComponent(location.hash.slice(1)));
seen.opened = [details.tagName, details.open, details.querySelector("pre").textContent];
const far = all(".track")[1].querySelector("details");
location.hash = `#${encodeURIComponent(far.id)}`;
await frame();
const shown = [one(".track.current").contains(far), one("#tracks input:checked").value === one(".track.current").id];
seen.far = [far.open, far.offsetHeight > 0, ...shown, decodeURIComponent(location.hash.slice(1)) === far.id];
all("#tracks input")[0].click();
await frame();
all("#tracks input")[1].click();
await frame();
seen.secondTrack = [one(".track.current h2").textContent, all(".track").filter((t) => t.offsetHeight > 0).length];
seen.secondCharts = all(".track.current .scatter svg[role=group]").length;
seen.overlaps.push(...overlaps());
return seen;
"""


@pytest.fixture(scope="module")
def board(tiny: Track) -> Board:
    (only,) = rank(make_entries(tiny))
    return only


@pytest.fixture(scope="module")
def html(board: Board) -> str:
    second = dataclasses.replace(board, track="other-v1", rows=board.rows[2:])
    return build_page([board, second])


@pytest.fixture(scope="module")
def wide(html: str, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(html, _LOOK, tmp_path_factory.mktemp("wide"), width=1400)


@pytest.fixture(scope="module")
def phone(html: str, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(html, _LOOK, tmp_path_factory.mktemp("phone"), width=375, height=700, dark=True)


@pytest.fixture(params=["wide", "phone"])
def visited(request: pytest.FixtureRequest) -> Visit:
    found: Visit = request.getfixturevalue(request.param)
    return found


def test_nothing_goes_wrong(visited: Visit) -> None:
    assert visited.problems == []


def test_every_entry_and_baseline_is_shown(visited: Visit, board: Board) -> None:
    assert visited.outcome["names"] == [row.name for row in board.rows]
    assert visited.outcome["tracks"] == ["tiny-v1", "other-v1"]
    assert visited.outcome["visible"] == 1


def test_it_fits_and_is_light_or_dark(wide: Visit, phone: Visit) -> None:
    assert wide.outcome["fits"]
    assert phone.outcome["fits"]
    assert (wide.outcome["colour"], phone.outcome["colour"]) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")


def test_it_sorts(visited: Visit, board: Board) -> None:
    seen = visited.outcome
    baselines = [row.name for row in board.rows if row.entry is None]
    by_size = [seen["byParameters"][i] for i in range(len(board.entries))]
    sizes = {e.name: e.result.architecture.parameters for e in board.entries}
    assert [sizes[name] for name in by_size] == sorted(sizes.values())
    assert seen["byParameters"][len(by_size) :] == baselines  # without a value, so below
    assert [sizes[name] for name in seen["byParametersDown"][: len(sizes)]] == sorted(sizes.values(), reverse=True)
    assert seen["byParametersDown"][len(by_size) :] == baselines
    assert seen["ascending"] == "ascending"
    assert seen["sortedHeads"] == 1
    assert seen["byScore"] == seen["names"]


def test_a_state_that_grows_is_the_largest(visited: Visit, board: Board) -> None:
    states = {e.name: e.result.architecture.state_bytes for e in board.entries}
    found = [states[name] for name in visited.outcome["byState"][: len(states)]]
    known = [state for state in found if state is not None]
    assert found == sorted(known) + [None] * (len(found) - len(known))
    assert visited.outcome["focused"] == "state"


def test_it_filters(visited: Visit, board: Board) -> None:
    seen = visited.outcome
    assert seen["filtered"] == ["lstm+ngh-1-2-3", "lstm"]
    assert seen["count"] == "2 of 8 entries"
    assert seen["byWords"] == ["transformer+ngh-1-2-3"]
    assert set(seen["byOption"]) == {"transformer+ngh-1-2-3", "lstm+ngh-1-2-3"}
    assert seen["none"] == []
    assert seen["entriesOnly"] == [entry.name for entry in board.entries]
    assert seen["back"] == len(board.rows)


def test_nothing_moves_when_it_sorts_or_filters(visited: Visit) -> None:
    assert visited.outcome["sortedStill"]
    assert visited.outcome["filteredWidths"]


def test_every_entry_is_a_mark_in_every_scatter_plot(visited: Visit, board: Board) -> None:
    seen = visited.outcome
    assert seen["marks"] == [len(board.entries)] * 3
    assert seen["missing"]
    assert set(seen["tips"]) == {entry.name for entry in board.entries}
    last = max(board.entries, key=lambda e: e.result.architecture.parameters)
    assert f"{last.result.architecture.parameters:,}" in seen["tip"]
    assert f"{last.result.score('legal_accuracy').value:.3f}" in seen["tip"]
    assert seen["tipGone"]
    assert seen["scatterTitle"].startswith("legal accuracy")
    assert seen["scatterTitleThen"].startswith("TVD")


def test_lines_follow_their_check_boxes(visited: Visit, board: Board) -> None:
    seen = visited.outcome
    assert sorted(seen["legend"]) == sorted(row.name for row in board.rows)
    assert seen["lines"] == 0
    assert seen["allLines"] == len(board.rows)
    assert seen["noLines"] == 0


def test_links_open_what_makes_an_entry_again(visited: Visit, board: Board) -> None:
    names = {entry.name: entry.command for entry in board.entries}
    assert visited.outcome["far"] == [True] * 5, "a link to an entry of another track"
    tag, opened, command = visited.outcome["opened"]
    assert (tag, opened) == ("DETAILS", True)
    assert command in names.values()


def test_the_other_track_is_drawn_when_it_is_asked_for(visited: Visit) -> None:
    assert visited.outcome["secondTrack"] == ["other-v1", 1]
    assert visited.outcome["secondCharts"] == 3


def test_no_text_of_a_chart_covers_another(visited: Visit) -> None:
    assert visited.outcome["overlaps"] == []


_OVERVIEW = """
await frame();
const title = () => one(".panel h3").textContent;
const shown = (selector) => all(selector).filter((element) => element.offsetHeight > 0).length;
const rows = () => all(".overview .board tbody tr").filter((row) => !row.classList.contains("out"));
const marks = () => one(".reach").querySelectorAll("path:not([opacity])").length;
const seen = { first: [title(), shown(".panel .reach"), shown(".panel figure"), marks()] };
one("th[data-ability='state-reach-v1'] button").click();
await frame();
seen.ability = [title(), marks(), all("#picture .controls label").map((label) => label.textContent)];
seen.sorted = rows().map((row) => row.querySelector(".name a").textContent);
const line = all("[data-line]").find((link) => link.textContent === "lstm");
line.click();
await frame();
const figures = all(".panel figure").filter((figure) => figure.offsetHeight > 0 && figure.querySelector(".shade"));
seen.curves = [title(), shown(".panel .reach"), figures.map((figure) => figure.dataset.ability)];
one("#families input[value='delta rule']").click();
seen.family = rows().map((row) => row.dataset.family);
const frameOf = one(".overview .board").parentElement;
frameOf.scrollLeft = 5000;
frameOf.scrollTop = 5000;
const [box, name, head] = [frameOf, rows()[0].cells[0], one(".overview .board thead th")].map((e) => e.getBoundingClientRect());
seen.stays = [Math.abs(name.left - box.left) < 1, Math.abs(head.top - box.top) < 1, Math.abs(head.left - box.left) < 1];
seen.fits = document.documentElement.scrollWidth <= innerWidth;
let copied = "";
Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => { copied = text; } } });
const details = one(".track.current details");
details.querySelector("button.copy").click();
await frame();
seen.copied = [copied === details.querySelector("pre").textContent, details.querySelector("button.copy").textContent];
return seen;
"""


@pytest.mark.parametrize("width", [1300, 420])
def test_the_overview_shows_pictures_curves_and_families(reach_boards: list[Board], width: int, tmp_path: Path) -> None:
    visited = visit(build_page(reach_boards), _OVERVIEW, tmp_path, width=width, dark=width < 500)
    assert visited.problems == []
    found, seen = overview(reach_boards), visited.outcome
    recall, state = (ability.cells for ability in found.abilities)
    hollow = {name for name, cell in recall.items() if cell.record.state_bytes is None}
    assert seen["first"] == ["Reach against state: recall. The state of a hollow mark grows.", 1, 0, len(recall)]
    assert hollow, "the examples must have one"
    groups = ["a4", "a5-generators", "parity", "s3"]
    assert seen["ability"] == [seen["first"][0].replace("recall", "state tracking"), len(state), groups]
    by_area = sorted(state, key=lambda name: -state[name].area)
    assert seen["sorted"][: len(state)] == by_area
    tracks = [one.track for one in found.abilities if "lstm" in one.cells]
    assert seen["curves"] == ["lstm: accuracy by size. The sizes of training are shaded.", 0, tracks]
    assert set(seen["family"]) == {"delta rule"}
    assert seen["stays"] == [True] * 3
    assert seen["fits"]
    assert seen["copied"] == [True, "copied"]


def test_hostile_names_stay_text(tiny: Track, tmp_path: Path) -> None:
    boards = rank([hostile(make_entry(tiny, "lstm", "lstm", 0.5))])
    script = (
        "await frame(); return [all('img').length, one('.board .entry .name').textContent, all('.chart svg').length]"
    )
    seen = visit(build_page(boards), script, tmp_path)
    assert seen.problems == []
    assert seen.outcome == [0, boards[0].entries[0].name, 4]


def test_there_is_no_plot_by_state_where_every_state_grows(tiny: Track, tmp_path: Path) -> None:
    script = "await frame(); return all('.trio figure').filter((f) => f.offsetHeight > 0).length"
    for state_bytes, plots in ((1024, 3), (None, 2)):
        entry = make_entry(tiny, "lstm", "lstm", 0.5, state_bytes=state_bytes)
        seen = visit(build_page(rank([entry], tiny)), script, tmp_path)
        assert seen.problems == []
        assert seen.outcome == plots
