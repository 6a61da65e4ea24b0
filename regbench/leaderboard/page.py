"""The leaderboard's page: one HTML file that needs no server and no network, with a table and charts for each track.

`templates/board.html` has the tables. The scripts in `assets/` draw the charts from what `chart_data` gives. The same entries
give the same bytes.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from regbench.evaluation.language_models import ABOUT
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.overview import Cell, Overview, about, overview
from regbench.leaderboard.rank import ABOUT_TIERS, FIRST, TIES, Board, Row
from regbench.leaderboard.table import as_words
from regbench.leaderboard.tiers import TIERS, Evidence
from regbench.metrics.metric import Metric
from regbench.report.content import (
    about_normalized,
    axis,
    baseline_series,
    human_seconds,
    metric_words,
    points,
)
from regbench.report.page import render_page
from regbench.results import Curve
from regbench.tracks import load_track, track_names

_FACTS = (
    ("parameters", "Trainable parameters.", "ascending", "amount"),
    (
        "state",
        "Recurrent state of one sequence. One that grows is given after 128 and after 1,024 tokens.",
        "ascending",
        "bytes",
    ),
    ("short conv", "Width of the short convolution, where there is one.", "descending", "few"),
    (
        "tokens/s",
        "Training speed on the entry's machine, median over seeds. Runs beside other programs are slower: do not compare rows.",
        "descending",
        "speed",
    ),
    ("trials", "Configurations tried on the validation split.", "ascending", "few"),
    ("seeds", "Trained models.", "descending", "few"),
    ("tier", "What stands behind the entry: claimed, verified or reproduced.", "descending", "tier"),
)
"""Columns after the scores: name, meaning, the order in which they are sorted first, class."""


def build_page(boards: Sequence[Board]) -> str:
    """The whole page as HTML. Boards of the overview are shown first, and those that most entries solve last."""
    seen = overview(boards)
    first = {one.track: i for i, one in enumerate(seen.abilities, -len(seen.abilities))}
    ordered = sorted(boards, key=lambda board: (board.mark != "", first.get(board.track, 0), -len(board.entries)))
    current = {board.track: board for board in ordered}
    return render_page(
        "leaderboard/templates/board.html",
        styles=["report/assets/base.css", "leaderboard/assets/board.css"],
        scripts=["report/assets/chart.js", "leaderboard/assets/scatter.js", "leaderboard/assets/board.js"],
        data=chart_data(current) | {"overview": _overview(seen)},
        title="regbench leaderboard",
        ties=TIES,
        about_tiers=f"{ABOUT_TIERS} {FIRST}".replace("*", ""),
        tiers=TIERS,
        about_models=ABOUT,
        overview=seen,
        current=[_section(board, name) for name, board in current.items()],
    )


def chart_data(boards: Mapping[str, Board]) -> dict[str, Any]:
    """What the scripts of the page read, of boards by the id of their section."""
    variants = _variants(list(boards.values()))
    return {
        "architectures": sorted({name for name, _ in variants}),
        "boards": [_charts(board, name, variants) for name, board in boards.items()],
    }


# --- Tables. ---


def _section(board: Board, name: str) -> dict[str, Any]:
    """What the template shows of a board; `name`: the id of its section."""
    anchors: dict[str | None, str] = {row.anchor: row.name for row in board.rows if row.anchor}
    main = board.known[board.main_score]
    heads = [
        ("rank", "Rank among entries. A range is a tie. In brackets: provisional.", "ascending", "rank"),
        ("entry", "A name leads to the command that trains the entry again.", "ascending", "name"),
    ]
    for words in (metric_words(board.known[metric]) for metric in board.metrics):
        first = "descending" if words["higher"] else "ascending"
        heads.append((f"{words['label']}\u00a0{words['arrow']}", words["meaning"], first, "score"))
    heads.append(("normalized score", about_normalized(main, anchors), "descending", "normalized"))
    return {
        "id": name,
        "board": board,
        "stem": quote(board.track, safe=""),
        "heads": [dict(zip(("name", "meaning", "first", "kind"), head, strict=True)) for head in (*heads, *_FACTS)],
        "by_what": axis(board.entries[0].result, board.main_score, unit=False),
        "entries": {
            row.name: _words(row.entry, row.evidence, main) for row in board.rows if row.entry and row.evidence
        },
    }


def _words(entry: Entry, evidence: Evidence, main: Metric) -> dict[str, Any]:
    """What the template shows of an entry. A line may break between the pieces of its name."""
    pieces = re.findall(r"[+]?[^_+-]+[_-]?|[_+-]", entry.name)
    facts, a = {"tier": evidence.about, **_facts(entry, main)}, entry.result.architecture
    more = (
        f"{a.name} {a.source} {as_words(a.options)} {_machine(entry)}"  # what a row can be found by besides its cells
    )
    shown = {"pieces": pieces, "more": more, "speed": entry.result.tokens_per_second, "facts": facts}
    return {**shown, "links": _links(entry)}


def _links(entry: Entry) -> list[tuple[str, str]]:
    """What it is called and where it is: the file of an entry's architecture, as `make docs` copies it, and its paper."""
    if not is_built_in(entry.result.architecture):
        return [("source", quote(f"{entry.file_name.removesuffix('.json')}.py.txt"))]
    paper, links = about(entry.result.architecture)
    return [(paper if what == "paper" else place, place) for what, place in links.items()]


def _facts(entry: Entry, main: Metric) -> dict[str, str]:
    result = entry.result
    a, e = result.architecture, result.environment
    seconds = sum(seed.seconds for seed in result.seeds)
    return {
        "architecture": f"{a.name} ({a.source}, SHA-256 {a.source_sha256[:12]})",
        "options": as_words(a.options),
        "training": as_words(result.training),
        f"{main.label} by seed": ", ".join(f"{seed.seed}: {seed.scores[main.name].value:.4f}" for seed in result.seeds),
        "tokens": f"{result.tokens:,} a seed, {human_seconds(seconds)} of training in all",
        "selection": f"{result.selection.trials:,} configurations tried, on {result.selection.split}",
        "machine": f"{_machine(entry)}, {e.threads} thread{'s' * (e.threads != 1)}, {e.precision}",
        "backend": as_words(e.backend) or "plain PyTorch",
        **({} if e.training_backend is None else {"backend in training": as_words(e.training_backend)}),
        "packages": " ".join(f"{package} {version}" for package, version in e.packages.items()),
        "commit": f"{(result.code.commit or 'none')[:12]}{', changed since' * bool(result.code.dirty)}",
        "digest": entry.digest,
    }


def _machine(entry: Entry) -> str:
    environment = entry.result.environment
    return environment.processor if environment.device == "cpu" else environment.device


# --- Charts. ---


def _overview(seen: Overview) -> dict[str, Any]:
    """What the scripts draw of the overview. Curves are those of the entries that cells name."""

    def drawn(cell: Cell) -> dict[str, Any]:
        own = {"entry": cell.entry.name, "state": cell.state, "grows": cell.record.state_bytes is None}
        return own | {"reach": {group: [reach.size, str(reach)] for group, reach in cell.reaches.items()}}

    return {
        "abilities": [{"id": o.track, "name": o.name, "unit": o.unit, "trained": o.trained} for o in seen.abilities],
        "lines": [
            {"name": one.name, "family": one.family, "cells": {t: drawn(cell) for t, cell in one.cells.items()}}
            for one in seen.lines
        ],
    }


def _charts(board: Board, name: str, variants: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    trained = load_track(board.track).task.trained if board.track in track_names() else None
    return {
        "id": name,
        "metrics": [metric_words(board.known[m], axis(board.entries[0].result, m), trained) for m in board.metrics],
        "entries": [_entry(row, row.entry, board, variants) for row in board.rows if row.entry is not None],
        "baselines": _baselines(board),
    }


def _entry(row: Row, entry: Entry, board: Board, variants: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    architecture = entry.result.architecture
    return {
        "name": entry.name,
        "rank": row.place,
        "architecture": architecture.name,
        "variant": variants[architecture.name, entry.name],
        "parameters": architecture.parameters,
        "state": architecture.state_bytes,
        "speed": round(entry.result.tokens_per_second, 1),
        "machine": _machine(entry),
        "scores": {m: [round(row.scores[m].value, 6), round(row.scores[m].stderr, 6)] for m in board.metrics},
        "curves": {m: [points(_mean_curve(entry, m))] for m in board.metrics},
    }


def _mean_curve(entry: Entry, metric: str) -> Curve:
    """At each position the mean over seeds. All seeds are scored on the same positions."""
    curves = [seed.curves[metric] for seed in entry.result.seeds]
    values = [statistics.fmean(at) for at in zip(*(curve.value for curve in curves), strict=True)]
    return Curve(position=curves[0].position, value=values, count=curves[0].count)


def _baselines(board: Board) -> list[dict[str, Any]]:
    """Lines of the baselines, best first, and their scores. Shown from the start: the oracle and the two best others.

    Those that are not worse than chance are levels to compare entries with.
    """
    rows = {row.name: row for row in board.rows if row.baseline is not None}
    others = [row.name for row in rows.values() if row.anchor != "end"]
    start = next((row.scores[board.main_score].value for row in rows.values() if row.anchor == "start"), None)
    sign, drawn = board.known[board.main_score].sign, []
    for one in baseline_series({name: row.baseline.curves for name, row in rows.items() if row.baseline is not None}):
        row = rows[one["name"]]
        scores = {metric: round(row.scores[metric].value, 6) for metric in board.metrics}
        level = start is None or sign * (row.scores[board.main_score].value - start) >= 0
        drawn.append({**one, "shown": row.name not in others[2:], "level": level, "scores": scores})
    return drawn


def _variants(boards: Sequence[Board]) -> dict[tuple[str, str], int]:
    """By (architecture, entry) the entry's place among the names of that architecture's entries, the same on every track."""
    names: dict[str, set[str]] = {}
    for board in boards:
        for entry in board.entries:
            names.setdefault(entry.result.architecture.name, set()).add(entry.name)
    return {(architecture, name): i for architecture, found in names.items() for i, name in enumerate(sorted(found))}
