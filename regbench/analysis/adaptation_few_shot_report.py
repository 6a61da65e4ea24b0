"""The findings of `regbench adapt` on a track of exemplars: a table for the terminal and for Markdown, a CSV, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from regbench.analysis.adaptation_few_shot import CALIBRATED, MEDIAN, PLAIN, FewShotRow
from regbench.analysis.adaptation_report import LINES, picture
from regbench.analysis.tables import markdown_table, narrow, narrow_table, plain, signed
from regbench.utils.files import write_rows

HEADINGS = {PLAIN: "accuracy ↑", CALIBRATED: "calibrated ↑", MEDIAN: "at the median ↑"}
LEAST = ["format", "loss", "way", "steps", "rate"]
"""The headings of what distinguishes the rows of a run."""


def title(track: str, split: str, limit: int) -> str:
    """What the table is of."""
    return f"{track}, {split} split, at most {limit} problems: the label of a query, after steps on the exemplars"


def columns(rows: Sequence[FewShotRow]) -> list[str]:
    """The headings."""
    chosen = [HEADINGS[metric] for metric in _accuracies(rows)]
    return ["run", *LEAST, "exemplars", *chosen, "change of the last", "label among all tokens ↑", "NLL ↓"]


def cells(rows: Sequence[FewShotRow], row: FewShotRow) -> list[str]:
    """One row under `columns`."""
    shown = _accuracies(rows)
    change = "—" if row.way == "none" else signed(row.difference(shown[-1]))
    others = [plain(row.score("label_accuracy")), f"{row.score('nll').value:.3f}"]
    return [row.run, *_least(row), str(row.exemplars), *(plain(row.score(m)) for m in shown), change, *others]


def notes(rows: Sequence[FewShotRow]) -> list[str]:
    """What the numbers mean, and each rate at which weights diverge."""
    shown = _accuracies(rows)
    found = [
        "Accuracy: the right label has the larger probability of both; chance is 0.5. ± is the standard error over problems. "
        "That of a change is of paired differences. Way none: no step; in the format multi that is learning in context."
    ]
    if MEDIAN in shown:
        found.append(
            "Calibrated: each label's probability is divided by that without an excerpt. At the median: the log ratio of both is "
            "compared with its median over the queries of a problem, which uses the other queries."
        )
    if any(row.gains for row in rows):
        found.append(
            f"The rate has the highest accuracy{' at the median' if MEDIAN in shown else ''} on validation problems."
        )
    for row in rows:
        lost = [f"{rate:g}" for rate, gain in row.gains.items() if gain != gain]
        if lost:
            found.append(f"{row.run}, {', '.join(_least(row)[:4])}: the weights diverge at {', '.join(lost)}.")
    ends = [
        f"{row.way} {row.format} {row.targets} {row.steps}"
        for row in rows
        if len(row.gains) > 1 and row.rate == max(row.gains)
    ]
    if ends:
        found.append(f"The chosen rate is the largest that was tried for {', '.join(dict.fromkeys(ends))}.")
    return found


def terminal(rows: Sequence[FewShotRow]) -> list[Table]:
    """A table for each run, for a terminal of 80 columns."""
    tables, shown = [], _accuracies(rows)
    for run in dict.fromkeys(row.run for row in rows):
        table = narrow_table(run, [*LEAST, *(HEADINGS[metric].replace(" ", "\n", 1) for metric in shown)], 3)
        of = [row for row in rows if row.run == run]
        for row, after in zip(of, [*of[1:], None], strict=True):
            end = after is None or (after.format, after.targets, after.way) != (row.format, row.targets, row.way)
            table.add_row(*_least(row), *narrow(plain(row.score(metric)) for metric in shown), end_section=end)
        tables.append(table)
    return tables


def markdown(rows: Sequence[FewShotRow], heading: str) -> str:
    """As Markdown: the title, the table, the notes."""
    lines = markdown_table(columns(rows), [cells(rows, row) for row in rows], 4)
    return "\n".join([f"{heading}.", "", *lines, "", *notes(rows), ""])


def write_csv(rows: Sequence[FewShotRow], split: str, path: Path) -> None:
    """Every metric of every row, its change, and the accuracy on validation of every rate."""
    names = ["run", *LEAST[:4], "exemplars", "split", "rate", "metric", "value", "stderr", "difference", "stderr"]
    lines: list[list[object]] = []
    for row in rows:
        first = [row.run, *_least(row)[:4], row.exemplars]
        for rate, gain in row.gains.items():
            value = "diverges" if gain != gain else f"{gain:.6g}"
            lines.append([*first, "validation", f"{rate:g}", _accuracies(rows)[-1], value, "", "", ""])
        for metric in row.values:
            score, change = row.score(metric), row.difference(metric)
            numbers = [f"{x:.6g}" for x in (score.value, score.stderr, change.value, change.stderr)]
            lines.append([*first, split, f"{row.rate:g}", metric, *numbers])
    write_rows(path, names, lines)


def draw(rows: Sequence[FewShotRow], heading: str, path: Path) -> None:
    """The accuracy by the number of steps: a row of panels for each run, a panel for each format and loss."""
    metric = _accuracies(rows)[-1]
    runs = list(dict.fromkeys(row.run for row in rows))
    kinds = list(dict.fromkeys((row.format, row.targets) for row in rows if row.steps))
    with picture(len(runs), len(kinds), heading, path, sharex=True, sharey=True) as panels:
        for i, run in enumerate(runs):
            for j, (layout, targets) in enumerate(kinds):
                axes, of = panels[i][j], [row for row in rows if row.run == run and row.format == layout]
                still = next(row.score(metric) for row in of if not row.steps)
                axes.axhline(0.5, color="#555555", linewidth=0.8)
                axes.axhline(still.value, color="#000000", linewidth=1, dashes=(6, 3), label="no step")
                for way in dict.fromkeys(row.way for row in of if row.steps):
                    chosen = [row for row in of if row.way == way and row.targets == targets]
                    scores = [row.score(metric) for row in chosen]
                    axes.errorbar(
                        [row.steps for row in chosen],
                        [score.value for score in scores],
                        [score.stderr for score in scores],
                        capsize=2,
                        elinewidth=1,
                        label=way,
                        **LINES[way],
                    )
                used, what = of[0].exemplars, "labels" if targets == "label" else "all tokens"
                axes.set_title(f"{run}: {layout}, {used} exemplars,\nloss of {what}")
                axes.set_xscale("log", base=2)
                axes.set_xticks(sorted({row.steps for row in rows if row.steps}))
                axes.xaxis.set_major_formatter("{x:g}")
            panels[i][0].set_ylabel("accuracy" if metric == PLAIN else "accuracy at the median")
        for axes in panels[-1]:
            axes.set_xlabel("steps on the exemplars")


def _accuracies(rows: Sequence[FewShotRow]) -> list[str]:
    """The accuracies that are shown. The last one chooses the rate."""
    return [metric for metric in (PLAIN, CALIBRATED, MEDIAN) if metric in rows[0].values]


def _least(row: FewShotRow) -> list[str]:
    """The cells under `LEAST`."""
    rate = "—" if row.way == "none" else f"{row.rate:g}"
    return [row.format, row.targets or "—", row.way, str(row.steps), rate]
