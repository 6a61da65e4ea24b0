"""Ranked boards as Markdown, CSV and LaTeX, and the page that links them. The same entries give the same bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pandas as pd
from tabulate import tabulate

from regbench.leaderboard.page import spans
from regbench.leaderboard.rank import RESAMPLES, SIGNIFICANCE, Board, Row
from regbench.report.words import human_bytes, label
from regbench.results import ScoreRecord
from regbench.tracks import Track

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: f"\\{c}" for c in "&%$#_{}"
}
_SIGNS = {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "—": "---", "–": "--", "≥": r"$\ge$"}


def markdown(board: Board) -> str:
    """`<track>.md`: the ranking, and what its figures mean."""
    anchors = {row.anchor: row.name for row in board.rows if row.anchor}
    way = ""
    if {"start", "end"} <= set(anchors):
        way = f" Way: by {label(board.main_score)}, 0 % at {anchors['start']}, 100 % at {anchors['end']}."
    retired = (
        f"**Retired: {board.retired}.** These entries stay as they were; no more are taken.\n\n"
        if board.retired
        else ""
    )
    return (
        f"# {board.track}\n\n{retired}{board.summary}\n\n{_grid(board, 'pipe', _escape_markdown)}\n\n"
        f"Entries are ranked by the median of {label(board.main_score)} over their seeds; ± is the standard deviation over seeds "
        f"/ √n. Baselines, in italics, have no rank; their ± is the standard error over the {board.n_instances:,} test instances."
        f"{way}\n\nLevel with: the ranks from which an entry is within noise: by a paired bootstrap over the test instances, of "
        f"the mean over seeds, p ≥ {SIGNIFICANCE:g} ({RESAMPLES:,} resamples, two-sided, not corrected for the number of pairs). "
        f"It knows nothing of the noise over seeds.\n"
    )


def latex(board: Board) -> str:
    """`<track>.tex`: the same table, with the rules of the package booktabs."""
    above, head, body, rest = _grid(board, "latex_raw", _escape_latex).split("\\hline")
    return f"% {board.track}; needs booktabs\n{above}\\toprule{head}\\midrule{body}\\bottomrule{rest}\n"


def csv(board: Board) -> str:
    """`<track>.csv`: a line for each row, every figure in full."""
    rows = [_record(board, row) for row in board.rows]
    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def readme(boards: Sequence[Board], tracks: Sequence[Track]) -> str:
    """`README.md` of the leaderboard's folder. tracks: those that take entries, whether or not they have any."""
    retired = [board for board in boards if board.retired is not None]
    here = {board.track: board for board in boards if board.retired is None}
    rows = [_track_row(track, here.get(track.name)) for track in tracks]
    parts = [_INTRODUCTION, "## Tracks\n\nWhat an entry may spend, and who is first.", _list(rows)]
    others = [here[name] for name in sorted(set(here) - {track.name for track in tracks})]
    if others:
        parts += ["## Tracks of one's own", _list([_board_row(board) for board in others])]
    if retired:
        about = "These tracks take no more entries; what was submitted stays readable."
        parts += [
            f"## Retired\n\n{about}",
            _list([_board_row(board) | {"why": str(board.retired)} for board in retired]),
        ]
    return "\n\n".join([*parts, _HOW_TO]) + "\n"


_INTRODUCTION = """\
# Leaderboard

Architectures that were trained within a track's budget and scored on its test split, beside baselines that learn from the prompt
alone. The rules are in [RULES.md](RULES.md); [index.html](index.html) is the same with curves. All of it is made from the files
in `entries/` by `regbench leaderboard`, and `regbench leaderboard --check` says whether it still agrees with them."""

_HOW_TO = """\
## Submitting

```
regbench run --arch NAME --seed 0 1 2 --out runs/mine
regbench submit runs/mine
regbench leaderboard
```

`regbench submit` checks what [RULES.md](RULES.md) says it checks, and refuses with a line for each fault. `regbench verify FILE`
does the same for an entry that is here, with `--run DIR` also against the predictions it was made from."""


def _track_row(track: Track, board: Board | None) -> dict[str, str]:
    splits = track.definition.splits
    row = {
        "track": track.name,
        "training instances": f"{splits.train:,}",
        "training tokens": f"{track.definition.budget.train_tokens:,}",
        "test instances": f"{splits.test:,}",
        "ranked by": label(track.definition.main_score),
    }
    return row | (_board_row(board) if board is not None else {"entries": "0", "first": "", "as data": ""})


def _board_row(board: Board) -> dict[str, str]:
    best = board.entries[0]
    return {
        "track": f"[{board.track}]({board.file_stem}.md)",
        "entries": str(len(board.entries)),
        "first": f"{best.name}, {_pair(best.result.score(board.main_score))}",
        "as data": f"[CSV]({board.file_stem}.csv), [LaTeX]({board.file_stem}.tex)",
    }


def _list(rows: Sequence[dict[str, str]]) -> str:
    return tabulate(rows, headers="keys", tablefmt="pipe", showindex=False, disable_numparse=True)


def _grid(board: Board, form: str, escape: dict[int, str]) -> str:
    rows = [
        {head.translate(escape): _set(cell, row, form, escape) for head, cell in _cells(board, row).items()}
        for row in board.rows
    ]
    columns = list(rows[0])
    align = ["right", "left", "left", *["right"] * (len(columns) - 5), "left", "right"]
    return tabulate(rows, headers="keys", tablefmt=form, showindex=False, disable_numparse=True, colalign=align)


def _set(cell: str, row: Row, form: str, escape: dict[int, str]) -> str:
    """A cell as it is set; of a baseline in italics."""
    text = cell.translate(escape)
    if row.kind == "entry" or not text:
        return text
    return f"*{text}*" if form == "pipe" else f"\\textit{{{text}}}"


def _cells(board: Board, row: Row) -> dict[str, str]:
    """By column, for people."""
    cells = {
        "rank": "" if row.rank is None else str(row.rank),
        "level with": spans(row.level_with),
        "predictor": row.name,
    }
    cells |= {f"{board.known[m].label} {board.known[m].arrow}": _pair(row.scores[m]) for m in board.metrics}
    cells["way"] = "—" if row.way is None else f"{100 * row.way:.0f} %"
    result = row.entry.result if row.entry is not None else None
    speeds = [seed.tokens_per_second for seed in result.seeds] if result else []
    cells["parameters"] = f"{result.architecture.parameters:,}" if result else ""
    cells["state"] = human_bytes(result.architecture.state_bytes) if result else ""
    cells["tokens/s"] = f"{statistics.median(speeds):,.0f}" if speeds else ""
    cells["backend"] = _backend(row)
    cells["seeds"] = str(len(speeds)) if speeds else ""
    return cells


def _record(board: Board, row: Row) -> dict[str, object]:
    """By column, for programs."""
    record: dict[str, object] = {"rank": row.rank, "kind": row.kind, "name": row.name}
    record["level_with"] = " ".join(map(str, row.level_with))
    record["p_next"] = None if row.p_next is None else round(row.p_next, 6)
    for metric in board.metrics:
        score = row.scores[metric]
        record |= {metric: round(score.value, 6), f"{metric}_spread": round(score.stderr, 6)}
        values = [seed.scores[metric].value for seed in row.entry.result.seeds] if row.entry is not None else []
        record[f"{metric}_by_seed"] = " ".join(f"{value:.6f}" for value in values)
    record["way"] = None if row.way is None else round(row.way, 6)
    if row.entry is not None:
        result = row.entry.result
        record |= {
            "architecture": result.architecture.name,
            "source": result.architecture.source,
            "parameters": result.architecture.parameters,
            "state_bytes": result.architecture.state_bytes,
            "train_tokens": max(seed.tokens for seed in result.seeds),
            "tokens_per_second": round(statistics.median(seed.tokens_per_second for seed in result.seeds), 1),
            "backend": _backend(row),
            "device": result.environment.device,
            "trials": result.selection.trials,
            "commit": result.code.commit,
            "entry": row.entry.file_name,
            "command": row.entry.command,
        }
    return record


def _backend(row: Row) -> str:
    """Which form of each op ran; where no op did, plain PyTorch."""
    if row.entry is None:
        return ""
    forms = row.entry.result.environment.backend
    return ", ".join(f"{op} {form}" for op, form in sorted(forms.items())) or "torch"


def _pair(score: ScoreRecord) -> str:
    return f"{score.value:.3f} ± {score.stderr:.3f}"


_escape_markdown = {ord(c): f"\\{c}" for c in "\\|*_`[]<>"}
_escape_latex = {ord(c): text for c, text in (_LATEX | _SIGNS).items()}
