"""A heat map of distances: who predicts like whom (ICLL Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from regbench.utils.files import atomic_write

# One hue from dark to nearly white, evenly by lightness: read by the colour-blind and in print without colour.
_COLOURS = LinearSegmentedColormap.from_list("near to far", ["#08306b", "#2171b5", "#6baed6", "#c6dbef", "#f7fbff"])


def plot_heat_map(names: Sequence[str], values: NDArray[np.float64], title: str, subtitle: str, path: Path) -> None:
    """Draws values (M, M), the near ones dark, each with its number in it."""
    m = len(names)
    side = 0.62 * m
    figure = Figure(figsize=(side + 2.6 + 0.09 * max(map(len, names)), side + 1.7 + 0.06 * max(map(len, names))))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    highest = max(float(values.max()), 1e-9)
    norm = Normalize(0.0, highest)
    image = axes.imshow(values, cmap=_COLOURS, norm=norm)
    axes.set_xticks(range(m), names, rotation=40, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(m), names)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(m + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(m + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for i in range(m):
        for j in range(m):
            text = f"{values[i, j]:.2f}".removeprefix("0") if values[i, j] > 0 else "0"
            dark = norm(values[i, j]) < 0.45
            axes.text(j, i, text, ha="center", va="center", fontsize=10, color="white" if dark else "#222222")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.03)
    bar.set_label("total variation distance")
    bar.outline.set_visible(False)
    figure.suptitle(title, x=0.02, ha="left", fontsize=12)
    figure.supxlabel(subtitle, x=0.02, ha="left", fontsize=9, color="#555555")
    FigureCanvasAgg(figure)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=150)
