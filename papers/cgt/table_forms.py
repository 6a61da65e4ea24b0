"""The forms of the table of runs: on the terminal, as Markdown, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from papers.cgt.linear_probe import FOLDS, SEGMENTS_A_COMPONENT
from papers.cgt.table import DYNAMIC, FROZEN, LINEAR_PROBE, VARIATION, Mean, Row, RunTable
from regbench.analysis.tables import markdown_table, narrow
from regbench.metrics.metric import METRICS
from regbench.report.content import label

NONE = "—"
CUT = "cut after"
WIDE = 110
"""Width of a terminal on which every mean and its ± fit on one line."""
NARROW = {"specialised": "special-\nised", "unprompted": "un-\nprompted", "linear-probe": "linear-\nprobe"}
"""Line breaks in headings on narrower terminals."""


def heading(found: RunTable) -> str:
    """The title of the table."""
    return f"{found.track}, {found.split} split, {found.instances} instances: {label(found.metric)} after the prompt"


def notes(found: RunTable) -> str:
    """What ± means, and how the linear probes were fitted."""
    runs = [row for row in found.rows if row.seeds]
    alone = list(dict.fromkeys(row.name for row in runs if len(row.seeds) == 1))
    if len(alone) == len({row.name for row in runs}):
        text = "± is one standard error over instances: each run has one seed"
    else:
        text = "Means over seeds; ± is one standard error over seeds"
        text += f", but over instances for {', '.join(alone)} with one seed" if alone else ""
    baselines = list(dict.fromkeys(row.name for row in found.rows if not row.seeds))
    if baselines:
        text += f". {', '.join(baselines)}: baselines with the whole prompt, ± over instances"
    if any(LINEAR_PROBE in row.y for row in found.rows):
        text += f". Linear probes: {found.segments} segments, {FOLDS}-fold cross-validation over instances"
    without = list(dict.fromkeys(row.name for row in found.rows if VARIATION in row.y and LINEAR_PROBE not in row.y))
    if without:
        text += (
            f". No linear probe for {', '.join(without)}: the task has no hidden real numbers, or its {found.segments} segments "
            f"are too few ({SEGMENTS_A_COMPONENT} to fit to for each component of y)"
        )
    return text + "."


def columns(found: RunTable) -> list[str]:
    """The headings of the columns."""
    way = METRICS[found.metric].arrow
    cut = [CUT] if _has_cuts(found) else []
    measured = [f"{DYNAMIC} {way}", f"specialised {way}", f"specialised, prompt read {way}", f"unprompted {way}"]
    return ["run", "seeds", *cut, *measured, "variation of y", "linear-probe error ↓"]


def cells(found: RunTable, row: Row) -> list[str]:
    """One row under `columns`."""
    cut = [str(row.cut)] if _has_cuts(found) else []
    scores = [row.scores.get(mode, {}).get(found.metric) for mode in (DYNAMIC, *FROZEN)]
    means = [*scores, row.y.get(VARIATION), row.y.get(LINEAR_PROBE)]
    return [row.name, str(len(row.seeds) or NONE), *cut, *map(_cell, means)]


def terminal(found: RunTable, width: int = WIDE) -> Table:
    """For a terminal of this width. Below `WIDE`, each ± is under its mean. Each cut has a line of its own."""
    table = Table(title=heading(found), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown = [number for number, name in enumerate(columns(found)) if name != CUT]
    for number in shown:
        name = columns(found)[number]
        if number == 0:
            table.add_column(name, overflow="fold")
        else:
            for whole, parted in NARROW.items() if width < WIDE else ():
                name = name.replace(whole, parted)
            table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    cut = None
    for row in found.rows:
        if row.cut != cut:
            table.add_section()
            table.add_row(f"after {row.cut}", style="italic")
            cut = row.cut
        parts = cells(found, row)
        if width < WIDE:
            parts = [parts[0], *(part.replace(" ±", "\n±") for part in parts[1:])]
        table.add_row(*narrow(parts[number] for number in shown), style=None if row.seeds else "dim")
    return table


def markdown(found: RunTable) -> str:
    """As Markdown: the title, the table, the notes."""
    lines = markdown_table(columns(found), [cells(found, row) for row in found.rows], 1)
    return "\n".join([f"{heading(found)}.", "", *lines, "", notes(found), ""])


def as_json(found: RunTable) -> dict[str, Any]:
    """Everything that was measured."""
    content = asdict(found)
    for row in content["rows"]:
        for mode, steps in row["by_example"].items():
            means = {key: [mean[key] for mean in steps.values()] for key in ("value", "stderr", "by_seed")}
            row["by_example"][mode] = {"examples_before": list(steps), **means}
    return content


def _has_cuts(found: RunTable) -> bool:
    return any(row.cut is not None for row in found.rows)


def _cell(mean: Mean | None) -> str:
    return NONE if mean is None else f"{mean.value:.3f} ±{mean.stderr:.3f}"
