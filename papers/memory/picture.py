"""The picture of a study: its panels side by side, as a PNG file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from papers.memory.study import Panel, Study
from regbench.report.pictures import COLOURS, DASHES, MARKERS, drawing

_GUIDES: tuple[Any, ...] = ((0, (1, 2)), (0, (4, 4)), "-")


def draw(study: Study, title: str, path: Path) -> None:
    with drawing(path, (5.2 * len(study.panels), 5.2)) as figure:
        for axes, panel in zip(figure.subplots(1, len(study.panels), squeeze=False).flat, study.panels, strict=True):
            _draw_panel(axes, panel)
        figure.suptitle(title, x=0.01, ha="left")


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Draws the lines of one panel, guides first, and its legend below the axes."""
    guides = [curve for curve in panel.curves if curve.guide]
    for curve, dashes in zip(guides, _GUIDES * len(guides), strict=False):
        axes.plot(curve.x, curve.y, color="#777777", linestyle=dashes, linewidth=1.1, label=curve.label)
    lines = [curve for curve in panel.curves if not curve.guide]
    looks = itertools.cycle(zip(COLOURS, MARKERS, ("-", *DASHES), strict=True))
    for curve, (colour, marker, dashes) in zip(lines, looks, strict=False):
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.5, "linestyle": dashes}
        axes.plot(curve.x, curve.y, linewidth=1.6, label=curve.label, **style)
    axes.set_xscale("log")
    ticks = sorted({float(x) for curve in lines for x in curve.x})
    axes.set_xticks(ticks if len(ticks) <= 8 else ticks[:: -(-len(ticks) // 8)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
