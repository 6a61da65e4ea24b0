"""Pictures as PNG files: the curves of a run, and the heat map of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from regbench.metrics.metric import Metric, Metrics
from regbench.report.content import axis, label, main_loss, well_founded
from regbench.report.table import short
from regbench.results import REACHED, Result
from regbench.utils.arrays import FloatArray
from regbench.utils.files import atomic_write

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ((0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (4, 3)), (0, (2, 2)))
"""Of dashed lines, as Matplotlib takes them. With the markers they tell lines apart in print without colour."""
DARKER = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""One hue from nearly white to dark, evenly by lightness."""


def line_look(which: int) -> tuple[str, str]:
    """The colour and the marker of a line, by its place among all. The first 49 differ."""
    return COLOURS[which % len(COLOURS)], MARKERS[(which + which // len(COLOURS)) % len(MARKERS)]


_MODEL_COLOUR = COLOURS[1]
BASELINE_STYLES = tuple(zip((COLOURS[0], *COLOURS[2:]), DASHES, strict=True))
_NEAR_TO_FAR = LinearSegmentedColormap.from_list("near to far", DARKER[::-1])
_NATS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 8, 12, 16)
STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
}


def plot_scores_by_position(result: Result, path: Path, metrics: Metrics, trained: int | None = None) -> None:
    """Draws every metric by position in the context: one thick line a seed, thin dashed ones for the baselines.

    Left out are curves of one or two points, and metrics whose curve is that of another metric. The second happens where
    a score counts one group of positions only, and so does the curve.
    """
    curves, by_what = result.seeds[0].curves, axis(result, result.track.main_score, unit=False)
    long = [metric for metric in result.metrics if len(curves[metric].position) > 2] or result.metrics
    shown = [m for i, m in enumerate(long) if all(curves[m] != curves[other] for other in long[:i])]
    with drawing(path, (11, 7.2)) as figure:
        frames = list(figure.subplots((len(shown) + 1) // 2, 2, squeeze=False).flat)
        for axes, metric in zip(frames, shown, strict=False):
            _draw_metric(axes, result, metrics[metric], trained)
        for axes in frames[len(shown) :]:
            axes.set_axis_off()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
        figure.suptitle(f"{result.architecture.name} on {result.track.name}: scores by {by_what}", x=0.01, ha="left")


def _draw_metric(axes: Axes, result: Result, metric: Metric, trained: int | None) -> None:
    """One metric. On a track with an axis of sizes the trained range, up to `trained`, is shaded."""
    key = metric.name
    ranked = sorted(
        result.baselines.items(), key=lambda item: item[1].scores[key].value, reverse=metric.higher_is_better
    )
    drawn = sorted(result.baselines.keys() - {"uniform"})
    colours = dict(zip(drawn, BASELINE_STYLES * len(drawn), strict=False))
    for name, record in ranked:
        if name not in colours:
            continue
        colour, dashes = colours[name]
        position, value = well_founded(record.curves[key])
        axes.plot(position, value, color=colour, linestyle=dashes, linewidth=1.3, label=name)
    for i, seed in enumerate(result.seeds):
        shown = result.architecture.name if i == 0 else None
        position, value = well_founded(seed.curves[key])
        axes.plot(position, value, color=_MODEL_COLOUR, linewidth=2.4, label=shown, alpha=0.9)
    if metric.log_axis:  # at the first few positions some baselines cost ten times as much as later
        axes.set_yscale("log")
    if metric.over == "nll":
        beyond = axes.dataLim.minposy < _NATS[0]
        axes.yaxis.set_major_locator(LogLocator() if beyond else FixedLocator(_NATS))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(metric.heading)
    axes.set_xlabel(axis(result, key))
    if trained is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    sizes = result.seeds[0].curves[key].position
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvspan(sizes[0], trained, color="#888888", alpha=0.12, linewidth=0, label="trained sizes")
    if metric.over == "area":
        axes.axhline(REACHED, color="#888888", linewidth=0.8)
        axes.set_ylim(max(-0.5, min(0.0, axes.get_ylim()[0])), 1.05)


def plot_training(result: Result, path: Path) -> None:
    """Draws training and validation loss by the tokens seen, one pair of lines a seed."""
    loss = main_loss(result)
    with drawing(path, (7, 4.2)) as figure:
        axes = figure.subplots()
        for i, seed in enumerate(result.seeds):
            tokens = [point.tokens / 1e6 for point in seed.training_curve]
            train = [point.loss[loss] for point in seed.training_curve]
            validation = [point.validation_loss for point in seed.training_curve]
            first = i == 0
            axes.plot(tokens, train, color="#0072B2", linestyle=(0, (4, 2)), label="training" if first else None)
            axes.plot(tokens, validation, color=_MODEL_COLOUR, linewidth=2, label="validation" if first else None)
        axes.set_xlabel("training tokens (millions)")
        axes.set_ylabel(label(loss))
        axes.set_title(f"{result.architecture.name} on {result.track.name}")
        axes.legend(frameon=False)


def plot_heat_map(names: Sequence[str], values: NDArray[np.float64], title: str, subtitle: str, path: Path) -> None:
    """Draws distances (M, M) of M predictors, the near ones dark, each with its number in it (ICLL Figure 6)."""
    m, longest = len(names), max(map(len, names))
    width = 0.62 * m + 2.6 + 0.09 * longest
    with drawing(path, (width, 0.62 * m + 1.7 + 0.06 * longest), {}, 150) as figure:
        axes = figure.subplots()
        image, _ = heat_map(axes, values, names, names, max(float(values.max()), 1e-9), cmap=_NEAR_TO_FAR)
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.03)
        bar.set_label("total variation distance")
        bar.outline.set_visible(False)
        # A letter is about a tenth of an inch at size 12, and less at 9: no line is cut off.
        figure.suptitle(fill(title, int(10.5 * width)), x=0.02, ha="left", fontsize=12)
        lines = "\n".join(fill(line, int(14 * width)) for line in subtitle.splitlines())
        figure.supxlabel(lines, x=0.02, ha="left", fontsize=9, color="#555555")


def heat_map(
    axes: Axes, values: FloatArray, rows: Sequence[str], columns: Sequence[str], most: float, **style: Any
) -> tuple[AxesImage, list[list[Text]]]:
    """Draws values (R, C) from 0 to `most` as cells with white lines between them. Gives the image, and the number in each."""
    image = axes.imshow(values, vmin=0.0, vmax=most, **style)
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    dark = image.to_rgba(values)[..., :3] @ (0.3, 0.59, 0.11) < 0.55
    return image, [
        [
            axes.text(j, i, short(value, 2), ha="center", va="center", color="white" if dark[i, j] else "#222222")
            for j, value in enumerate(row)
        ]
        for i, row in enumerate(values)
    ]


@contextmanager
def drawing(
    path: Path, size: tuple[float, float], style: Mapping[Any, Any] = STYLE, dpi: int = 130
) -> Iterator[Figure]:
    """A figure of so many inches to draw on. At the end it is written as a PNG file."""
    with mpl.rc_context(dict(style)):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        save_picture(figure, path, dpi)


def save_picture(figure: Figure, path: Path, dpi: int) -> None:
    """Writes a PNG file without pyplot: there is no global state and no display."""
    FigureCanvasAgg(figure)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=dpi)
