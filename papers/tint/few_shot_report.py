"""The findings of `regbench adapt` on a track of exemplars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from papers.tint.few_shot import CALIBRATED, MEDIAN, PLAIN, FewShotRow
from papers.tint.report import LINES, Report, diverging, picture
from regbench.report.table import plain, signed

HEADINGS = {PLAIN: "accuracy ↑", CALIBRATED: "calibrated ↑", MEDIAN: "at-the-median ↑"}


def report(rows: Sequence[FewShotRow], track: str, split: str, limit: int) -> Report:
    accuracies = [metric for metric in HEADINGS if metric in rows[0].values]
    heads = [HEADINGS[metric] for metric in accuracies]
    least = ["format", "loss", "way", "steps"]
    cells = [
        {
            "run": row.run,
            **dict(zip(least, _least(row), strict=True)),
            "rate": "—" if row.way == "none" else f"{row.rate:g}",
            "exemplars": str(row.exemplars),
            **{HEADINGS[metric]: plain(row.score(metric)) for metric in accuracies},
            "change of the last": "—" if row.way == "none" else signed(row.difference(accuracies[-1])),
            "label among all tokens ↑": plain(row.score("label_accuracy")),
            "NLL ↓": f"{row.score('nll').value:.3f}",
        }
        for row in rows
    ]
    return Report(
        f"{track}, {split} split, at most {limit} problems: the label of a query, after steps on the exemplars",
        cells,
        4,
        [*least, "rate", *heads],
        _notes(rows, accuracies[-1]),
        _numbers(rows, split, accuracies[-1]),
        partial(_draw, rows, accuracies[-1]),
    )


def _least(row: FewShotRow) -> list[str]:
    """What distinguishes the rows of a run, but for the rate."""
    return [row.format, row.targets or "—", row.way, str(row.steps)]


def _notes(rows: Sequence[FewShotRow], last: str) -> list[str]:
    """What the numbers mean, and each rate at which weights diverge."""
    found = [
        "Accuracy: the right label has the larger probability of both; chance is 0.5. ± is the standard error over problems. "
        "That of a change is of paired differences. Way none: no step; in the format multi that is learning in context."
    ]
    if any(row.format == "zero" for row in rows):
        found.append(
            "Format zero: steps on the query's own excerpt; the labels are a token that distinguishes each document."
        )
    if last == MEDIAN:
        found.append(
            "Calibrated: each label's probability is divided by that without an excerpt. At the median: the log ratio of both is "
            "compared with its median over the queries of a problem, which uses the other queries."
        )
    if any(row.gains for row in rows):
        found.append(f"The rate has the highest accuracy{' at the median' * (last == MEDIAN)} on validation problems.")
    for row in rows:
        if lost := diverging(row.gains):
            found.append(f"{row.run}, {', '.join(_least(row))}: the weights diverge at {lost}.")
        if len(row.gains) > 1 and row.rate == max(row.gains):
            found.append(f"{row.run}, {', '.join(_least(row))}: the chosen rate is the largest that was tried.")
    return found


def _numbers(rows: Sequence[FewShotRow], split: str, last: str) -> list[list[object]]:
    """Every metric of every row, its change, and the accuracy on validation of every rate."""
    names = ["run", "format", "loss", "way", "steps", "exemplars", "split", "rate", "metric"]
    lines: list[list[object]] = [[*names, "value", "stderr", "difference", "stderr of difference"]]
    for row in rows:
        first = [row.run, *_least(row), row.exemplars]
        for rate, gain in row.gains.items():
            value = "diverges" if gain != gain else f"{gain:.6g}"
            lines.append([*first, "validation", f"{rate:g}", last, value, "", "", ""])
        for metric in row.values:
            score, change = row.score(metric), row.difference(metric)
            numbers = [f"{x:.6g}" for x in (score.value, score.stderr, change.value, change.stderr)]
            lines.append([*first, split, f"{row.rate:g}", metric, *numbers])
    return lines


def _draw(rows: Sequence[FewShotRow], metric: str, title: str, path: Path) -> None:
    """The accuracy by the number of steps: a row of panels for each run, a panel for each format and loss."""
    runs = list(dict.fromkeys(row.run for row in rows))
    kinds = list(dict.fromkeys((row.format, row.targets) for row in rows if row.steps))
    with picture(len(runs), len(kinds), title, path, sharex=True, sharey=True) as panels:
        for i, run in enumerate(runs):
            for j, (layout, targets) in enumerate(kinds):
                axes, of = panels[i][j], [row for row in rows if row.run == run and row.format == layout]
                still = next(row.score(metric) for row in of if not row.steps)
                axes.axhline(0.5, color="#555555", linewidth=0.8)
                axes.axhline(still.value, color="#000000", linewidth=1, dashes=(6, 3), label="no step")
                for way in dict.fromkeys(row.way for row in of if row.steps):
                    chosen = [row for row in of if row.way == way and row.targets == targets]
                    scores = [row.score(metric) for row in chosen]
                    values, errors = [score.value for score in scores], [score.stderr for score in scores]
                    steps = [row.steps for row in chosen]
                    axes.errorbar(steps, values, errors, capsize=2, elinewidth=1, label=way, **LINES[way])
                used, what = of[0].exemplars, "labels" if targets == "label" else "all tokens"
                axes.set_title(f"{run}: {layout}, {used} exemplars,\nloss of {what}")
                axes.set_xscale("log", base=2)
                axes.set_xticks(sorted({row.steps for row in rows if row.steps}))
                axes.xaxis.set_major_formatter("{x:g}")
            panels[i][0].set_ylabel("accuracy" if metric == PLAIN else "accuracy at the median")
        for axes in panels[-1]:
            axes.set_xlabel("steps on the exemplars")
