"""Colours, markers and dashes of every picture. People who are colour-blind can tell the colours apart (Okabe and Ito 2008)."""

from __future__ import annotations

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ((0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (4, 3)), (0, (2, 2)))
"""Of dashed lines, as Matplotlib takes them. With the markers they tell lines apart in print without colour."""
DARKER = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""One hue from nearly white to dark, evenly by lightness."""


def line_look(which: int) -> tuple[str, str]:
    """The colour and the marker of a line, by its place among all. The first 49 differ."""
    return COLOURS[which % len(COLOURS)], MARKERS[(which + which // len(COLOURS)) % len(MARKERS)]
