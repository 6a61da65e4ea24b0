"""Draws the boards of the small tracks: a dot for each seed of each entry, coloured by what lets it look one symbol back.

`make figures` writes boards.svg, suites.svg and ablations.svg, of the pages results, suites and ablations, beside this file.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.figure import Figure

from regbench.leaderboard.store import stored_in
from regbench.metrics.metric import Metric
from regbench.tracks import load_track

FOLDER = Path(__file__).resolve().parent
ENTRIES = FOLDER.parents[1] / "leaderboard" / "entries"
DRAWINGS = {
    "boards": {
        "pfa-small-v1": "automata",
        "pfa-medium-v1": "automata, larger budget",
        "assoc-recall-small-v1": "associative recall",
        "bigram-small-v1": "in-context bigrams",
        "linear-regression-small-v1": "linear regression",
        "arithmetic-small-v1": "arithmetic",
    },
    "suites": {
        "mqar-small-v1": "multi-query recall",
        "mad-recall-small-v1": "recall",
        "mad-noisy-recall-small-v1": "noisy recall",
        "mad-fuzzy-recall-small-v1": "fuzzy recall",
        "state-tracking-small-v1": "state tracking",
        "mad-selective-copying-small-v1": "selective copying",
        "mad-compression-small-v1": "compression",
    },
}
"""By figure its tracks, and the name of each. On memorization all have 1.000."""

COLOURS = {
    "n-gram heads, or counts of n-grams": "#009E73",
    "short convolution": "#0072B2",
    "token shift, or shift state space": "#56B4E9",
    "queries and keys begin alike": "#CC79A7",
    "none of these": "#D55E00",
}
OF_THEIR_OWN = {
    "learned_ngram": "n-gram heads, or counts of n-grams",
    "hyena": "short convolution",
    **dict.fromkeys(("rwkv", "rwkv7", "h3"), "token shift, or shift state space"),
    **dict.fromkeys(("cgt", "fast_slow"), "queries and keys begin alike"),
}
PAIRS = {
    "short convolution": [(name, f"{name}+short_conv-4") for name in ("s4", "linear_transformer", "retnet", "gla")]
    + [(f"{name}+d_conv-1", name) for name in ("mamba", "deltanet", "gated_deltanet")],
    "queries and keys begin alike": [("transformer+n_heads-1", "transformer+mimetic")],
    "n-gram heads, or counts of n-grams": [
        (f"{name}+n_heads-4+learning_rate-0.005", f"{name}+ngh-1-2-3") for name in ("gla", "retnet")
    ],
}
"""Of docs/ablations.md: by what is added, the entries of `pfa-small-v1` without it and with it."""

Dots = dict[str, list[tuple[float, str]]]
"""By architecture: the score of each seed of each entry, and what the entry has."""


def kind(architecture: dict[str, dict[str, object]]) -> str:
    """What an entry has that sees the previous token within a layer."""
    options = architecture["options"]
    if options.get("ngram_heads"):
        return "n-gram heads, or counts of n-grams"
    if str(architecture["name"]) in OF_THEIR_OWN:
        return OF_THEIR_OWN[str(architecture["name"])]
    if options.get("mimetic"):
        return "queries and keys begin alike"
    width = options.get("short_conv") or options.get("d_conv") or 0
    return "short convolution" if int(str(width)) > 1 else "none of these"


def board(track: str) -> tuple[Dots, str, float]:
    """The dots of a track, its main score, and the best baseline that does not know the truth."""
    found, dots = (
        [json.loads(one.path.read_text(encoding="utf-8"))["result"] for one in stored_in(ENTRIES / track)],
        defaultdict(list),
    )
    main = main_metric(track)
    for result in found:
        values = [seed["scores"][main.name]["value"] for seed in result["seeds"]]
        dots[result["architecture"]["name"]] += [(value, kind(result["architecture"])) for value in values]
    others = [one["scores"][main.name]["value"] for one in found[0]["baselines"].values() if one["anchor"] != "end"]
    return dict(dots), main.name, main.sign * max(main.sign * value for value in others)


@cache
def main_metric(track: str) -> Metric:
    """The main score of a track."""
    made = load_track(track)
    return made.metrics[made.definition.main_score]


def boards(tracks: dict[str, str]) -> dict[str, tuple[Dots, str, float]]:
    """Every board of a figure, by its track."""
    return {track: board(track) for track in tracks}


def digest(found: object) -> str:
    """SHA-256 of what is drawn: the figure carries it, so that a test sees whether the figure is of today's entries."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def order(found: dict[str, tuple[Dots, str, float]]) -> list[str]:
    """The architectures, the best last: by the mean over the boards of the share of those that its best entry leaves behind."""
    places = defaultdict(list)
    for track, (dots, _, _) in found.items():
        sign = main_metric(track).sign
        by_best = sorted(dots, key=lambda name: fmean(sorted((sign * value for value, _ in dots[name]))[-3:]))
        for place, name in enumerate(by_best):
            places[name].append(place / len(by_best))
    return sorted(places, key=lambda name: fmean(places[name]))


def draw(found: dict[str, tuple[Dots, str, float]], tracks: dict[str, str]) -> Figure:
    """A panel for each board, a row in it for each architecture. Right is better."""
    names = order(found)
    figure = Figure(figsize=(1.4 + 1.75 * len(found), 6.4), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (track, (dots, _, best)) in zip(panels, found.items(), strict=True):
        for name, seeds in dots.items():
            colours = [COLOURS[what] for _, what in seeds]
            axes.scatter(
                [v for v, _ in seeds], [names.index(name)] * len(seeds), s=16, c=colours, alpha=0.75, linewidths=0
            )
        axes.axvline(best, color="black", linestyle=(0, (4, 2)), linewidth=1)
        axes.set_title(tracks[track], loc="left", fontsize=10)
        main = main_metric(track)
        axes.set(xlabel=main.label, yticks=range(len(names)), yticklabels=names, ylim=(-0.7, len(names) - 0.3))
        if main.sign < 0:
            axes.invert_xaxis()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    for what, colour in COLOURS.items():
        axes.scatter([], [], s=24, c=colour, label=what)
    axes.plot([], [], color="black", linestyle=(0, (4, 2)), linewidth=1, label="best baseline without the truth")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def changes() -> dict[str, list[tuple[str, list[float], list[float]]]]:
    """By what is added: each architecture, and the legal accuracy of its seeds without it and with it."""
    seeds = {}
    for one in stored_in(ENTRIES / "pfa-small-v1"):
        entry = json.loads(one.path.read_text(encoding="utf-8"))
        seeds[entry["name"]] = [seed["scores"]["legal_accuracy"]["value"] for seed in entry["result"]["seeds"]]
    return {
        what: [(pair[0].split("+")[0], seeds[pair[0]], seeds[pair[1]]) for pair in pairs]
        for what, pairs in PAIRS.items()
    }


def draw_changes(found: dict[str, list[tuple[str, list[float], list[float]]]]) -> Figure:
    """A row for each pair: empty dots are seeds without the part, full ones with it."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes, labels = figure.subplots(), []
    for what, pairs in found.items():
        for name, without, with_it in pairs:
            place = [len(labels)] * 3
            axes.hlines(len(labels), fmean(without), fmean(with_it), color=COLOURS[what], linewidth=1)
            axes.plot(without, place, "o", color=COLOURS[what], markerfacecolor="white", markersize=5)
            axes.plot(with_it, place, "o", color=COLOURS[what], markersize=5)
            labels.append(name)
        axes.plot([], [], "o", color=COLOURS[what], label=f"with: {what}")
    axes.plot([], [], "o", color="black", markerfacecolor="white", label="without")
    axes.set(xlabel="legal accuracy (pfa-small-v1)", yticks=range(len(labels)), yticklabels=labels)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def main() -> None:
    """Writes the figures."""
    pairs = changes()
    with rc_context({"svg.hashsalt": "ablations", "font.size": 9}):
        note = {"Date": None, "Description": f"seeds {digest(pairs)}"}
        draw_changes(pairs).savefig(FOLDER / "ablations.svg", metadata=note)
    for file, tracks in DRAWINGS.items():
        found = boards(tracks)
        with rc_context({"svg.hashsalt": file, "font.size": 9}):
            note = {"Date": None, "Description": f"boards {digest(found)}"}
            draw(found, tracks).savefig(FOLDER / f"{file}.svg", metadata=note)


if __name__ == "__main__":
    main()
