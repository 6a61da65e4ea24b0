"""The forms of the table of runs: on the terminal, as Markdown, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from papers.cgt.linear_probe import FOLDS, SEGMENTS_A_COMPONENT
from papers.cgt.table import DYNAMIC, FROZEN, LINEAR_PROBE, VARIATION, Mean, Row, RunTable
from regbench.metrics.metric import METRICS
from regbench.report.content import label
from regbench.report.table import markdown_table, narrow, narrow_table

NONE = "—"
CUT = "cut after"


def heading(found: RunTable) -> str:
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


def terminal(found: RunTable) -> Table:
    """For a terminal of 80 columns: each ± is under its mean, and each cut has a line of its own."""
    heads = [name.replace(" ", "\n") for name in columns(found)]
    for whole, parted in (("specialised", "special-\nised"), ("unprompted", "un-\nprompted"), ("r-probe", "r-\nprobe")):
        heads = [head.replace(whole, parted) for head in heads]
    cut_at = heads.index(CUT.replace(" ", "\n")) if _has_cuts(found) else len(heads)
    table = narrow_table(heading(found), heads[:cut_at] + heads[cut_at + 1 :], 1)
    for cut in dict.fromkeys(row.cut for row in found.rows):
        if cut is not None:
            table.add_section()
            table.add_row(f"after {cut}", style="italic")
        for row in (row for row in found.rows if row.cut == cut):
            parts = narrow(part.replace(" ±", "\n±") for part in cells(found, row))
            table.add_row(*parts[:cut_at], *parts[cut_at + 1 :], style=None if row.seeds else "dim")
    return table


def markdown(found: RunTable) -> str:
    lines = markdown_table(columns(found), [cells(found, row) for row in found.rows], 1)
    return "\n".join([f"{heading(found)}.", "", *lines, "", notes(found), ""])


def as_json(found: RunTable) -> dict[str, Any]:
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
