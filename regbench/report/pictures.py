"""Pictures of a run: score by position in the context beside the baselines, and the training curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from regbench.metrics.metric import METRICS, Metric, Metrics
from regbench.report.curves import axis, by_what, main_loss, well_founded
from regbench.report.words import label
from regbench.results import Result
from regbench.utils.files import atomic_write

# Okabe and Ito (2008): told apart by the colour-blind. Baselines are also told apart by their dashes.
_MODEL_COLOUR = "#D55E00"
_BASELINE_STYLES = (
    ("#0072B2", (0, (5, 1))),
    ("#009E73", (0, (3, 1, 1, 1))),
    ("#56B4E9", (0, (1, 1))),
    ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
    ("#E69F00", (0, (4, 3))),
    ("#000000", (0, (2, 2))),
)
_NATS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 8, 12, 16)
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
}


def write_pictures(folder: Path, result: Result, metrics: Metrics = METRICS) -> None:
    """Both pictures of a run, into its folder."""
    plot_scores_by_position(result, folder / "score_by_position.png", metrics)
    plot_training(result, folder / "training.png")


def plot_scores_by_position(result: Result, path: Path, known: Metrics = METRICS) -> None:
    """Draws every metric by position in the context: one thick line a seed, thin dashed ones for the baselines."""
    # What is over the last two examples alone is a line of two points: it is in the curve by example.
    long = [metric for metric in result.metrics if len(result.seeds[0].curves[metric].position) > 2]
    metrics = _different(result, long or result.metrics)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 7.2), layout="constrained")
        frames = list(figure.subplots((len(metrics) + 1) // 2, 2, squeeze=False).flat)
        for axes, metric in zip(frames, metrics, strict=False):
            _draw_metric(axes, result, known[metric])
        for axes in frames[len(metrics) :]:
            axes.set_axis_off()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
        figure.suptitle(
            f"{result.architecture.name} on {result.track.name}: scores by {by_what(result)}", x=0.01, ha="left"
        )
        _save(figure, path)


def _different(result: Result, metrics: list[str]) -> list[str]:
    """Of metrics with the very same curves the first: where steps are of one group only, that group's score has no other."""
    curves = [result.seeds[0].curves[metric] for metric in metrics]
    return [metric for i, metric in enumerate(metrics) if curves[i] not in curves[:i]]


def _draw_metric(axes: Axes, result: Result, metric: Metric) -> None:
    key = metric.name
    ranked = sorted(
        result.baselines.items(), key=lambda item: item[1].scores[key].value, reverse=metric.higher_is_better
    )
    drawn = sorted(result.baselines.keys() - {"uniform"})
    colours = dict(zip(drawn, _BASELINE_STYLES * len(drawn), strict=False))
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
    if metric.log_axis:  # the first few positions of some baselines cost ten times the rest
        axes.set_yscale("log")
    if metric.over == "nll":
        beyond = axes.dataLim.minposy < _NATS[0]
        axes.yaxis.set_major_locator(LogLocator() if beyond else FixedLocator(_NATS))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(f"{metric.label} ({metric.direction})")
    axes.set_xlabel(axis(result, key))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_training(result: Result, path: Path) -> None:
    """Draws training and validation loss against the tokens seen, one pair of lines a seed."""
    loss = main_loss(result)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
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
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """Without pyplot: no global state, no display."""
    FigureCanvasAgg(figure)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=130)
