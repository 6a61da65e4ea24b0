"""The findings of `regbench adapt` on segments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from papers.tint.adaptation import Outcome, Row
from papers.tint.report import LINES, Report, diverging, picture
from regbench.metrics.metric import METRICS
from regbench.report.content import label
from regbench.report.table import signed

SHORT = {"nll": "NLL", "tvd": "TVD"}
"""The metrics that stand beside a reference."""
BINS = 8
"""Bins of distance in the picture and in the CSV."""


def report(rows: Sequence[Row], track: str, split: str, limit: int, steps: int) -> Report:
    words = "one step" if steps == 1 else f"{steps} steps"
    title = f"{track}, {split} split, at most {limit} instances: behind a segment, before and after {words} on it"
    shown = ["segment", "way", "rate", "NLL ↓", "NLL difference", "of full"]
    shown += ["Bayes NLL", "NLL of gap"] if rows[0].outcome.reference else []
    return Report(
        title,
        [_cells(row) for row in rows],
        3,
        shown,
        notes(rows),
        _numbers(rows, split),
        partial(_draw, rows),
    )


def _cells(row: Row) -> dict[str, str]:
    """One row by heading: each metric before, its change, and where there is a reference how far that is on the way to it."""
    share = "—" if row.share_of_full is None else f"{100 * row.share_of_full:.0f} %"
    found = {"run": row.run, "segment": str(row.place), "way": row.way, "rate": f"{row.rate:g}"}
    known = row.outcome.before
    for metric in (*(m for m in SHORT if m in known), *(m for m in known if m not in SHORT)):
        name = SHORT.get(metric, label(metric))
        found[f"{name} {METRICS[metric].arrow}"] = f"{row.outcome.score('before', metric).value:.3f}"
        found[f"{name} difference"] = signed(row.outcome.score("difference", metric), 4)
        found |= {"of full": share} if metric == "nll" else {}
        if metric in SHORT and metric in row.outcome.reference:
            found[f"Bayes {name}"] = f"{row.outcome.score('reference', metric).value:.3f}"
            found[f"{name} of gap"] = f"{100 * row.outcome.share_of_gap(metric):.1f} %"
    return found


def notes(rows: Sequence[Row]) -> list[str]:
    """What the numbers mean, each rate at which weights diverge, and where no rate gains."""
    grouped = "; windows of one document count as one" if rows[0].outcome.problem is not None else ""
    found = [f"NLL in nats. ± is the standard error of the paired difference over instances{grouped}."]
    if any(row.gains for row in rows):
        found.append("The rate has the largest mean gain on the validation split.")
    ends: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if lost := diverging(row.gains):
            found.append(f"{row.run}, {row.place}, {row.way}: the weights diverge at {lost}.")
        end = ""
        if row.gains and row.gains[row.rate] <= 0:  # whether a smaller rate gains is all that is left to ask
            end = "no rate gains on validation, and smaller --rates may,"
        elif len(row.gains) > 1 and row.rate in (min(row.gains), max(row.gains)):
            end = f"the chosen rate is the {'smallest' if row.rate == min(row.gains) else 'largest'} that was tried"
        if end:
            ends.setdefault((row.run, end), []).append(f"{row.way} at {row.place}")
    found += [f"{run}: {end} for {', '.join(cases)}." for (run, end), cases in ends.items()]
    if rows[0].outcome.reference:
        found.append(
            "Bayes: the predictor that knows how automata are drawn, on the same positions. Of gap: the change as a share of the "
            "way from before to Bayes; below 0 where the step does harm."
        )
    return found


def _numbers(rows: Sequence[Row], split: str) -> list[list[object]]:
    """Every metric behind the segment ("distance" is "all"), and by distance; and the gain on validation of every rate.

    The last column is the reference, where there is one.
    """
    names = ["run", "segment", "way", "split", "rate", "metric", "distance"]
    lines: list[list[object]] = [[*names, "before", "after", "difference", "stderr", "reference"]]
    for row in rows:
        first = [row.run, str(row.place), row.way]
        for rate, gain in row.gains.items():
            value = "diverges" if gain != gain else f"{-gain:.6g}"
            lines.append([*first, "validation", f"{rate:g}", "nll", "all", "", "", value, "", ""])
        kinds = ["before", "after", "difference", *(["reference"] if row.outcome.reference else [])]
        for metric in row.outcome.before:
            bins = [row.outcome.by_distance(metric, _bin_width(row.outcome), which) for which in kinds]
            table = [("all", [row.outcome.score(which, metric) for which in kinds])]
            table += [(f"{at:.1f}", [scores[i] for _, scores in bins]) for i, at in enumerate(bins[0][0])]
            for place, (before, after, change, *reference) in table:
                values = [f"{score.value:.6g}" for score in (before, after, change)]
                last = f"{reference[0].value:.6g}" if reference else ""
                lines.append([*first, split, f"{row.rate:g}", metric, place, *values, f"{change.stderr:.3g}", last])
    return lines


def _draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """The change in NLL by distance behind the segment: a row of panels for each run, a panel for each segment."""
    runs, places, ways = (
        list(dict.fromkeys(each)) for each in zip(*((r.run, r.place, r.way) for r in rows), strict=True)
    )
    with picture(len(runs), len(places), title, path, sharex="col", sharey="row") as panels:
        for row in rows:
            axes, width = panels[runs.index(row.run)][places.index(row.place)], _bin_width(row.outcome)
            at, scores = row.outcome.by_distance("nll", width)
            at = at + 0.12 * width * (ways.index(row.way) - (len(ways) - 1) / 2)  # they would hide each other
            values, errors = [score.value for score in scores], [score.stderr for score in scores]
            axes.errorbar(at, values, errors, capsize=2, elinewidth=1, label=row.way, **LINES[row.way])
            axes.set_title(f"{row.run}, segment {row.place}")
        for axes in panels.flat:
            axes.axhline(0, color="#555555", linewidth=0.8)
        for axes in panels[:, 0]:
            axes.set_ylabel("change of NLL (nats)\nbelow 0 is a gain")
        for axes in panels[-1]:
            axes.set_xlabel("tokens behind the segment")


def _bin_width(outcome: Outcome) -> int:
    return max(1, -(-int(outcome.distance[outcome.behind].max() + 1) // BINS))
