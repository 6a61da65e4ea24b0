"""Pictures of what is asked of a model: the kinds of its heads, maps of attention, what probes read, where it errs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from regbench.analysis.errors import FEATURES, Bin
from regbench.report.pictures import BASELINE_STYLES, COLOURS, DARKER, MARKERS, drawing, heat_map, line_look
from regbench.utils.arrays import FloatArray

if TYPE_CHECKING:
    from regbench.analysis.attention import Attention
    from regbench.analysis.course import Course
    from regbench.analysis.probes import Reading

MORE_IS_DARKER = LinearSegmentedColormap.from_list("more is darker", DARKER)
_STYLE: dict[Any, Any] = {"text.parse_math": False, "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left"}


def plot_heads(found: Attention, title: str, path: Path) -> None:
    """Draws the share of every head's attention in every set, dark where it is large, and of uniform attention."""
    sets, heads = found.sets, found.heads
    mass = np.array([[found.chance[s] for s in sets], *([head.mass[s].value for s in sets] for head in heads)])
    with drawing(path, (2.2 + 0.62 * len(sets), 1.3 + 0.26 * len(mass)), _STYLE, 110) as figure:
        axes, names = figure.subplots(), ["uniform", *(head.name for head in heads)]
        _, numbers = heat_map(axes, mass, names, sets, 1.0, cmap=MORE_IS_DARKER, aspect="auto")
        axes.get_yticklabels()[0].set_fontstyle("italic")
        for i, kind in enumerate(["", *(head.kind for head in heads)]):
            axes.text(len(sets) - 0.4, i, kind, va="center", weight="normal" if kind == "mixed" else "bold")
            for number, name in zip(numbers[i], sets, strict=True):
                number.set(fontsize=8, weight="bold" if kind == name else "normal")
        figure.suptitle(title, x=0.02, ha="left", fontsize=10)


def plot_map(
    weights: FloatArray,
    marked: NDArray[np.bool_] | None,
    labels: Sequence[str],
    queries: tuple[int, int],
    title: str,
    path: Path,
) -> None:
    """Draws one head's attention (L, L) from some queries to the last keys, 60 or as many as the queries (ICLL Figure 4).

    A ring is drawn around the keys that are `marked` (L, L), those of the set that the head is named after. `labels` (L,) are
    what is read at each position.
    """
    begin, end = queries
    first = max(0, end - max(60, end - begin))
    attention = weights[begin:end, first:end]
    rows, columns = attention.shape
    with drawing(path, (max(5.0, 1.8 + 0.2 * columns), max(3.5, 1.3 + 0.2 * rows)), _STYLE, 110) as figure:
        axes = figure.subplots()
        most = max(0.1, float(attention.max(initial=0.0)))
        image = axes.imshow(attention, cmap=MORE_IS_DARKER, vmin=0.0, vmax=most, aspect="equal")
        axes.set_xticks(range(columns), labels[first:end], rotation=90, fontsize=7, family="monospace")
        axes.set_yticks(range(rows), labels[begin:end], fontsize=7, family="monospace")
        axes.set_xlabel("key: the token read there, and the state after it")
        axes.set_ylabel("query")
        axes.tick_params(length=0)
        axes.spines[:].set_color("#999999")
        if marked is not None:
            y, x = np.nonzero(marked[begin:end, first:end])
            axes.scatter(x, y, s=26, facecolors="none", edgecolors=COLOURS[1], linewidths=0.9)
        bar = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, pad=0.01)
        bar.set_label("share of the query's attention")
        figure.suptitle(title, x=0.02, ha="left", fontsize=10)


def plot_probes(readings: Mapping[str, Sequence[Reading]], title: str, path: Path) -> None:
    """Draws what probes read of several runs, errors and accuracies apart (ICLL Figure 5).

    Each run has a colour and a shape. A hollow shape is the same architecture before its training. A grey bar goes from the
    constant answer to the ceiling of the true counts, with a black line for the last three tokens.
    """
    first = next(iter(readings.values()))
    panels = [metric for metric in ("error", "accuracy") if any(one.metric == metric for one in first)]
    counts = [sum(one.metric == metric for one in first) for metric in panels]
    width = 1.6 + (0.55 + 0.17 * len(readings)) * sum(counts) + 0.5 * len(panels)
    with drawing(path, (max(6.5, width), 4.4), _STYLE, 110) as figure:
        frames = figure.subplots(1, len(panels), squeeze=False, width_ratios=counts)[0]
        for axes, metric in zip(frames, panels, strict=True):
            names = [one.target for one in first if one.metric == metric]
            for r, (run, every) in enumerate(readings.items()):
                colour, marker = line_look(r)
                shift = (r - (len(readings) - 1) / 2) * 0.8 / max(3, len(readings))
                own = [one for one in every if one.metric == metric]
                for x, one in enumerate(own):
                    if r == 0:
                        ends = one.constant.value, one.ceiling.value
                        axes.add_patch(
                            Rectangle((x - 0.42, min(ends)), 0.84, abs(ends[1] - ends[0]), color="#dddddd", zorder=0)
                        )
                        axes.plot([x - 0.42, x + 0.42], [one.tokens.value] * 2, color="black", linewidth=1)
                    axes.plot(x + shift, one.untrained.value, marker, color=colour, mfc="white", zorder=3)
                    axes.errorbar(
                        x + shift, one.trained.value, one.trained.stderr, fmt=marker, color=colour, capsize=2, zorder=4
                    )
                axes.plot([], [], marker, color=colour, label=run)
            axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
            better = "relative error, lower is better" if metric == "error" else "accuracy, higher is better"
            axes.set_title(better)
            axes.spines[["top", "right"]].set_visible(False)
            if metric == "error":
                axes.set_ylim(bottom=0)
        figure.suptitle(title, x=0.02, ha="left", fontsize=10)
        figure.supxlabel(
            "filled: trained; hollow: before training; grey: from the constant answer to the true counts; line: last 3 tokens",
            x=0.02,
            ha="left",
            fontsize=8,
            color="#555555",
        )
        frames[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def plot_courses(found: Sequence[Course], subtitle: str, path: Path) -> None:
    """Draws how far each run is from other predictors over the course of its training, a panel a run."""
    with drawing(path, (2.2 + 4.4 * len(found), 4.6)) as figure:
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, course in zip(panels, found, strict=True):
            styles = dict(zip(sorted(course.distance), BASELINE_STYLES * len(course.distance), strict=False))
            for other, records in course.distance.items():
                (colour, dashes), millions = styles[other], np.array(course.tokens) / 1e6
                values = [record.value for record in records]
                axes.plot(millions, values, color=colour, linestyle=dashes, linewidth=2, label=other)
            axes.set_title(course.name)
            axes.set_xlabel("training tokens (millions)")
            axes.set_ylim(bottom=0)
        panels[0].set_ylabel("total variation distance")
        handles, labels = panels[0].get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda i: -float(handles[i].get_ydata()[-1]))
        figure.legend([handles[i] for i in order], [labels[i] for i in order], loc="outside right upper", frameon=False)
        figure.supxlabel(subtitle, x=0.02, ha="left", fontsize=9, color="#555555")


def plot_errors(bins: Sequence[Bin], score: str, title: str, path: Path) -> None:
    """Draws a score in the bins of four features, a line for each predictor with its standard errors."""
    features = [feature for feature in dict.fromkeys(one.feature for one in bins) if feature != "edge"]
    with drawing(path, (8.5, 6), _STYLE, 110) as figure:
        frames = list(figure.subplots(2, 2).flat)
        for axes in frames[len(features) :]:  # all bins of a feature may be too small
            axes.set_axis_off()
        for axes, feature in zip(frames, features, strict=False):
            own = [one for one in bins if one.feature == feature]
            for i, name in enumerate(own[0].scores if own else ()):
                records = [one.scores[name][score] for one in own]
                axes.errorbar(
                    range(len(own)),
                    [record.value for record in records],
                    [record.stderr for record in records],
                    color=COLOURS[i % len(COLOURS)],
                    marker=MARKERS[i % len(MARKERS)],
                    markersize=5,
                    linewidth=1.2,
                    capsize=2,
                    label=name,
                )
            axes.set_xticks(range(len(own)), [one.label for one in own])
            axes.set_xlabel(FEATURES[feature])
            axes.spines[["top", "right"]].set_visible(False)
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, x=0.02, ha="left", fontsize=10)
