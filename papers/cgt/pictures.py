"""Pictures of the summary y and of its effect."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from papers.cgt.linear_probe import LinearProbe
from regbench.metrics.metric import METRICS
from regbench.report.content import label
from regbench.report.pictures import COLOURS, drawing
from regbench.utils.arrays import FloatArray

if TYPE_CHECKING:
    from papers.cgt.table import Row, RunTable

_GREY = "#8A8A8A"
_DASHES = ((4, 2), (1, 1.5), (6, 1.5, 1, 1.5), (2, 1, 1, 1), (10, 3), (1, 4))
_RING: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 9, "markerfacecolor": "none"}
STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
}


def plot_dot_products(products: FloatArray, blocks: Sequence[int], path: Path, what: str) -> None:
    """Dot products of y/|y| between positions, (L, L), with a line at each position in `blocks`."""
    with drawing(path, (6.4, 5.6), STYLE, 110) as figure:
        axes = figure.subplots()
        image = axes.imshow(products, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        for at in blocks:
            for line in (axes.axhline, axes.axvline):
                line(at - 0.5, color="black", linewidth=0.8, linestyle=(0, (3, 3)))
        figure.colorbar(image, label="n_i · n_j", shrink=0.85)
        axes.set(title=f"Similarity of y between positions: {what}", xlabel="position j", ylabel="position i")


def plot_linear_probe(probe: LinearProbe, path: Path) -> None:
    """Predictions of a linear probe against the truth, a panel for each of the first four targets."""
    shown = min(4, len(probe.names))
    with drawing(path, (1.0 + 3.4 * shown, 3.9), STYLE, 110) as figure:
        for k, axes in enumerate(figure.subplots(1, shown, squeeze=False)[0]):
            axes.axline((0, 0), slope=1, color="black", linewidth=0.8, linestyle=(0, (3, 3)))
            axes.plot(probe.targets[:, k], probe.predictions[:, k], ".", color=COLOURS[0], markersize=4, alpha=0.5)
            title = f"{probe.names[k]}: R² {probe.r_squared[k]:.2f}, error {probe.error[k]:.2f}"
            axes.set(title=title, xlabel="true")
            axes.set_ylabel("predicted from y" if k == 0 else "")
            axes.set_box_aspect(1)
        title = f"Linear probe of y, in standard deviations ({len(probe.row)} segments, cross-validated)"
        figure.suptitle(title, x=0.01, ha="left")


def plot_context(y: FloatArray, boundaries: Sequence[int], moved: Sequence[int | None], path: Path) -> None:
    """Every component of y over one sequence, (L, d), and how soon it has moved where a new context begins."""
    with drawing(path, (10, 4.4), STYLE, 110) as figure:
        axes, centred = figure.subplots(), y - y.mean(0)
        limit = float(np.quantile(np.abs(centred), 0.99)) or 1.0
        scale: Any = {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}
        image = axes.imshow(centred.T, aspect="auto", interpolation="nearest", origin="lower", **scale)
        figure.colorbar(image, label="y minus its mean", shrink=0.8)
        for at, after in zip(boundaries, moved, strict=True):
            axes.axvline(at, color="black", linewidth=1.4)
            if after is not None:
                axes.axvline(at + after, color="black", linewidth=1.0, linestyle=(0, (2, 2)))
        axes.set(title="y minus its mean, over one instance", ylabel="component", xlabel="position (tokens read)")
        figure.supxlabel(
            "solid: a new context begins; dashed: y is past the middle between its old and its new place\n"
            "(only where y goes farther than at 95 % of boundaries inside one context)",
            fontsize=9,
        )


def plot_topics(places: FloatArray, topics: NDArray[np.int64], path: Path, what: str, names: Sequence[str]) -> None:
    """Texts in the plane; each topic has its colour and shape."""
    markers = ("o", "s", "^", "D", "v", "P", "X", "*")
    with drawing(path, (6.4, 5.6), STYLE, 110) as figure:
        axes = figure.subplots()
        for number, topic in enumerate(np.unique(topics)):
            own = places[topics == topic]
            style: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                # The first eight topics differ in shape, the others in the pair of shape and colour.
                "marker": markers[(number + number // len(COLOURS)) % len(markers)],
            }
            axes.plot(own[:, 0], own[:, 1], linestyle="", markersize=5, alpha=0.8, **style)
            axes.lines[-1].set_label(names[topic] if names else str(topic))
        axes.legend(title="topic", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.set(title=f"t-SNE of the mean y of {what}", xticks=[], yticks=[])


def plot_by_distance(
    curves: Mapping[str, tuple[FloatArray, FloatArray, FloatArray]], base: str, metric: str, unit: str, path: Path
) -> None:
    """Loss of each mode minus that of the mode `base`, by distance from the cut."""
    with drawing(path, (8, 4.4), STYLE, 110) as figure:
        axes = figure.subplots()
        axes.axhline(0.0, color="black", linewidth=0.8)
        styles = ("-", "--", "-.", (0, (1, 1.2)))  # curves may lie on one another
        for colour, style, (mode, (distance, mean, error)) in zip(COLOURS, styles, curves.items(), strict=False):
            axes.plot(distance, mean, color=colour, linewidth=1.8, label=mode, marker=".", linestyle=style)
            axes.fill_between(distance, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        axes.set(
            title=f"{label(metric)} minus that of the {base} model: below 0 is better",
            xlabel=f"{unit} after the prompt",
        )
        if unit == "examples":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not any(len(distance) for distance, *_ in curves.values()):
            axes.text(0.5, 0.5, "too few instances", transform=axes.transAxes, ha="center", va="center")
        axes.set_ylabel(f"difference in {label(metric)}")
        axes.legend(frameon=False)


def plot_examples(found: RunTable, path: Path) -> None:
    """The metric by the number of examples before, a panel for each run with y (CGT Figure 4).

    Black: the dynamic mode. Grey, dashed: runs without y, and baselines. Colours with markers: y is constant after each cut. Thin
    and dashed in the same colours: unprompted. A ring: the dynamic mode at this cut. Much worse curves are left out.
    """
    shown = [row for row in found.rows if row.by_example]
    names = list(dict.fromkeys(row.name for row in shown if len(row.by_example) > 1)) or [shown[0].name]
    first = min((row.cut or 0) for row in shown)
    others = [row for row in shown if len(row.by_example) == 1 and (row.cut or 0) == first and row.name not in names]
    values = [
        point.value
        for row in shown
        if row.seeds
        for mode, steps in row.by_example.items()
        if mode in ("dynamic", "specialised", "unprompted")
        for point in steps.values()
    ]
    limit, by_factors = 1.1 * max(values), min(values) > 0 and max(values) > 8 * min(values)
    # Those of an unstable baseline may be far above.
    others = [row for row in others if min(point.value for point in row.by_example["dynamic"].values()) < limit]
    with drawing(path, (2.2 + 4.4 * len(names), 4.4), STYLE, 110) as figure:
        for number, axes in enumerate(figure.subplots(1, len(names), squeeze=False, sharey=True)[0]):
            for dash, row in zip(itertools.cycle(_DASHES), others, strict=False):
                _curve(axes, row.by_example["dynamic"], row.name, _GREY, linestyle=(0, dash), band=bool(row.seeds))
            own = [row for row in shown if row.name == names[number]]
            _curve(axes, own[0].by_example["dynamic"], "y changes (dynamic)", COLOURS[6])
            _frozen(axes, own)
            axes.set(title=names[number], xlabel=found.label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if not number:
                axes.set_ylabel(METRICS[found.metric].heading)
            if by_factors:  # on a linear axis the best curves would lie on one line
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axes.yaxis.set_minor_formatter(NullFormatter())
                axes.set_ylim(top=limit)
            else:
                axes.set_ylim(max(axes.get_ylim()[0], 0.0), limit)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _frozen(axes: Any, own: Sequence[Row]) -> None:
    """One run at each of its cuts: specialised, unprompted, and dynamic at the cut."""
    special = [row for row in own if "specialised" in row.by_example]
    if not special:
        return
    for colour, marker, row in zip(itertools.cycle(COLOURS[:6]), itertools.cycle("s^Dv"), special, strict=False):
        words = "frozen at the cut" if row.cut is None else f"frozen after {row.cut}"
        _curve(axes, row.by_example["specialised"], words, colour, marker=marker, markersize=4)
        _curve(axes, row.by_example["unprompted"], "", colour, band=False, linestyle=(0, (3, 2)), linewidth=0.9)
        at, point = next(iter(row.by_example["dynamic"].items()))
        axes.plot(at, point.value, color=colour, **_RING)
    grey = {"color": "#555555", "label": "unprompted, from that cut", "linestyle": (0, (3, 2)), "linewidth": 0.9}
    axes.plot([], [], **grey)
    axes.plot([], [], color="#555555", label="dynamic at the cut", **_RING)


def _curve(axes: Any, points: Mapping[int, Any], name: str, colour: str, *, band: bool = True, **style: Any) -> None:
    """A line, with a band of one standard error."""
    step = np.array(list(points))
    mean, error = (np.array([getattr(point, what) for point in points.values()]) for what in ("value", "stderr"))
    axes.plot(step, mean, color=colour, label=name or None, **{"linewidth": 1.6, **style})
    if band:
        axes.fill_between(step, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
