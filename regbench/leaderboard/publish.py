"""The leaderboard as people read it: from the folder to ranked boards and their tables (Markdown, CSV, LaTeX).

Every entry is verified. Baselines take minutes to compute: `baselines.json` keeps those of every track with entries, so that
entries are compared with them and not with each other. The same entries give the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib import rc_context
from tabulate import tabulate

from regbench.evaluation.language_models import ABOUT, read_language_models
from regbench.leaderboard.claim import find_reference
from regbench.leaderboard.entry import Entry, canonical
from regbench.leaderboard.figures import copies
from regbench.leaderboard.overview import overview
from regbench.leaderboard.rank import ABOUT_TIERS, FIRST, SOLVED, TIES, Board, Row, rank
from regbench.leaderboard.spread import kept_spread
from regbench.leaderboard.store import kept, stored_in
from regbench.leaderboard.tiers import Evidence, read_evidence
from regbench.leaderboard.verify import verify_entry
from regbench.metrics.reach import reach_words, reached
from regbench.report.content import human_state, in_hundredths
from regbench.results import BaselineRecord, Result
from regbench.sweeps.file import Plot
from regbench.sweeps.plot import picture as draw
from regbench.tracks import Track, load_track, track_names
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_writing
from regbench.utils.guard import Refused

BASELINES = "baselines.json"
_TABLE = re.compile(r"([a-z0-9-]+-v[0-9]+)\.(md|csv|tex|svg)")
_PICTURED = "recall-reach-v2"
_DRAWN = re.compile(b"drawn from [0-9a-f]{64}")
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: f"\\{c}" for c in "&%$#_{}"
}
_FORMULA = tuple("=+-@\t\r")
_SIGNS = {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "—": "---", "–": "--", "≥": r"$\ge$"}
_escape_markdown = {ord(c): f"\\{c}" for c in "\\|*_`[]<>"}
_escape_latex = {ord(c): text for c, text in (_LATEX | _SIGNS).items()}

_INTRODUCTION = """\
# Leaderboard

Here are architectures that were trained within a track's budget and scored on its test split. Beside them stand baselines: some
learn from the prompt alone, some know how the task is made, and the oracle knows the truth. [RULES.md](RULES.md) has the rules.
`regbench leaderboard` makes all tables from the files in `entries/`. `regbench leaderboard --check` says if they are up to date.
`make docs` builds a page with the same tables and with curves: `site/leaderboard.html`."""

_TRACKS = "## Tracks\n\nWhat an entry may spend, and who is first."
_SOLVED = f"""\
## Solved tracks

Half of the entries or more solve these: their normalized score is {100 * SOLVED:g} or more. So they tell few apart."""

_HOW_TO = """\
## Submitting

```
regbench run --arch NAME --seed 0 1 2 --out runs/mine
regbench submit runs/mine
regbench leaderboard
```

`regbench submit` makes the checks of [RULES.md](RULES.md). It refuses a run with a line for each fault. `regbench verify FILE`
checks an entry that is here. With `--run DIR` it also compares the entry with its run.

An entry is claimed at first. `regbench challenge FILE --run DIR --by NAME` asks its weights about fresh instances. Then it is
verified. `regbench reproduce FILE --by NAME` trains it again, if it is built in. Then it is reproduced.

## Reading the tables

- A name has the options that differed from the defaults when the entry was made. Defaults may have changed since. The column
  `command` of the CSV table has the whole command.
- Tokens/s is what the run itself measured. Some runs shared their cores with other programs, and some are older than today's fast
  ops. So do not compare rows by it."""


# --- From the folder to boards. ---


def load_boards(
    folder: Path, track: Track | None = None, announce: Callable[[str], None] = lambda _: None
) -> tuple[list[Board], list[str]]:
    """The ranked boards of all entries, and a line for each fault in the entries. With a fault there are no boards."""
    entries: list[Entry] = []
    evidence: dict[str, Evidence] = {}
    faults: list[str] = []
    try:
        known = kept_baselines(folder)
        for stored in stored_in(folder / "entries"):
            try:
                entry = stored.entry
                evidence[entry.digest] = read_evidence(stored)
            except Refused as error:
                faults.append(f"{stored.path.name}: {error}")
                continue
            if entry.track not in {one.track for one in entries[-1:]}:
                announce(f"checking the entries of {entry.track}")
            entries.append(entry)
            baselines = known.get(entry.result.track.digest)
            found = verify_entry(stored, track=track, baselines=baselines, announce=announce).faults
            faults += [f"{stored.path.name}: {fault}" for fault in found]
        if not faults:
            faults = copies(entries)
        models, wrong = read_language_models(folder)
        faults += wrong
        boards = [] if faults else rank(entries, track, evidence, kept_spread(folder))
    except UserError as error:
        return [], [*faults, str(error)]
    return [replace(b, language_models=tuple(models.get((b.track, b.digest), ()))) for b in boards], faults


class _Baseline(BaselineRecord):
    """A baseline that is kept: how long it took is not."""

    seconds: float = 0.0


def kept_baselines(folder: Path) -> dict[str, dict[str, BaselineRecord]]:
    """What `baselines.json` of a leaderboard holds: by the digest of a track's definition the baselines on its test split."""
    found: dict[str, dict[str, BaselineRecord]] = kept(folder, BASELINES, dict[str, _Baseline])
    return found


def baselines_file(folder: Path, boards: list[Board], track: Track | None, announce: Callable[[str], None]) -> str:
    """The text of `baselines.json`: what is there, and the baselines of tracks that are new on the board."""
    known: dict[str, Mapping[str, BaselineRecord]] = {**kept_baselines(folder)}
    for board in boards:
        if board.digest not in known:
            known[board.digest] = find_reference(board.track, track).baselines(announce)
    return canonical(
        {
            digest: {name: record.model_dump(mode="json", exclude={"seconds"}) for name, record in found.items()}
            for digest, found in known.items()
        }
    )


# --- Files. ---


def render(boards: Sequence[Board]) -> dict[str, str]:
    """The content of every generated file of the leaderboard's folder, by name."""
    tracks = [load_track(name) for name in track_names()]
    files = {"README.md": readme(boards, [track for track in tracks if track.task.knows_truth])}
    if drawing := picture(boards):
        files[f"{_PICTURED}.svg"] = drawing
    for board in boards:
        files[f"{board.track}.md"] = markdown(board)
        files[f"{board.track}.csv"] = csv(board)
        files[f"{board.track}.tex"] = latex(board)
    return files


def write(folder: Path, files: dict[str, str]) -> None:
    """Writes the files that differ, and removes tables that are no longer among `files`."""
    with explain_writing(folder):
        for name in outdated(folder, files):
            if name not in files:
                (folder / name).unlink()
                continue
            with atomic_write(folder / name) as file:
                file.write(files[name])


def outdated(folder: Path, files: dict[str, str]) -> list[str]:
    """The names of generated files that are missing or differ, and of tables of built-in tracks that should not be there."""
    differ = [name for name, text in files.items() if not _holds(folder / name, text.encode())]
    old = [
        path.name
        for path in folder.iterdir()
        if (table := _TABLE.fullmatch(path.name)) and table[1] in track_names() and path.name not in files
    ]
    return sorted([*differ, *old])


def _holds(path: Path, text: bytes) -> bool:
    if path.suffix == ".svg":  # another Matplotlib draws other bytes
        return path.is_file() and _DRAWN.findall(path.read_bytes()) == _DRAWN.findall(text)
    return path.is_file() and path.stat().st_size == len(text) and path.read_bytes() == text


def markdown(board: Board) -> str:
    """`<track>.md`: the ranking, and what its figures mean."""
    main = board.known[board.main_score].label
    anchors = {row.anchor: row.name for row in board.rows if row.anchor}
    normalized = ""
    if {"start", "end"} <= set(anchors):
        normalized = f" The normalized score is by {main}: 0 at {anchors['start']}, 100 at {anchors['end']}."
    return (
        f"# {board.track}\n\n{f'{board.summary} {board.mark}'.strip()}\n\n{_grid(board, 'pipe', _escape_markdown)}\n\n"
        f"Entries are ranked by the mean of {main} over their seeds. Their ± is the standard error of that mean over seeds. "
        f"Baselines are in italics and have no rank. Their ± is the standard error over the {board.n_instances:,} test instances."
        f"{normalized}\n\n{TIES} {board.about_spread}\n\n{ABOUT_TIERS} {FIRST}\n{_language_models(board)}"
    )


def _language_models(board: Board) -> str:
    if not board.language_models:
        return ""
    rows = []
    for one in board.language_models:
        cells = {"language model": one.name}
        cells |= {board.known[m].heading: str(one.result.score(m)) for m in board.metrics}
        normalized, evaluation = one.normalized(board.baselines), one.result.evaluation
        assert evaluation is not None
        cells["normalized score"] = in_hundredths(normalized)
        cells["other tokens"] = f"{100 * one.outside:.1f} %"
        cells["parameters"] = f"{one.result.architecture.parameters:,}"
        cells["mappings"] = str(len(one.result.seeds))
        cells["instances"] = f"{evaluation.limit or board.n_instances:,}"
        rows.append({head: cell.translate(_escape_markdown) for head, cell in cells.items()})
    commands = "\n".join(one.command for one in board.language_models)
    fence = max(["``", *re.findall("`{3,}", commands)]) + "`"  # longer than any in a prompt
    return f"\n## Language models\n\n{ABOUT}\n\n{_list(rows)}\n\n{fence}\n{commands}\n{fence}\n"


def latex(board: Board) -> str:
    """`<track>.tex`: the same table, with the rules of the package booktabs."""
    above, head, body, rest = _grid(board, "latex_raw", _escape_latex).split("\\hline")
    return f"% {board.track}; needs booktabs\n{above}\\toprule{head}\\midrule{body}\\bottomrule{rest}\n"


def csv(board: Board) -> str:
    """`<track>.csv`: a line for each row, every figure in full. No cell is a formula for a spreadsheet."""
    rows = [_record(board, row) for row in board.rows]
    for row in rows:
        row.update({key: f"'{value}" for key, value in row.items() if isinstance(value, str) and value[:1] in _FORMULA})
    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def readme(boards: Sequence[Board], tracks: Sequence[Track]) -> str:
    """`README.md` of the leaderboard's folder; `tracks` are those that take entries, with or without a board."""
    here = {board.track: board for board in boards}
    found = abilities(boards)
    parts = [_INTRODUCTION, "## How far each architecture goes", *found] if found else [_INTRODUCTION]
    own = [(track, here[track.name]) for track in tracks if track.name in here]
    for head, solved in ((_TRACKS, False), (_SOLVED, True)):
        rows = [_track_row(track, board) for track, board in own if bool(board.mark) == solved]
        parts += [head, _list(rows)] if rows else []
    if empty := [track.name for track in tracks if track.name not in here]:
        parts.append(f"These tracks have no entries yet: {', '.join(empty)}.")
    others = [here[name] for name in sorted(set(here) - {track.name for track in tracks})]
    if others:
        parts += ["## Tracks of your own", _list([_board_row(board) for board in others])]
    return "\n\n".join([*parts, _HOW_TO]) + "\n"


def abilities(boards: Sequence[Board], root: str = "..", most: int | None = None) -> list[str]:
    """How far each architecture goes: who goes farthest, a picture, a table of at most so many lines, and what it shows.

    The repository is in the folder `root`, as seen from where this is read.
    """
    seen, rows = overview(boards), []
    for line in seen.lines[:most]:
        name, links = _plain(line.name), line.links
        row = {"architecture": f"[{name}]({root}/{links['file']})" if links else name, "family": line.family}
        row["paper"] = f"[{line.paper}]({links['paper']})" if "paper" in links else line.paper
        for one in seen.abilities:
            cell = line.cells.get(one.track)
            row[f"{one.name} ({one.unit})"] = "" if cell is None else _plain(f"{cell.words} ({cell.area:.2f})")
        row |= {"mean area": "" if line.mean is None else f"{line.mean:.2f}"}
        rows.append(row | {"state": line.state, "parameters (thousands)": line.parameters})
    drawing = f"![Reach in pairs against bytes of state]({root}/leaderboard/{_PICTURED}.svg)"
    shown = [drawing] if any(line.cells[_PICTURED].state for line in seen.lines if _PICTURED in line.cells) else []
    first = [{head: _plain(cell) for head, cell in row.items()} for row in seen.farthest]
    return [_list(first), *shown, _list(rows), f"{seen.about} The area is in brackets."] if rows else []


def picture(boards: Sequence[Board]) -> str:
    """Reach against bytes of state as SVG, which says what it was drawn from. Empty without entries."""
    rows: list[dict[str, Any]] = []
    for line in overview(boards).lines:
        if (cell := line.cells.get(_PICTURED)) is not None:
            found = reached([seed.curves["area"] for seed in cell.entry.result.seeds])
            row: dict[str, Any] = {"track": _PICTURED, "architecture": fill(line.name, 40), "state": cell.state}
            row |= {"reach": found.reach.size, "reach_bound": found.reach.bound}
            rows.append(row | {"reach_low": found.low.size, "reach_high": found.high.size})
    figure = draw(Plot(x="state", y="reach", log="xy"), sorted(rows, key=lambda row: -row["reach"]))
    if figure is None:
        return ""
    figure.set_figwidth(9.0)  # long names stand beside the frame
    figure.axes[0].set(xlabel="state at the longest context", ylabel="reach (pairs)")
    digest, file = hashlib.sha256(canonical(rows).encode()).hexdigest(), StringIO()
    with rc_context({"svg.hashsalt": _PICTURED}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Description": f"drawn from {digest}"})
    return file.getvalue()


def _plain(text: str) -> str:
    return text.translate(_escape_markdown)


def _track_row(track: Track, board: Board) -> dict[str, str]:
    splits = track.definition.splits
    row = {
        "track": track.name,
        "training instances": f"{splits.train:,}",
        "training tokens": f"{track.definition.budget.train_tokens:,}",
        "test instances": f"{splits.test:,}",
        "ranked by": track.metrics[track.definition.main_score].label,
    }
    return row | _board_row(board)


def _board_row(board: Board) -> dict[str, str]:
    first, best = "", board.leader
    if best is not None:
        first = f"{best.name}, {best.scores[board.main_score]}, {best.tier}"
        first = first if best.tier == "reproduced" else f"open until reproduced: {first}"
    return {
        "track": f"[{board.track}]({board.track}.md)",
        "solved by": "{} of {}".format(*board.solved),
        "first": first,
        "as data": f"[CSV]({board.track}.csv), [LaTeX]({board.track}.tex)",
    }


def _list(rows: Sequence[dict[str, str]]) -> str:
    return tabulate(rows, headers="keys", tablefmt="pipe", showindex=False, disable_numparse=True)


def _grid(board: Board, form: str, escape: dict[int, str]) -> str:
    rows = [
        {head.translate(escape): _set(cell, row, form, escape) for head, cell in _cells(board, row).items()}
        for row in board.rows
    ]
    columns = list(rows[0])
    align = ["right", "left", *["right"] * (len(columns) - 6), "left", "right", "right", "left"]
    return tabulate(rows, headers="keys", tablefmt=form, showindex=False, disable_numparse=True, colalign=align)


def _set(cell: str, row: Row, form: str, escape: dict[int, str]) -> str:
    """A cell in the form of the table: escaped, and of a baseline in italics."""
    text = cell.translate(escape)
    if row.kind == "entry" or not text:
        return text
    return f"*{text}*" if form == "pipe" else f"\\textit{{{text}}}"


def _cells(board: Board, row: Row) -> dict[str, str]:
    cells = {"rank": row.place, "predictor": row.title}
    cells |= {board.known[m].heading: str(row.scores[m]) for m in board.metrics}
    cells["normalized score"] = in_hundredths(row.normalized)
    result = row.entry.result if row.entry is not None else None
    if board.known[board.main_score].over == "area":
        cells["reach"] = reach_words(result) if result else ""
    cells["parameters"] = f"{result.architecture.parameters:,}" if result else ""
    cells["state"] = human_state(result.architecture) if result else ""
    cells["short conv"] = str(result.architecture.conv_width or "") if result else ""
    cells["tokens/s"] = f"{result.tokens_per_second:,.0f}" if result else ""
    cells["backend"] = _backend(row)
    cells["trials"] = str(result.selection.trials) if result else ""
    cells["seeds"] = str(len(result.seeds)) if result else ""
    cells["tier"] = row.tier or ""
    return cells


def _record(board: Board, row: Row) -> dict[str, object]:
    best, worst = row.shown_ties or (None, None)
    record: dict[str, object] = {"rank": None if row.held else row.rank, "best_rank": best, "worst_rank": worst}
    record |= {"kind": row.kind, "name": row.name}
    for metric in board.metrics:
        score = row.scores[metric]
        record |= {metric: round(score.value, 6), f"{metric}_spread": round(score.stderr, 6)}
        values = [seed.scores[metric].value for seed in row.entry.result.seeds] if row.entry is not None else []
        record[f"{metric}_by_seed"] = " ".join(f"{value:.6f}" for value in values)
    record["normalized_score"] = None if row.normalized is None else round(row.normalized, 6)
    if row.entry is not None:
        result = row.entry.result
        record |= {
            "architecture": result.architecture.name,
            "source": result.architecture.source,
            "parameters": result.architecture.parameters,
            "state_bytes": result.architecture.state_bytes,
            "short_conv": result.architecture.conv_width,
            "train_tokens": result.tokens,
            **({"reach": reach_words(result), "tokens_to_learn": learned} if (learned := _learned(result)) else {}),
            "tokens_per_second": round(result.tokens_per_second, 1),
            "backend": _backend(row),
            "device": result.environment.device,
            "trials": result.selection.trials,
            "commit": result.code.commit,
            "learns": row.learns,
            "standing": row.mark or ("" if row.rank is None else "provisional" if row.provisional else "ranked"),
            "tier": row.tier,
            "evidence": row.evidence.about if row.evidence is not None else None,
            "entry": row.entry.file_name,
            "command": row.entry.command,
        }
    return record


def _learned(result: Result) -> int | None:
    """The tokens after which the slowest seed had learned, on a track with an axis of sizes."""
    return max((seed.tokens_to_learn for seed in result.seeds if seed.tokens_to_learn is not None), default=None)


def _backend(row: Row) -> str:
    """Which implementation of each op ran. Without such an op it is plain PyTorch."""
    if row.entry is None:
        return ""
    ran = row.entry.result.environment.backend
    return ", ".join(f"{op} {name}" for op, name in sorted(ran.items())) or "torch"
