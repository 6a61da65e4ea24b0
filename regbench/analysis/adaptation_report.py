"""The findings of `regbench adapt`: a table for the terminal and for Markdown, a CSV, and a picture by distance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table

from regbench.analysis.adaptation import Outcome, Row
from regbench.analysis.tables import markdown_table, narrow, narrow_table, signed
from regbench.metrics.metric import METRICS
from regbench.report.content import label
from regbench.report.palette import COLOURS
from regbench.report.pictures import STYLE, save_picture
from regbench.utils.files import write_rows

_LOOKS = {"full": (COLOURS[0], "o", "-"), "values": (COLOURS[4], "s", "--"), "tint": (COLOURS[2], "^", ":")}
LINES: dict[str, dict[str, Any]] = {
    way: {"color": colour, "marker": marker, "linestyle": dash, "linewidth": 1.5, "markersize": 5}
    for way, (colour, marker, dash) in _LOOKS.items()
}
"""How the line of each way is drawn."""
WAYS = tuple(LINES)
SHORT = {"nll": "NLL", "tvd": "TVD"}
LABELS = {"nll": "NLL (nats)", "tvd": "TVD"}
"""The metrics beside a reference, for a narrow table and for a picture."""
BINS = 8
"""Bins of distance in the picture and in the CSV."""


def title(track: str, split: str, limit: int, steps: int) -> str:
    """What the table is of."""
    words = "one step" if steps == 1 else f"{steps} steps"
    return f"{track}, {split} split, at most {limit} instances: behind a segment, before and after {words} on it"


def columns(rows: Sequence[Row]) -> list[str]:
    """The headings."""
    others = [f"{label(metric)} difference {METRICS[metric].arrow}" for metric in _others(rows)]
    arrow = METRICS["nll"].arrow
    return [
        "run",
        "segment",
        "way",
        "rate",
        f"NLL before {arrow}",
        f"NLL after {arrow}",
        "difference",
        "share of full",
        *others,
    ]


def cells(rows: Sequence[Row], row: Row) -> list[str]:
    """One row under `columns`."""
    before, after = (row.outcome.score(which, "nll") for which in ("before", "after"))
    share = "—" if row.share_of_full is None else f"{100 * row.share_of_full:.0f} %"
    others = [signed(row.outcome.score("difference", metric), 4) for metric in _others(rows)]
    difference = signed(row.outcome.score("difference", "nll"), 4)
    values = f"{row.rate:g}", f"{before.value:.3f}", f"{after.value:.3f}", difference, share
    return [row.run, str(row.place), row.way, *values, *others]


def notes(rows: Sequence[Row]) -> list[str]:
    """What the numbers mean, each rate at which weights diverge, and where no rate gains."""
    grouped = "; windows of one document count as one" if rows and rows[0].outcome.problem is not None else ""
    found = [f"NLL in nats. ± is the standard error of the paired difference over instances{grouped}."]
    if any(row.gains for row in rows):
        found.append("The rate has the largest mean gain on the validation split.")
    ends: dict[tuple[str, str], list[str]] = {}
    harm: dict[str, list[str]] = {}
    for row in rows:
        lost = [f"{rate:g}" for rate, gain in row.gains.items() if gain != gain]
        if lost:
            found.append(f"{row.run}, {row.place}, {row.way}: the weights diverge at {', '.join(lost)}.")
        if row.gains and row.gains[row.rate] <= 0:
            harm.setdefault(row.run, []).append(f"{row.way} at {row.place}")
            continue  # whether a smaller rate gains is all that is left to ask
        if len(row.gains) > 1 and row.rate in (min(row.gains), max(row.gains)):
            end = "smallest" if row.rate == min(row.gains) else "largest"
            ends.setdefault((row.run, end), []).append(f"{row.way} at {row.place}")
    for run, cases in harm.items():
        found.append(f"{run}: no rate gains on validation for {', '.join(cases)}: give smaller --rates.")
    for (run, end), cases in ends.items():
        found.append(f"{run}: the chosen rate is the {end} that was tried for {', '.join(cases)}.")
    if rows[0].outcome.reference:
        found.append(
            "Bayes: the predictor that knows how automata are drawn, on the same positions. Of gap: the change as a share of the "
            "way from before to Bayes; below 0 where the step does harm."
        )
    return found


def terminal(rows: Sequence[Row]) -> list[Table]:
    """A table for each run, for a terminal of 80 columns: the NLL, and the TVD where the truth is known.

    If there is a reference, a table for each run beside it follows.
    """
    tables = []
    known = "tvd" in rows[0].outcome.before
    for run in dict.fromkeys(row.run for row in rows):
        tvd = [f"TVD {METRICS['tvd'].arrow}"] if known else []
        table = narrow_table(run, ["segment", "way", "rate", "NLL ↓", "after", "difference", "of full", *tvd], 2)
        for row in rows:
            if row.run == run:
                others = [signed(row.outcome.score("difference", "tvd"), 4)] if known else []
                table.add_row(*narrow((*cells(rows, row)[1:8], *others)), end_section=row.way == WAYS[-1])
        tables.append(table)
    return tables + (reference_tables(rows) if rows[0].outcome.reference else [])


def markdown(rows: Sequence[Row], heading: str) -> str:
    """As Markdown: the title, the table, the tables beside the reference if there is one and by distance, the notes."""
    lines = [f"{heading}.", "", *markdown_table(columns(rows), [cells(rows, row) for row in rows], 3), ""]
    if rows[0].outcome.reference:
        beside = markdown_table(reference_columns(rows), [reference_cells(rows, row) for row in rows], 3)
        lines += [*beside, ""]
    for place in dict.fromkeys(row.place for row in rows):
        lines += [f"Segment {place}, by the mean distance behind it in tokens:", ""]
        lines += [*_distance_table([row for row in rows if row.place == place]), ""]
    return "\n".join([*lines, *notes(rows), ""])


def _distance_table(rows: Sequence[Row]) -> list[str]:
    """For one segment: each metric before, its change for each way, and that of the reference, by distance."""
    width = bin_width(rows[0].outcome)
    heads = [f"{place:.0f}" for place in rows[0].outcome.by_distance("nll", width)[0]]
    lines = []
    for metric in [metric for metric in SHORT if metric in rows[0].outcome.before]:
        for run in dict.fromkeys(row.run for row in rows):
            of = [row for row in rows if row.run == run]
            before = of[0].outcome.by_distance(metric, width, "before")[1]
            lines.append([run, SHORT[metric], "before", *(f"{score.value:.3f}" for score in before)])
            for row in of:
                changes = row.outcome.by_distance(metric, width)[1]
                lines.append([run, SHORT[metric], f"{row.way} difference", *(signed(score, 4) for score in changes)])
        if metric in rows[0].outcome.reference:
            reference = rows[0].outcome.by_distance(metric, width, "reference")[1]
            lines.append(["Bayes", SHORT[metric], "", *(f"{score.value:.3f}" for score in reference)])
    return markdown_table(["run", "metric", "what", *heads], lines, 3)


def reference_columns(rows: Sequence[Row]) -> list[str]:
    """The headings of the table beside the reference."""
    found = ["run", "segment", "way"]
    for metric in _beside(rows):
        found += [f"{SHORT[metric]} ↓", "after", "Bayes", "of gap"]
    return found


def reference_cells(rows: Sequence[Row], row: Row) -> list[str]:
    """One row under `reference_columns`: how far each metric moves from before to the reference."""
    found = [row.run, str(row.place), row.way]
    for metric in _beside(rows):
        found += [f"{row.outcome.score(which, metric).value:.3f}" for which in ("before", "after", "reference")]
        found.append(f"{100 * row.outcome.share_of_gap(metric):.1f} %")
    return found


def reference_tables(rows: Sequence[Row]) -> list[Table]:
    """A table for each run, for a terminal of 80 columns."""
    tables = []
    for run in dict.fromkeys(row.run for row in rows):
        table = narrow_table(f"{run} beside Bayes", reference_columns(rows)[1:], 2)
        for row in rows:
            if row.run == run:
                table.add_row(*reference_cells(rows, row)[1:])
        tables.append(table)
    return tables


def draw_reference(rows: Sequence[Row], heading: str, path: Path) -> None:
    """The metrics by distance behind the segment, before and after, and of the reference.

    A row of panels for each run, a panel for each segment and metric.
    """
    runs, metrics = list(dict.fromkeys(row.run for row in rows)), _beside(rows)
    kinds = [(place, metric) for metric in metrics for place in dict.fromkeys(row.place for row in rows)]
    with picture(len(runs), len(kinds), heading, path, sharex="col", sharey="col") as panels:
        for i, run in enumerate(runs):
            for j, (place, metric) in enumerate(kinds):
                axes, of = panels[i][j], [row for row in rows if row.run == run and row.place == place]
                width = bin_width(of[0].outcome)
                for which, dashes, label_of in (("before", (1, 0), "before"), ("reference", (6, 2), "Bayes")):
                    at, scores = of[0].outcome.by_distance(metric, width, which)
                    axes.plot(
                        at, [s.value for s in scores], color="#000000", linewidth=1.5, dashes=dashes, label=label_of
                    )
                for row in of:
                    at, scores = row.outcome.by_distance(metric, width, "after")
                    axes.plot(at, [s.value for s in scores], label=f"after {row.way}", **LINES[row.way])
                axes.set_title(f"{run}, segment {place}")
                axes.set_ylabel(LABELS[metric])
        for axes in panels[-1]:
            axes.set_xlabel("tokens behind the segment")


def write_csv(rows: Sequence[Row], split: str, path: Path) -> None:
    """Every metric behind the segment ("distance" is "all"), and by distance; and the gain on validation of every rate.

    The last column is the reference, where there is one.
    """
    names = ["run", "segment", "way", "split", "rate", "metric", "distance"]
    names += ["before", "after", "difference", "stderr", "reference"]
    lines = []
    for row in rows:
        first = [row.run, str(row.place), row.way]
        for rate, gain in row.gains.items():
            value = "diverges" if gain != gain else f"{-gain:.6g}"
            lines.append([*first, "validation", f"{rate:g}", "nll", "all", "", "", value, "", ""])
        for metric in row.outcome.before:
            chosen = [*first, split, f"{row.rate:g}", metric]
            kinds = ["before", "after", "difference", *(["reference"] if row.outcome.reference else [])]
            whole = [row.outcome.score(which, metric) for which in kinds]
            width = bin_width(row.outcome)
            bins = [row.outcome.by_distance(metric, width, which)[1] for which in kinds]
            places = row.outcome.by_distance(metric, width)[0]
            table = [("all", whole)]
            table += [(f"{place:.1f}", list(scores)) for place, *scores in zip(places, *bins, strict=True)]
            for place, scores in table:
                before, after, change, *reference = scores
                numbers = [f"{score.value:.6g}" for score in (before, after, change)]
                last = f"{reference[0].value:.6g}" if reference else ""
                lines.append([*chosen, place, *numbers, f"{change.stderr:.3g}", last])
    write_rows(path, names, lines)


def draw(rows: Sequence[Row], heading: str, path: Path) -> None:
    """The change in NLL by distance behind the segment: a row of panels for each run, a panel for each segment."""
    runs = list(dict.fromkeys(row.run for row in rows))
    places = list(dict.fromkeys(row.place for row in rows))
    ways = list(dict.fromkeys(row.way for row in rows))
    with picture(len(runs), len(places), heading, path, sharex="col", sharey="row") as panels:
        for row in rows:
            axes = panels[runs.index(row.run)][places.index(row.place)]
            at, scores = row.outcome.by_distance("nll", bin_width(row.outcome))
            # Beside each other, where they would hide each other.
            at = at + 0.12 * bin_width(row.outcome) * (ways.index(row.way) - (len(ways) - 1) / 2)
            values, errors = [score.value for score in scores], [score.stderr for score in scores]
            axes.errorbar(at, values, errors, capsize=2, elinewidth=1, label=row.way, **LINES[row.way])
        for i, run in enumerate(runs):
            for j, place in enumerate(places):
                axes = panels[i][j]
                axes.axhline(0, color="#555555", linewidth=0.8)
                axes.set_title(f"{run}, segment {place}")
                axes.tick_params(labelleft=j == 0)
            panels[i][0].set_ylabel("change of NLL (nats)\nbelow 0 is a gain")
        for axes in panels[-1]:
            axes.set_xlabel("tokens behind the segment")


@contextmanager
def picture(rows: int, columns: int, heading: str, path: Path, **shared: Any) -> Iterator[Any]:
    """The panels of a picture, (rows, columns), to draw into. Then they get one legend and the heading, and are written.

    Args:
        rows: Rows of panels, one for each run.
        columns: Panels of a row.
        heading: Stands above.
        path: The file.
        shared: Which panels share an axis, as `subplots` takes it.
    """
    with mpl.rc_context({**STYLE, "axes.titlesize": 10}):
        figure = Figure(figsize=(1.4 + 3.0 * max(2, columns), 1.4 + 2.5 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, **shared)
        yield panels
        known: dict[str, Any] = {}
        for axes in panels[:, 0]:
            handles, labels = axes.get_legend_handles_labels()
            known |= dict(zip(labels, handles, strict=True))
        figure.legend(list(known.values()), list(known), loc="outside lower center", ncols=len(known), frameon=False)
        figure.suptitle(fill(heading, int(12 * figure.get_figwidth())), x=0.01, ha="left", fontsize=11)
        save_picture(figure, path)


def bin_width(outcome: Outcome) -> int:
    """The width of a bin of distance."""
    return max(1, -(-int(outcome.distance[outcome.behind].max() + 1) // BINS))


def _beside(rows: Sequence[Row]) -> list[str]:
    """The metrics that are shown beside the reference."""
    return [metric for metric in SHORT if metric in rows[0].outcome.reference]


def _others(rows: Sequence[Row]) -> list[str]:
    """The metrics beside the NLL."""
    return [metric for metric in rows[0].outcome.before if metric != "nll"]
