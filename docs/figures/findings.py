"""Draws the sides of each finding of docs/findings.yaml: a row for each side, a dot for each seed, or by the bytes of state.

`make figures` writes a picture for each finding that is measured into findings/, beside this file.
"""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from regbench.report.pictures import COLOURS, STYLE

FOLDER = Path(__file__).resolve().parent
FINDINGS: dict[str, Any] = runpy.run_path(str(FOLDER.parent / "findings.py"))
side: Callable[..., Any] = FINDINGS["side"]


Dots = dict[str, list[tuple[float, float]]]
"""By the name of a side: its dots, each at a number of bytes of state, or at 0, and a score."""


def dots() -> dict[str, tuple[str, Dots]]:
    """By the name of each finding that is measured: the name of its score, and its dots."""
    found = {}
    for finding in FINDINGS["findings"]():
        score, by_state = finding["score"], any("by state" in one for one in finding["criteria"])
        sides = {name: side(finding, wanted) for name, wanted in finding["sides"].items()}
        there = {}
        for name, one in sides.items():
            if one is not None:
                states = one.rows["state"].astype(float) if by_state else [0.0] * len(one.seeds[score])
                there[name] = list(zip(states, one.seeds[score], strict=True))
        if FINDINGS["verdict"](finding) != FINDINGS["MISSING"]:
            found[finding["name"]] = (FINDINGS["label"](score), there)
    return found


def digest(found: object) -> str:
    """SHA-256 of what is drawn: the figure carries it, so that a test sees whether the figure is of today's scores."""
    return hashlib.sha256(repr(found).encode()).hexdigest()


def draw(about: str, sides: Dots) -> Figure:
    """A row for each side, the first at the top; a line at the mean."""
    figure = Figure(figsize=(7.2, 0.9 + 0.34 * len(sides)), layout="constrained")
    axes = figure.subplots()
    for row, side_dots in enumerate(sides.values()):
        values = [value for _, value in side_dots]
        axes.plot(values, [row] * len(values), "o", color=COLOURS[1], alpha=0.7, markersize=6, linewidth=0)
        axes.plot([fmean(values)] * 2, [row - 0.3, row + 0.3], color=COLOURS[1], linewidth=1.5)
    axes.set(yticks=range(len(sides)), yticklabels=list(sides), ylim=(len(sides) - 0.5, -0.5), xlabel=about)
    if about == "reach":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(min(-0.02, *(value for own in sides.values() for _, value in own)), 1.02)
    return figure


def draw_by_state(about: str, sides: Dots) -> Figure:
    """A dot for each row, at the bytes of its state. The last side, which holds others, is drawn first."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for colour, (name, own) in reversed(list(zip(COLOURS[1:], sides.items(), strict=False))):
        axes.plot(*zip(*own, strict=True), "o", color=colour, alpha=0.8, markersize=6, label=name)
    axes.set(xscale="log", xlabel="bytes of state at the longest context", ylabel=about)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, loc="upper left")
    return figure


def main() -> None:
    """Writes the figures, and removes those of findings that are not measured."""
    folder, found = FOLDER / "findings", dots()
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        if old.stem not in found:
            old.unlink()
    for name, (about, sides) in found.items():
        with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
            note = {"Date": None, "Description": f"dots {digest((about, sides))}"}
            drawn = draw_by_state if any(state for own in sides.values() for state, _ in own) else draw
            drawn(about, sides).savefig(folder / f"{name}.svg", metadata=note)


if __name__ == "__main__":
    main()
