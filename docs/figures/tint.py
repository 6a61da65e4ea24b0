"""Draws what steps on the prompt bring, from docs/measured: `make figures` writes tint.svg beside this file."""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent
TEXT, CLASSES = (FOLDER.parent / "measured" / f"tint-{name}.csv" for name in ("text", "classification"))
COLOURS = {"full": "#8A8A8A", "tint": "#0072B2"}
Points = dict[str, list[tuple[float, float, float]]]
"""By way of changing the weights: where, the value, its standard error."""


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a file of measured numbers."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def numbers(cell: str) -> tuple[float, float]:
    """A value and its error."""
    value, error = re.findall(r"\d+\.\d+", cell)
    return float(value), float(error)


def points() -> tuple[Points, Points]:
    """By way: the gain on text by the share of the prompt, and the accuracy at the median by steps."""
    text, classes = Points(), Points()
    for row in rows(TEXT):
        text.setdefault(row["way"], []).append((float(row["segment"].split()[0]), *numbers(row["difference"])))
    for row in rows(CLASSES):
        if row["format"] == "single" and row["loss"] != "all":
            for way in COLOURS if row["way"] == "none" else [row["way"]]:
                classes.setdefault(way, []).append((float(row["steps"]), *numbers(row["at the median ↑"])))
    return text, classes


def draw(found: tuple[Points, Points]) -> Figure:
    """A panel for each."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, of in zip((left, right), found, strict=True):
        for way, line in of.items():
            label = {"full": "fine-tuning", "tint": "TinT"}[way]
            axes.errorbar(*zip(*line, strict=True), color=COLOURS[way], marker="o", markersize=4, label=label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    left.set(title="text, one step", xlabel="share of the prompt that is learned from (%)", ylabel="gain in NLL (nats)")
    right.set(title="classification, 32 exemplars", xlabel="steps", ylabel="accuracy at the median")
    left.set_ylim(bottom=0)
    right.axhline(0.5, color="black", linestyle=(0, (4, 2)), linewidth=1, label="a guess")
    right.legend(frameon=False, loc="lower right")
    return figure


def digest(found: tuple[Points, Points]) -> str:
    """SHA-256 of what is drawn: the figure carries it, so that a test sees whether the figure is of today's tables."""
    return hashlib.sha256(repr(found).encode()).hexdigest()


def main() -> None:
    """Writes the figure."""
    with rc_context({"svg.hashsalt": "tint", "font.size": 10}):
        note = {"Date": None, "Description": f"points {digest(points())}"}
        draw(points()).savefig(FOLDER / "tint.svg", metadata=note)


if __name__ == "__main__":
    main()
