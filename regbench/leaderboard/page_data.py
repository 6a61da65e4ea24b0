"""What the board's page draws: for each track its entries and baselines as the scripts in `assets/` read them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from regbench.leaderboard.entry import Entry
from regbench.leaderboard.rank import Board, Row
from regbench.report.content import axis, baseline_series, metric_words, points
from regbench.results import Curve
from regbench.tracks.track import frozen_tracks

_SIZES = ("train_tokens", "epochs")
"""Training options that say how much is seen: what entries on one curve may differ in."""


def chart_data(boards: Mapping[str, Board], others: Sequence[Board] = ()) -> dict[str, Any]:
    """The data of the whole page. boards: by the name of their section.  others: retired ones, for curves by training size."""
    variants = _variants([*boards.values(), *others])
    everything = [*boards.values(), *others]
    return {
        "architectures": sorted({name for name, _ in variants}),
        "boards": [_board(board, name, everything, variants) for name, board in boards.items()],
    }


def size_panels(board: Board, boards: Sequence[Board]) -> list[dict[str, Any]]:
    """Scores by how much was trained on, where configurations of this board differ in nothing else; [] where none do.

    One panel by the tokens seen, of entries on this board; one by the training split's instances, of entries on all boards with
    the same test split. Each is {axis, series: [{name, entry, points: [{x, scores: {metric: value}}]}]}.
    """
    here = [(_tokens(entry), entry) for entry in board.entries]
    same_test = [b for b in boards if _test_split(b) == _test_split(board) and b.metrics == board.metrics]
    across = [(n, e) for b in same_test if (n := _train_instances(b)) is not None for e in b.entries]
    panels = []
    for title, sized, leave_out in (("training tokens", here, _SIZES), ("training instances", across, ())):
        series = _size_series(sized, leave_out, board)
        if series:
            panels.append({"axis": title, "series": series})
    return panels


def median_speed(entry: Entry) -> float:
    """Training tokens per second: the median over seeds."""
    return statistics.median(seed.tokens_per_second for seed in entry.result.seeds)


def machine(entry: Entry) -> str:
    """What an entry was trained on."""
    environment = entry.result.environment
    return environment.processor if environment.device == "cpu" else environment.device


def _board(board: Board, name: str, boards: Sequence[Board], variants: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    rows = [row for row in board.rows if row.entry is not None]
    sizes = size_panels(board, boards)
    for panel in sizes:
        for series in panel["series"]:
            series["variant"] = variants[series["architecture"], series["name"]]
    return {
        "id": name,
        "metrics": [metric_words(board.known[m], axis(board.entries[0].result, m)) for m in board.metrics],
        "entries": [_entry(row, board, variants) for row in rows],
        "baselines": _baselines(board),
        "levels": _levels(board),
        "sizes": sizes,
    }


def _entry(row: Row, board: Board, variants: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    entry = row.entry
    assert entry is not None
    architecture = entry.result.architecture
    return {
        "name": entry.name,
        "rank": row.rank,
        "architecture": architecture.name,
        "variant": variants[architecture.name, entry.name],
        "parameters": architecture.parameters,
        "state": architecture.state_bytes,
        "speed": round(median_speed(entry), 1),
        "machine": machine(entry),
        "scores": {m: [round(row.scores[m].value, 6), round(row.scores[m].stderr, 6)] for m in board.metrics},
        "curves": {m: [points(_median_curve(entry, m))] for m in board.metrics},
    }


def _median_curve(entry: Entry, metric: str) -> Curve:
    """At each position the median over seeds, as the score is; all seeds are scored on the same positions."""
    curves = [seed.curves[metric] for seed in entry.result.seeds]
    values = [statistics.median(at) for at in zip(*(curve.value for curve in curves), strict=True)]
    return Curve(position=curves[0].position, value=values, count=curves[0].count)


def _baselines(board: Board) -> list[dict[str, Any]]:
    """Lines of the baselines, best first. Shown from the start: the truth and the two best others."""
    rows = {row.name: row.baseline for row in board.rows if row.baseline is not None}
    others = [name for name, record in rows.items() if record.anchor != "end"]
    shown = {*others[:2], *(name for name, record in rows.items() if record.anchor == "end")}
    series = baseline_series({name: record.curves for name, record in rows.items()})
    return [{**one, "shown": one["name"] in shown} for one in series]


def _levels(board: Board) -> list[dict[str, Any]]:
    """The baselines as levels to compare with: all but those below where the way to the truth starts."""
    rows = [row for row in board.rows if row.baseline is not None]
    start = next((row.scores[board.main_score].value for row in rows if row.anchor == "start"), None)
    sign = 1 if board.known[board.main_score].higher_is_better else -1
    kept = [r for r in rows if start is None or sign * (r.scores[board.main_score].value - start) >= 0]
    styles = {one["name"]: one for one in _baselines(board)}
    return [
        {
            "name": row.name,
            "colour": styles[row.name]["colour"],
            "dash": styles[row.name]["dash"],
            "scores": {metric: round(row.scores[metric].value, 6) for metric in board.metrics},
        }
        for row in kept
    ]


def _variants(boards: Sequence[Board]) -> dict[tuple[str, str], int]:
    """(architecture, entry) -> its place among the names of that architecture's entries, alike on every track."""
    names: dict[str, set[str]] = {}
    for board in boards:
        for entry in board.entries:
            names.setdefault(entry.result.architecture.name, set()).add(entry.name)
    return {(architecture, name): i for architecture, found in names.items() for i, name in enumerate(sorted(found))}


def _size_series(sized: Sequence[tuple[int, Entry]], leave_out: Sequence[str], board: Board) -> list[dict[str, Any]]:
    groups: dict[str, list[tuple[int, Entry]]] = {}
    for size, entry in sized:
        groups.setdefault(_all_but(entry, leave_out), []).append((size, entry))
    series = []
    for group in groups.values():
        by_size = dict(sorted(group, key=lambda pair: (pair[0], pair[1].name)))  # one entry a size
        if len(by_size) < 2 or not any(entry in board.entries for entry in by_size.values()):
            continue
        largest = list(by_size.values())[-1]
        series.append(
            {
                "name": largest.name,
                "architecture": largest.result.architecture.name,
                "points": [
                    {"x": size, "scores": {m: round(entry.result.score(m).value, 6) for m in board.metrics}}
                    for size, entry in by_size.items()
                ],
            }
        )
    return sorted(series, key=lambda one: str(one["name"]))


def _all_but(entry: Entry, leave_out: Sequence[str]) -> str:
    """What an entry is, without some of its training options."""
    architecture = entry.result.architecture
    training = {key: value for key, value in entry.result.training.items() if key not in leave_out}
    return json.dumps([architecture.name, architecture.source, architecture.options, training], sort_keys=True)


def _tokens(entry: Entry) -> int:
    return int(statistics.median(seed.tokens for seed in entry.result.seeds))


def _test_split(board: Board) -> str | None:
    return board.entries[0].result.track.fingerprints.get("test")


def _train_instances(board: Board) -> int | None:
    """The size of a frozen track's training split; None where the board is of another definition."""
    frozen = frozen_tracks().get(board.track)
    if frozen is None or frozen["digest"] != board.digest:
        return None
    return int(frozen["statistics"]["train"]["instances"])
