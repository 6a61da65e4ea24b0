"""Draws score by position in the context on pfa-small-v1: the figure of the README, and the share of Bayes' gain.

`make figures` writes score_by_position.svg and share_of_bayes.svg beside this file. The curves are those of the leaderboard's
entries (the mean over their seeds) and of the baselines beside them. Nothing is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from regbench.leaderboard.store import stored_in

TRACK, METRIC = "pfa-small-v1", "legal_accuracy"
FOLDER = Path(__file__).resolve().parent
ENTRIES = FOLDER.parents[1] / "leaderboard" / "entries" / TRACK

# Okabe and Ito (2008): told apart by people who do not see red and green apart. Baselines are dashed, architectures are not.
STYLES = {
    "oracle": ("#000000", (0, (1, 1.5))),
    "Bayes": ("#E69F00", (0, (6, 2))),
    "retnet+ngh-1-2-3": ("#0072B2", "solid"),
    "3-gram": ("#CC79A7", (0, (4, 2, 1, 2))),
    "mamba": ("#56B4E9", "solid"),
    "transformer+mimetic": ("#D55E00", "solid"),
}
SHARES = {
    "retnet+ngh-1-2-3": ("#0072B2", "solid"),
    "3-gram": ("#CC79A7", (0, (4, 2, 1, 2))),
    "forgetting_transformer": ("#E69F00", "solid"),
    "deltanet": ("#009E73", "solid"),
    "mamba": ("#56B4E9", "solid"),
    "transformer+mimetic": ("#D55E00", "solid"),
    "lstm": ("#8A8A8A", "solid"),
    "gla": ("#000000", "solid"),
}
START, END = "unigram", "Bayes"
LEAST_GAIN = 0.1
"""Shares are drawn from the position on at which Bayes is so far ahead of the unigram model. Before, they are noise."""
LABELS = {
    "oracle": "oracle (the truth)",
    "retnet+ngh-1-2-3": "RetNet + n-gram heads",
    "mamba": "Mamba",
    "transformer+mimetic": "Transformer",
    "forgetting_transformer": "Forgetting transformer",
    "deltanet": "DeltaNet",
    "lstm": "LSTM",
    "gla": "GLA",
}
Curve = tuple[list[float], list[float]]
"""Positions, and the score at each."""


def curves(names: Iterable[str] = STYLES) -> dict[str, Curve]:
    """The curve of each predictor, by its name."""
    entries = [json.loads(one.path.read_text(encoding="utf-8")) for one in stored_in(ENTRIES)]
    by_name = {entry["name"]: [seed["curves"][METRIC] for seed in entry["result"]["seeds"]] for entry in entries}
    baselines = entries[0]["result"]["baselines"]
    by_name |= {name: [record["curves"][METRIC]] for name, record in baselines.items()}
    return {name: _mean(by_name[name]) for name in names}


def shares() -> dict[str, Curve]:
    """By predictor, the share of Bayes' gain over the unigram model at each position: 0 at the unigram model, 1 at Bayes."""
    found = curves([*SHARES, START, END])
    (position, start), (_, end) = found.pop(START), found.pop(END)
    first = next(i for i, (a, b) in enumerate(zip(start, end, strict=True)) if b - a >= LEAST_GAIN)
    return {
        name: (position[first:], [(v - a) / (b - a) for v, a, b in zip(value, start, end, strict=True)][first:])
        for name, (_, value) in found.items()
    }


def _mean(seeds: list[dict[str, list[float]]]) -> Curve:
    """The mean over seeds, where a bin has at least half of the positions of the fullest bin; the rest is noise."""
    counts = seeds[0]["count"]
    keep = [i for i, count in enumerate(counts) if count >= max(counts) / 2]
    means = [sum(seed["value"][i] for seed in seeds) / len(seeds) for i in keep]
    return [seeds[0]["position"][i] for i in keep], means


def digest(found: dict[str, Curve]) -> str:
    """SHA-256 of the curves: the figure carries it, so that a test sees whether the figure is of today's entries."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def draw(
    found: dict[str, Curve], styles: Mapping[str, Any], title: str, what: str, heights: tuple[float, float]
) -> Figure:
    """One line for each predictor; its name stands at the line's end, behind a piece of the same line."""
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for name, (position, value) in found.items():
        colour, dashes = styles[name]
        axes.plot(position, value, color=colour, linestyle=dashes, linewidth=2)
    ends = sorted((value[-1], name) for name, (_, value) in found.items())
    apart = _apart([height for height, _ in ends], 0.052 * (heights[1] - heights[0]))
    longest = max(position[-1] for position, _ in found.values())
    for (_, name), height in zip(ends, apart, strict=True):
        right, (colour, dashes) = found[name][0][-1], styles[name]
        axes.plot((right + 2, right + 8), (height, height), color=colour, linestyle=dashes, linewidth=2, clip_on=False)
        axes.text(right + 9.5, height, LABELS.get(name, name), va="center")
    axes.set(xlabel="position in the context (tokens)", ylabel=what, xlim=(0, 1.02 * longest), ylim=heights)
    axes.set_title(f"{title} ({TRACK}, test split)", loc="left", fontsize=11)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure


def _apart(heights: list[float], least: float) -> list[float]:
    """The same heights, lowest first, moved so that two neighbours are at least `least` apart."""
    moved = list(heights)
    for _ in range(200):
        for i in range(len(moved) - 1):
            lack = least - (moved[i + 1] - moved[i])
            if lack > 0:
                moved[i], moved[i + 1] = moved[i] - lack / 2, moved[i + 1] + lack / 2
    return moved


def main() -> None:
    """Writes the figures."""
    learns, gains = (
        "How well each learns a new language from the prompt",
        "What each gains from the prompt, of what Bayes gains",
    )
    with rc_context({"svg.hashsalt": TRACK, "font.size": 10}):
        _write("score_by_position.svg", curves(), STYLES, learns, "legal accuracy", (0.5, 1.02))
        _write(
            "share_of_bayes.svg", shares(), SHARES, gains, "share of Bayes' gain over the unigram model", (0.0, 1.02)
        )


def _write(file: str, found: dict[str, Curve], *how: Any) -> None:
    note = f"curves {digest(found)}"
    draw(found, *how).savefig(FOLDER / file, metadata={"Date": None, "Description": note})


if __name__ == "__main__":
    main()
