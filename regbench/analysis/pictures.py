"""Pictures of y and of what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from regbench.analysis.representation import LinearFit
from regbench.files import atomic_write
from regbench.predictor import FloatArray

# Okabe and Ito (2008): told apart by the colour-blind.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A8A")
_STYLE: dict[Any, Any] = {"font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left"}


def plot_dot_products(products: FloatArray, blocks: Sequence[int], path: Path, what: str) -> None:
    """(L, L) in colours, with lines where a block of one context begins."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 5.6), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(products, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        for at in blocks:
            for line in (axes.axhline, axes.axvline):
                line(at - 0.5, color="black", linewidth=0.8, linestyle=(0, (3, 3)))
        figure.colorbar(image, label="n_i · n_j", shrink=0.85)
        axes.set(title=f"How alike the summaries y are: {what}", xlabel="position j", ylabel="position i")
        _save(figure, path)


def plot_linear_fit(fit: LinearFit, path: Path) -> None:
    """What a linear map reads from y against what is true, a panel for each of the first four targets."""
    shown = min(4, len(fit.names))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(1.0 + 3.4 * shown, 3.9), layout="constrained")
        for k, axes in enumerate(figure.subplots(1, shown, squeeze=False)[0]):
            axes.axline((0, 0), slope=1, color="black", linewidth=0.8, linestyle=(0, (3, 3)))
            axes.plot(fit.true[:, k], fit.said[:, k], ".", color=COLOURS[0], markersize=4, alpha=0.5)
            axes.set(title=f"{fit.names[k]}: R² {fit.explained[k]:.2f}, error {fit.error[k]:.2f}", xlabel="true")
            axes.set_ylabel("read from y" if k == 0 else "")
            axes.set_box_aspect(1)
        figure.suptitle("Linear fit, in standard deviations; stretches it was not fitted to", x=0.01, ha="left")
        _save(figure, path)


def plot_context(y: FloatArray, boundaries: Sequence[int], moved: Sequence[int | None], path: Path, what: str) -> None:
    """Every component of y over one text, (L, d), with a line where the context changes and one where y has moved."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 5.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        centred = y - y.mean(0)
        limit = float(np.quantile(np.abs(centred), 0.99)) or 1.0
        above.imshow(
            centred.T, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest", origin="lower"
        )
        above.set(title=f"y over {what}, less its mean", ylabel="component")
        order = np.argsort(-y.var(0), kind="stable")[:6]
        for colour, component in zip(COLOURS, order, strict=False):
            below.plot(y[:, component], color=colour, linewidth=1.2)
        below.set(title="the six components that vary most", xlabel="position (tokens read)")
        below.margins(x=0)
        for axes in (above, below):
            for at, after in zip(boundaries, moved, strict=True):
                axes.axvline(at, color="black", linewidth=1.4)
                if after is not None:
                    axes.axvline(at + after, color="black", linewidth=1.0, linestyle=(0, (2, 2)))
        figure.supxlabel(
            "solid: a new context begins; dashed: y is past the middle between its old place and its new", fontsize=9
        )
        _save(figure, path)


def plot_topics(places: FloatArray, topics: NDArray[np.int64], path: Path, what: str) -> None:
    """Documents in the plane, (T, 2), coloured by topic; the number stands in the middle of each."""
    markers = ("o", "s", "^", "D", "v", "P", "X", "*")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 5.6), layout="constrained")
        axes = figure.subplots()
        for number, topic in enumerate(np.unique(topics)):
            own = places[topics == topic]
            style: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "marker": markers[number // len(COLOURS) % len(markers)],
            }
            axes.plot(own[:, 0], own[:, 1], linestyle="", markersize=5, alpha=0.8, label=str(topic), **style)
        axes.legend(title="topic", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.set(title=f"t-SNE of the mean y of {what}", xticks=[], yticks=[])
        _save(figure, path)


def plot_by_distance(
    curves: Mapping[str, tuple[FloatArray, FloatArray, FloatArray]], base: str, metric: str, path: Path
) -> None:
    """Losses less that of `base` by the distance from the cut: distance, mean and standard error for each mode."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 4.4), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0.0, color="black", linewidth=0.8)
        for colour, (mode, (distance, mean, error)) in zip(COLOURS, curves.items(), strict=False):
            axes.plot(distance, mean, color=colour, linewidth=1.8, label=mode, marker=".")
            axes.fill_between(distance, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        axes.set(title=f"{metric} less that of the {base} model (below 0: better)", xlabel="tokens behind the cut")
        axes.legend(frameon=False)
        _save(figure, path)


def plot_transplant(rises: FloatArray, names: Sequence[str], path: Path) -> None:
    """The tokens whose log probability a strange y raises and lowers most, (V,)."""
    order = np.argsort(-rises, kind="stable")
    chosen = order if len(order) <= 24 else np.concatenate([order[:12], order[-12:]])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6, 1.2 + 0.22 * len(chosen)), layout="constrained")
        axes = figure.subplots()
        colours = [COLOURS[1] if rises[i] > 0 else COLOURS[0] for i in chosen]
        axes.barh(range(len(chosen)), rises[chosen], color=colours)
        axes.set_yticks(range(len(chosen)), [names[i] for i in chosen])
        axes.invert_yaxis()
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set(title="Mean rise of log probability with another text's y", xlabel="nats")
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=110)
