"""Draws legal accuracy by training instances and layers, as ICLL Figure 3 does, from sweeps/icll-figure-3-scores.csv.

`make figures` writes instances.svg beside this file. Baselines are those of the leaderboard's entries.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from regbench.leaderboard.store import stored_in
from regbench.report.palette import COLOURS, DASHES, MARKERS

METRIC = "legal_accuracy"
FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
SCORES = ROOT / "sweeps" / "icll-figure-3-scores.csv"
ENTRIES = ROOT / "leaderboard" / "entries" / "pfa-medium-v1"
NAMES = {
    "retnet + n-gram heads": "RetNet + n-gram heads",
    "gla + n-gram heads": "GLA + n-gram heads",
    "transformer": "Transformer",
    "mamba": "Mamba",
    "gla": "GLA",
    "retnet": "RetNet",
    "lstm": "LSTM",
}
BASELINES = ("Bayes", "3-gram", "2-gram", "unigram")
"""From above."""


def scores() -> pd.DataFrame:
    """A row for each training: `n_layers`, `name` (a key of NAMES), `instances`, `score`."""
    table = pd.read_csv(SCORES)
    heads = table["ngram_heads"].fillna("[]").ne("[]")
    named = table.assign(name=table["architecture"].where(~heads, table["architecture"] + " + n-gram heads"))
    named = named.rename(columns={"training.train_instances": "instances", METRIC: "score"})
    return named.sort_values(["n_layers", "name", "instances"], ignore_index=True)[
        ["n_layers", "name", "instances", "score"]
    ]


def heights() -> dict[str, float]:
    """The score of each baseline."""
    baselines = json.loads(stored_in(ENTRIES)[0].path.read_text(encoding="utf-8"))["result"]["baselines"]
    return {name: baselines[name]["scores"][METRIC]["value"] for name in BASELINES}


def digest(found: pd.DataFrame, lines: dict[str, float]) -> str:
    """SHA-256 of what is drawn: the figure carries it, so that a test sees whether the figure is of today's scores."""
    return hashlib.sha256((found.to_csv(index=False) + json.dumps(lines)).encode()).hexdigest()


def draw(found: pd.DataFrame, lines: dict[str, float]) -> Figure:
    """A panel for each number of layers, a line in it for each architecture."""
    panels = found.groupby("n_layers")
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    for axes, (layers, own) in zip(figure.subplots(1, panels.ngroups, sharey=True), panels, strict=True):
        _panel(axes, own, lines)
        axes.set_title(f"{layers} layer{'s' * (layers > 1)}", loc="left", fontsize=11)
    figure.axes[0].set_ylabel("legal accuracy")
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    return figure


def _panel(axes: Axes, own: pd.DataFrame, lines: dict[str, float]) -> None:
    for (name, label), colour, marker in zip(NAMES.items(), COLOURS, MARKERS, strict=True):
        line = own[own["name"] == name]
        axes.plot(line["instances"], line["score"], color=colour, marker=marker, label=label)
    for (name, height), dashes in zip(lines.items(), DASHES, strict=False):
        axes.axhline(height, color="#777777", linestyle=dashes, linewidth=1, label=name)
    values = sorted(own["instances"].unique())
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values], rotation=30)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("training instances")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def main() -> None:
    """Writes the figure."""
    with rc_context({"svg.hashsalt": "instances", "font.size": 10}):
        found, lines = scores(), heights()
        about = {"Date": None, "Description": f"scores {digest(found, lines)}"}
        draw(found, lines).savefig(FOLDER / "instances.svg", metadata=about)


if __name__ == "__main__":
    main()
