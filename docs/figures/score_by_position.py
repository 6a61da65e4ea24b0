"""Draws legal accuracy by position in the context: the figure of the README, and the share of Bayes' gain.

`make figures` writes score_by_position.svg and share_of_bayes.svg beside this file. The curves are those of the leaderboard's
entries (the mean over their seeds) and of the baselines beside them. Nothing is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from regbench.leaderboard.store import stored_in

METRIC = "legal_accuracy"
FOLDER = Path(__file__).resolve().parent
ENTRIES = FOLDER.parents[1] / "leaderboard" / "entries"
START, END = "unigram", "Bayes"
LEAST_GAIN = 0.1
"""Shares are drawn from the position on at which Bayes is so far ahead of the unigram model. Before, they are noise."""

# Okabe and Ito (2008): told apart by people who do not see red and green apart. Baselines are dashed, architectures are not.
BLACK, GREY, ORANGE, BLUE, SKY, GREEN, RED, PINK = (
    *("#000000", "#8A8A8A", "#E69F00", "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7"),
)
Curve = tuple[list[float], list[float]]
"""Positions, and the score at each."""


@dataclass(frozen=True)
class Line:
    """How one predictor is drawn.

    Attributes:
        label: Its name in the figure.
        colour: Of the line.
        dashes: Of the line.
    """

    label: str
    colour: str
    dashes: str | tuple[int, tuple[float, ...]] = "solid"


@dataclass(frozen=True)
class Drawing:
    """One figure.

    Attributes:
        track: Whose entries and baselines.
        lines: By the name of the entry or baseline.
        title: Above.
        what: The vertical axis.
        lowest: Where the vertical axis begins.
        shares: Whether it has the share of Bayes' gain, and not the score.
    """

    track: str
    lines: dict[str, Line]
    title: str
    what: str
    lowest: float
    shares: bool = False


THREE_GRAM = Line("3-gram", PINK, (0, (4, 2, 1, 2)))
DRAWINGS = {
    "score_by_position": Drawing(
        "pfa-medium-v1",
        {
            "oracle": Line("oracle (the truth)", BLACK, (0, (1, 1.5))),
            "Bayes": Line("Bayes", ORANGE, (0, (6, 2))),
            "gla+n_layers-4+ngh-1-2-3": Line("GLA + n-gram heads", BLUE),
            "transformer+n_layers-4+mimetic": Line("Transformer", RED),
            "3-gram": THREE_GRAM,
            "mamba+n_layers-4": Line("Mamba", SKY),
            "lstm+n_layers-4": Line("LSTM", GREY),
        },
        "How well each learns a new language from the prompt",
        "legal accuracy",
        0.5,
    ),
    "share_of_bayes": Drawing(
        "pfa-small-v1",
        {
            "retnet+ngh-1-2-3": Line("RetNet + n-gram heads", BLUE),
            "3-gram": THREE_GRAM,
            "forgetting_transformer": Line("Forgetting transformer", ORANGE),
            "deltanet": Line("DeltaNet", GREEN),
            "mamba": Line("Mamba", SKY),
            "transformer+mimetic": Line("Transformer", RED),
            "lstm": Line("LSTM", GREY),
            "gla": Line("GLA", BLACK),
        },
        "What each gains from the prompt, of what Bayes gains",
        "share of Bayes' gain over the unigram model",
        0.0,
        shares=True,
    ),
}


def curves(drawing: Drawing) -> dict[str, Curve]:
    """The curve of each predictor of a figure, by its name."""
    if not drawing.shares:
        return _scores(drawing.track, drawing.lines)
    found = _scores(drawing.track, [*drawing.lines, START, END])
    (position, start), (_, end) = found.pop(START), found.pop(END)
    first = next(i for i, (a, b) in enumerate(zip(start, end, strict=True)) if b - a >= LEAST_GAIN)
    return {
        name: (position[first:], [(v - a) / (b - a) for v, a, b in zip(value, start, end, strict=True)][first:])
        for name, (_, value) in found.items()
    }


def _scores(track: str, names: Iterable[str]) -> dict[str, Curve]:
    """The score by position of entries and baselines of a track."""
    entries = [json.loads(one.path.read_text(encoding="utf-8")) for one in stored_in(ENTRIES / track)]
    by_name = {entry["name"]: [seed["curves"][METRIC] for seed in entry["result"]["seeds"]] for entry in entries}
    baselines = entries[0]["result"]["baselines"]
    by_name |= {name: [record["curves"][METRIC]] for name, record in baselines.items()}
    return {name: _mean(by_name[name]) for name in names}


def _mean(seeds: list[dict[str, list[float]]]) -> Curve:
    """The mean over seeds, where a bin has at least half of the positions of the fullest bin; the rest is noise."""
    counts = seeds[0]["count"]
    keep = [i for i, count in enumerate(counts) if count >= max(counts) / 2]
    means = [sum(seed["value"][i] for seed in seeds) / len(seeds) for i in keep]
    return [seeds[0]["position"][i] for i in keep], means


def digest(found: dict[str, Curve]) -> str:
    """SHA-256 of the curves: the figure carries it, so that a test sees whether the figure is of today's entries."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def draw(drawing: Drawing, found: dict[str, Curve]) -> Figure:
    """One line for each predictor; its name stands at the line's end, behind a piece of the same line."""
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    axes = figure.subplots()
    highest = 1.02
    for name, (position, value) in found.items():
        line = drawing.lines[name]
        axes.plot(position, value, color=line.colour, linestyle=line.dashes, linewidth=2)
    ends = sorted((value[-1], name) for name, (_, value) in found.items())
    apart = _apart([height for height, _ in ends], 0.052 * (highest - drawing.lowest))
    longest = max(position[-1] for position, _ in found.values())
    for (_, name), height in zip(ends, apart, strict=True):
        right, line = found[name][0][-1], drawing.lines[name]
        piece = (right + 2, right + 8), (height, height)
        axes.plot(*piece, color=line.colour, linestyle=line.dashes, linewidth=2, clip_on=False)
        axes.text(right + 9.5, height, line.label, va="center")
    axes.set(xlabel="position in the context (tokens)", ylabel=drawing.what)
    axes.set(xlim=(0, 1.02 * longest), ylim=(drawing.lowest, highest))
    axes.set_title(f"{drawing.title} ({drawing.track})", loc="left", fontsize=11)
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
    for file, drawing in DRAWINGS.items():
        found = curves(drawing)
        with rc_context({"svg.hashsalt": drawing.track, "font.size": 10}):
            note = {"Date": None, "Description": f"curves {digest(found)}"}
            draw(drawing, found).savefig(FOLDER / f"{file}.svg", metadata=note)


if __name__ == "__main__":
    main()
