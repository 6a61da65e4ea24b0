"""The board's page: one HTML file that needs no server and no network, with a table and charts for each track.

The tables are plain HTML, to be read, searched and printed without scripts; sorting, filtering and charts are added by
`assets/board.js` from the data embedded in the page. The same entries give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from regbench.leaderboard.entry import Entry
from regbench.leaderboard.page_data import chart_data, machine, median_speed, size_panels
from regbench.leaderboard.rank import SIGNIFICANCE, Board, Row
from regbench.report.content import about_normalized, by_what, metric_words
from regbench.report.html import macros, render_page
from regbench.report.words import human_bytes, human_seconds, label

_FACTS = (
    ("parameters", "Trainable parameters.", "ascending", "amount"),
    ("state", "Bytes of recurrent state for one sequence; some grow with its length L.", "ascending", "bytes"),
    ("tokens/s", "Training speed, median over seeds, on the machine that the entry names.", "descending", "speed"),
    ("seeds", "Trained models.", "descending", "few"),
)
"""Columns behind the scores: head, meaning, the order in which they are sorted first, class."""


def build_page(boards: Sequence[Board]) -> str:
    """The whole page as HTML; boards as `rank.rank` gives them. The one with the most entries is shown first."""
    current = sorted((board for board in boards if board.retired is None), key=lambda board: -len(board.entries))
    retired = [board for board in boards if board.retired is not None]
    ids = {id(board): board.file_stem for board in current} | {id(b): f"retired-{i}" for i, b in enumerate(retired)}
    parts = [_HEADER.format(lead=_LEAD if boards else "There are no entries yet.")]
    for i, board in enumerate(current):
        parts.append(_track(board, ids[id(board)], boards, current=i == 0))
    if retired:
        parts.append('<h2 id="retired">Retired versions</h2>\n')
        parts += [_retired(board, ids[id(board)]) for board in retired]
    body = f"<main>\n{''.join(parts)}</main>\n{_FOOTER}"
    return render_page(
        "leaderboard/templates/board.html",
        styles=["report/assets/base.css", "leaderboard/assets/board.css"],
        scripts=["report/assets/chart.js", "leaderboard/assets/scatter.js", "leaderboard/assets/board.js"],
        data=chart_data({ids[id(board)]: board for board in current}, retired),
        title="regbench leaderboard",
        body=body,
    )


def text(value: object) -> str:
    return escape(str(value), quote=True)


def _track(board: Board, name: str, boards: Sequence[Board], *, current: bool) -> str:
    ranked = f"ranked by {label(board.main_score)}, on {board.n_instances:,} test instances"
    summary = f"{board.summary} " if board.summary else ""
    position = _POSITION.format(by=text(by_what(board.entries[0].result)))
    sizes = "".join(_SIZE.format(axis=text(panel["axis"])) for panel in size_panels(board, boards))
    return (
        f'<section class="track{" current" * current}" id="{text(name)}" data-name="{text(board.track)}" '
        f'data-summary="{text(board.summary)}">\n<h2>{text(board.track)}</h2>\n'
        f'<p class="soft">{text(summary)}{text(_count(board))}, {text(ranked)}. {_links(board)}</p>\n'
        f"{_FILTER}{_table(board, name)}{_note(board)}{_SCATTER}{position}{sizes}{_details(board, name)}</section>\n"
    )


def _retired(board: Board, name: str) -> str:
    return (
        f'<section class="retired" id="{text(name)}">\n<h3>{text(board.track)}</h3>\n'
        f'<p class="soft">{text(_count(board))}. No more are taken: {text(board.retired)}. {_links(board)}</p>\n'
        f"{_table(board, name)}{_note(board)}{_details(board, name)}</section>\n"
    )


def _count(board: Board) -> str:
    n = len(board.entries)
    return "One entry" if n == 1 else f"{n} entries"


def _links(board: Board) -> str:
    """To the same table in other forms, which lie beside the page."""
    stem = quote(board.file_stem, safe="")
    links = (
        f'<a href="{stem}.{end}">{form}</a>' for form, end in (("Markdown", "md"), ("CSV", "csv"), ("LaTeX", "tex"))
    )
    return f"As {', '.join(links)}."


def _table(board: Board, name: str) -> str:
    anchors: dict[str | None, str] = {row.anchor: row.name for row in board.rows if row.anchor}
    heads = [
        _head("rank", "Among entries; ≈ names the ranks within noise of this one.", "rank", "ascending"),
        _head("entry", "Follow a name to what makes it again.", "name", "ascending"),
    ]
    for metric in board.metrics:
        words = metric_words(board.known[metric])
        first = "descending" if words["higher"] else "ascending"
        heads.append(_head(f"{words['label']} {words['arrow']}", words["meaning"], "score", first))
    heads.append(_head("normalized score", about_normalized(board.main_score, anchors), "normalized", "descending"))
    heads += [_head(fact, meaning, kind, first) for fact, meaning, first, kind in _FACTS]
    classes = ["rank", "name", *["score"] * len(board.metrics), "normalized", *(kind for *_, kind in _FACTS)]
    columns = "".join(f'<col class="{c}">' for c in classes)
    rows = "\n".join(_row(row, board.metrics, name) for row in board.rows)
    return (
        f'<div class="scroll"><table class="board">\n<caption class="hidden">{text(board.track)}</caption>\n'
        f"<colgroup>{columns}</colgroup>\n<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n"
    )


def _head(name: str, meaning: str, kind: str, first: str) -> str:
    """first: the order in which the column is sorted when its head is pressed once."""
    return f'<th scope="col" class="{kind}" data-first="{first}" title="{text(meaning)}">{text(name)}</th>'


def _row(row: Row, metrics: Sequence[str], board: str) -> str:
    cells = macros("report/templates/cells.html")
    scores = "".join([*(cells.score_cell(row.scores[metric]) for metric in metrics), cells.normalized_cell(row.way)])
    if row.entry is None:
        kind = {"start": "baseline start", "end": "baseline truth"}.get(row.anchor or "", "baseline")
        badge = {"end": "truth"}.get(row.anchor or "", "baseline")
        empty = '<td data-value=""></td>'
        return (
            f'<tr class="{kind}"><td class="rank" data-value=""></td><th scope="row" class="name">{text(row.name)} '
            f'<span class="badge">{badge}</span></th>{scores}{empty * len(_FACTS)}</tr>'
        )
    link = f'<a href="#{text(_anchor(board, row.entry))}">{text(row.name)}</a>'
    return (
        f'<tr class="entry" data-more="{text(_more(row.entry))}">'
        f'<td class="rank" data-value="{row.rank}">{row.rank}{_tie(row)}</td>'
        f'<th scope="row" class="name">{link}</th>{scores}{_facts(row.entry)}</tr>'
    )


def _tie(row: Row) -> str:
    if not row.level_with:
        return ""
    ranks = spans(row.level_with)
    p = f" Against the next rank p = {row.p_next:.2f}." if row.p_next is not None else ""
    return f' <span class="tie" title="{text(f"Within noise of rank {ranks}.{p}")}">≈ {text(ranks)}</span>'


def spans(numbers: Sequence[int]) -> str:
    """Whole numbers in ascending order, runs of three and more as spans: (1, 3, 4, 5) -> "1, 3–5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(n) for n in run] for run in runs]
    return ", ".join(part for run in parts for part in run)


def _facts(entry: Entry) -> str:
    result = entry.result
    state = result.architecture.state_bytes
    speed = median_speed(entry)
    cells = (
        (result.architecture.parameters, f"{result.architecture.parameters:,}"),
        ("Infinity" if state is None else state, human_bytes(state)),
        (f"{speed:.1f}", f"{speed:,.0f}"),
        (len(result.seeds), len(result.seeds)),
    )
    return "".join(f'<td data-value="{value}">{text(shown)}</td>' for value, shown in cells)


def _more(entry: Entry) -> str:
    """What a row can be found by besides its cells."""
    architecture = entry.result.architecture
    return f"{architecture.name} {architecture.source} {_settings(architecture.options)} {machine(entry)}"


def _anchor(board: str, entry: Entry) -> str:
    return f"{board}--{entry.name}"


def _note(board: Board) -> str:
    return (
        '<p class="soft note">Entries are ranked by the median over their seeds. ± is the standard deviation over seeds / √n; of '
        "a baseline, and of a single seed, the standard error over instances. ≈ names the ranks within noise: a paired "
        f"bootstrap over the {board.n_instances:,} test instances gives p ≥ {SIGNIFICANCE:g}. "
        "It knows nothing of the noise over seeds.</p>\n"
    )


def _details(board: Board, name: str) -> str:
    """What makes each entry again, and what it was made with."""
    blocks = "\n".join(_entry_details(entry, name) for entry in board.entries)
    return f'<div class="entries">\n<h3>Entries</h3>\n{blocks}\n</div>\n'


def _entry_details(entry: Entry, board: str) -> str:
    result = entry.result
    a, e, main = result.architecture, result.environment, result.track.main_score
    seconds = sum(seed.seconds for seed in result.seeds)
    facts: dict[str, Any] = {
        "architecture": f"{a.name} ({a.source}, SHA-256 {a.source_sha256[:12]})",
        "options": _settings(a.options),
        "training": _settings(result.training),
        f"{label(main)} by seed": ", ".join(f"{seed.seed}: {seed.scores[main].value:.4f}" for seed in result.seeds),
        "tokens": f"{max(seed.tokens for seed in result.seeds):,} a seed, {human_seconds(seconds)} of training in all",
        "selection": f"{result.selection.trials:,} configurations tried, on {result.selection.split}",
        "machine": f"{machine(entry)}, {e.threads} threads, {e.precision}",
        "backend": _settings(e.backend) or "plain PyTorch",
        **({} if e.training_backend is None else {"backend in training": _settings(e.training_backend)}),
        "packages": " ".join(f"{package} {version}" for package, version in e.packages.items()),
        "commit": f"{(result.code.commit or 'none')[:12]}{', changed since' * bool(result.code.dirty)}",
        "digest": entry.digest,
    }
    rows = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in facts.items())
    return (
        f'<details id="{text(_anchor(board, entry))}"><summary>{text(entry.name)}</summary>'
        f"<div><pre><code>{text(entry.command)}</code></pre><dl>{rows}</dl></div></details>"
    )


def _settings(settings: Mapping[str, Any]) -> str:
    """As one would set them: key=value, without spaces in the values, so that words of a filter fit."""
    plain = {k: v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for k, v in settings.items()}
    return " ".join(f"{key}={value}" for key, value in plain.items())


_LEAD = (
    "How well sequence architectures learn in context, beside classical learners that see the same prompt and beside the truth. "
    "Each name leads to the command that makes the entry again."
)
_HEADER = """\
<header>
<h1>regbench leaderboard</h1>
<p class="lead">{lead}</p>
<nav class="needs-js" id="tracks" aria-label="tracks"></nav>
</header>
"""
_FILTER = """\
<div class="controls needs-js">
<input type="search" placeholder="filter: words, d_model=64, …" aria-label="filter entries">
<label><input type="checkbox" checked>baselines</label>
<span class="count" role="status"></span>
</div>
"""
_SCATTER = """\
<section class="scatter keep needs-js">
<h3>Score against size and speed</h3>
<div class="controls"></div>
<div class="trio">
<figure><div class="chart" data-x="parameters"></div></figure>
<figure><div class="chart" data-x="state"></div></figure>
<figure><div class="chart" data-x="speed"></div></figure>
</div>
<ul class="marks"></ul>
</section>
"""
_POSITION = """\
<section class="position keep needs-js">
<h3>Score by {by}</h3>
<div class="controls"></div>
<div class="chart"></div>
<ul class="legend"></ul>
</section>
"""
_SIZE = """\
<section class="size keep needs-js">
<h3>Score by {axis}</h3>
<div class="controls"></div>
<div class="chart"></div>
</section>
"""
_FOOTER = """\
<footer>Written by <code>regbench leaderboard</code> from the files in <code>leaderboard/entries</code>; the rules are in
<a href="RULES.md">RULES.md</a>.</footer>"""
