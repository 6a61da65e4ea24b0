"""Draws what probes read of six architectures, with the smaller and the larger budget, from docs/measured.

`make figures` writes probes.svg beside this file.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent
SMALL, MEDIUM = (FOLDER.parent / "measured" / f"probes-{size}.csv" for size in ("small", "medium"))
TARGETS = ("frequency-1", "frequency-2", "frequency-3", "existence-2", "existence-3", "state")
NAMES = {
    "lstm": "LSTM",
    "hyena": "Hyena",
    "gla": "GLA",
    "retnet": "RetNet",
    "mamba": "Mamba",
    "transformer": "Transformer",
}
"""From below."""

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
Readings = dict[str, dict[str, list[float]]]
"""By target and column: the numbers of a cell. A column of several seeds has one from each of its cells."""


def readings() -> tuple[Readings, Readings]:
    """What the two tables hold: that of the default track, with the untrained value behind each, and that of pfa-medium-v1."""
    return _table(SMALL), _table(MEDIUM)


def _table(path: Path) -> Readings:
    head, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
    columns = [re.split("[`,]", name.strip("`"))[0] for name in head]
    found: Readings = {}
    for target, *cells in (row for row in rows if row[0] in TARGETS):
        for column, cell in zip(columns[1:], cells, strict=True):
            name = "mamba" if column.startswith("seed") else column
            values = [float(number) for number in re.findall(r"\d\.\d+", cell)]
            found.setdefault(target, {}).setdefault(name, []).append(values[0])
            if "(" in cell:
                found[target].setdefault(f"{name} untrained", []).append(values[-1])
    return found


def digest(found: tuple[Readings, Readings]) -> str:
    """SHA-256 of the readings: the figure carries it, so that a test sees whether the figure is of today's tables."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def draw(found: tuple[Readings, Readings]) -> Figure:
    """A panel for each target, a line in it for each architecture."""
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    panels = figure.subplots(2, 3, sharey=True).flat
    for axes, target in zip(panels, TARGETS, strict=True):
        _panel(axes, target, found[0][target], found[1][target])
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _panel(axes: Axes, target: str, small: dict[str, list[float]], medium: dict[str, list[float]]) -> None:
    untrained, before, after = (
        [fmean(of[name + suffix]) for name in NAMES]
        for of, suffix in ((small, " untrained"), (small, ""), (medium, ""))
    )
    heights = range(len(NAMES))
    axes.hlines(heights, before, after, color=GREY, linewidth=1)
    axes.plot(untrained, heights, "|", color=GREY, markersize=9, markeredgewidth=2, label="before training")
    axes.plot(before, heights, "o", color=BLUE, markerfacecolor="white", markersize=7, label="pfa-small-v1")
    axes.plot(after, heights, "o", color=ORANGE, markersize=7, label="pfa-medium-v1")
    axes.axvline(
        small["ceiling"][0], color="black", linestyle=(0, (4, 2)), linewidth=1, label="ceiling: the true counts"
    )
    better = (
        "accuracy, more is better" if target == "state" or target.startswith("existence") else "error, less is better"
    )
    axes.set_title(target, loc="left", fontsize=11)
    axes.set(xlabel=better, yticks=heights, yticklabels=NAMES.values(), ylim=(-0.6, len(NAMES) - 0.4))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def main() -> None:
    """Writes the figure."""
    with rc_context({"svg.hashsalt": "probes", "font.size": 10}):
        found = readings()
        draw(found).savefig(FOLDER / "probes.svg", metadata={"Date": None, "Description": f"readings {digest(found)}"})


if __name__ == "__main__":
    main()
