"""Draws legal accuracy by training instances and layers, as ICLL Figure 3 does, from sweeps/icll-figure-3-scores.csv.

`make figures` writes instances.svg beside this file. Baselines are those of the leaderboard's entries.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from regbench.leaderboard.store import stored_in
from regbench.report.pictures import STYLE
from regbench.sweeps.curves import SweepCurve, draw_panel
from regbench.sweeps.tables import Spread

TRACK, METRIC, AXIS = "pfa-medium-v1", "legal_accuracy", "training.train_instances"
FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
SCORES = ROOT / "sweeps" / "icll-figure-3-scores.csv"
ENTRIES = ROOT / "leaderboard" / "entries" / TRACK
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


def curves() -> dict[str, list[SweepCurve]]:
    """The curve of each architecture, by the panel: its number of layers."""
    table = pd.read_csv(SCORES).sort_values(AXIS)
    heads = table["ngram_heads"].fillna("[]").ne("[]")
    name = table["architecture"].where(~heads, table["architecture"] + " + n-gram heads").map(NAMES)
    found: dict[str, list[SweepCurve]] = {}
    for (layers, label), own in table.groupby(["n_layers", name]):
        panel = f"{layers} layer{'s' * (layers > 1)}"
        scores = tuple(Spread.of([score]) for score in own[METRIC].tolist())
        found.setdefault(panel, []).append(SweepCurve(TRACK, AXIS, METRIC, label, tuple(own[AXIS].tolist()), scores))
    return found


def heights() -> dict[str, float]:
    """The score of each baseline."""
    baselines = json.loads(stored_in(ENTRIES)[0].path.read_text(encoding="utf-8"))["result"]["baselines"]
    return {name: baselines[name]["scores"][METRIC]["value"] for name in BASELINES}


def digest(found: dict[str, list[SweepCurve]], lines: dict[str, float]) -> str:
    """SHA-256 of what is drawn: the figure carries it, so that a test sees whether the figure is of today's scores."""
    return hashlib.sha256(repr((found, lines)).encode()).hexdigest()


def draw(found: dict[str, list[SweepCurve]], lines: dict[str, float]) -> Figure:
    """A panel for each number of layers, a line in it for each architecture."""
    figure = Figure(figsize=(12.5, 4.4), layout="constrained")
    frames, names = figure.subplots(1, len(found), sharey=True), list(NAMES.values())
    for frame, (panel, own) in zip(frames, found.items(), strict=True):
        in_order = sorted(own, key=lambda curve: names.index(curve.name))
        draw_panel(frame, in_order, names, lines, legend=frame is frames[-1])
        frame.set_title(panel)
    frames[0].set_ylabel("legal accuracy")
    return figure


def main() -> None:
    """Writes the figure."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "instances"}):
        found, lines = curves(), heights()
        about = {"Date": None, "Description": f"scores {digest(found, lines)}"}
        draw(found, lines).savefig(FOLDER / "instances.svg", metadata=about)


if __name__ == "__main__":
    main()
