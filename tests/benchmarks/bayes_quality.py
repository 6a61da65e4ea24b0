"""What the Bayesian predictor's hypotheses and moves buy: scores against processor time, on validation instances.

`python -m tests.benchmarks.bayes_quality` measures every setting on the first 40 validation instances of pfa-v1, about six
minutes of one core, and writes bayes_quality.csv, its picture bayes_quality.svg and the table in README.md, all in baselines/.
Finished settings stay in the cache, so that it can be interrupted.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from baselines.bayes import Bayes
from baselines.ngram import NGram
from regbench.evaluation.baselines import predict_baseline, score_stored
from regbench.metrics.scores import Scores, score
from regbench.models.predictor import Baseline
from regbench.results import ScoreRecord
from regbench.tracks import load_track
from regbench.utils.files import atomic_write
from tests.helpers.documents import ROOT

TRACK, INSTANCES = "pfa-v1", 40
SETTINGS = {25: (0, 3, 12, 36, 108), 100: (0, 3, 12, 36, 108), 400: (0, 3, 12, 36)}
"""By the number of hypotheses, the numbers of moves."""
DEFAULT = (100, 36)
"""The hypotheses and moves of the default baseline on pfa-v1."""
COLOURS = dict(zip(SETTINGS, ("#56B4E9", "#0072B2", "#000000"), strict=True))
BEGIN, END = "<!-- quality: begin -->", "<!-- quality: end -->"
FOLDER = ROOT / "baselines"


@dataclass(frozen=True)
class Point:
    """One setting.

    tvd, nll: with standard errors over instances.  tvd_change, nll_change: paired differences from the default.
    seconds: of processor time an instance.
    """

    hypotheses: int
    moves: int
    seconds: float
    tvd: float
    tvd_stderr: float
    nll: float
    nll_stderr: float
    tvd_change: float
    tvd_change_stderr: float
    nll_change: float
    nll_change_stderr: float


def measure(settings: Sequence[tuple[int, int]]) -> list[Point]:
    """Every setting, and its differences from the default."""
    track = load_track(TRACK)
    few = track.instances("validation")[:INSTANCES]
    prior, io = Bayes.defaults(track.task, few)[0].prior, track.task.io

    def scored(baseline: Baseline) -> tuple[Scores, float]:
        predictions = predict_baseline(baseline, track, few)
        return score_stored(track, few, predictions.stored), predictions.processor_seconds / len(few)

    against, _ = scored(Bayes(prior, io.vocab_size, io.separator, *DEFAULT))
    points = []
    for hypotheses, moves in settings:
        scores, seconds = scored(Bayes(prior, io.vocab_size, io.separator, hypotheses, moves))
        values: dict[str, float] = {}
        for metric in ("tvd", "nll"):
            change = ScoreRecord.of(scores.sums[metric] - against.sums[metric], scores.counts)
            values |= {metric: scores[metric].value, f"{metric}_stderr": scores[metric].stderr}
            values |= {f"{metric}_change": change.value, f"{metric}_change_stderr": change.stderr}
        points.append(Point(hypotheses, moves, seconds, **values))
        print(points[-1], flush=True)
    return points


def best_ngram() -> Scores:
    """The strongest of the n-gram models, which is also what the predictor falls back on."""
    track = load_track(TRACK)
    few, io = track.instances("validation")[:INSTANCES], track.task.io
    return score(track.task, few, [NGram(3, io.vocab_size, io.separator, "kneser-ney").predict(few.tokens)])


def draw(points: Sequence[Point], ngram: Scores) -> Figure:
    """TVD and NLL against time, a line for each number of hypotheses, its points marked with the number of moves."""
    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    figure.suptitle(f"Bayes on {INSTANCES} validation instances of {TRACK}", fontsize=11, x=0.01, ha="left")
    for axes, metric, title in zip(
        figure.subplots(1, 2), ("tvd", "nll"), ("TVD (lower is better)", "NLL (nats, lower is better)"), strict=True
    ):
        _panel(axes, points, metric, title)
        axes.axhline(ngram[metric].value, color="#D55E00", linestyle=(0, (4, 2)), linewidth=1.2)
        axes.annotate(
            "3-gram, Kneser-Ney", (1, ngram[metric].value), (-2, 4), ("axes fraction", "data"), "offset points",
            color="#D55E00", fontsize=9, ha="right",
        )  # fmt: skip
    return figure


def _panel(axes: Axes, points: Sequence[Point], metric: str, title: str) -> None:
    for hypotheses, colour in COLOURS.items():
        own = [p for p in points if p.hypotheses == hypotheses]
        x, y = [p.seconds for p in own], [getattr(p, metric) for p in own]
        axes.plot(x, y, "o-", color=colour, markersize=5, label=f"{hypotheses} hypotheses")
        for point, at in zip(own, y, strict=True):
            here = (point.hypotheses, point.moves) == DEFAULT
            above = here or hypotheses == max(SETTINGS)  # of the others, lines lie there
            axes.annotate(
                str(point.moves),
                (point.seconds, at),
                (5, 5) if above else (-4, -6),
                textcoords="offset points",
                ha="left" if above else "right",
                va="bottom" if above else "center",
                color=colour,
                fontsize=8,
            )
            if here:
                axes.plot([point.seconds], [at], "o", markersize=11, markerfacecolor="none", markeredgecolor=colour)
    axes.set(title=title, xlabel="processor time an instance, s; at each point: moves", xscale="log")
    axes.title.set_fontsize(10)
    axes.xaxis.set_major_locator(FixedLocator([0.01, 0.03, 0.1, 0.3, 1, 3, 10]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    axes.margins(x=0.08, y=0.07)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)


def table(points: Sequence[Point]) -> str:
    """The points as a Markdown table, with differences from the default."""
    head = ["hypotheses", "moves", "TVD", "NLL (nats)", "TVD minus default", "NLL minus default", "s an instance"]
    rows = [head, ["---"] * len(head)]
    for p in points:
        here = (p.hypotheses, p.moves) == DEFAULT
        changes = [
            f"{c:+.3f} ± {e:.3f}" for c, e in ((p.tvd_change, p.tvd_change_stderr), (p.nll_change, p.nll_change_stderr))
        ]
        cells = [
            str(p.hypotheses),
            str(p.moves),
            f"{p.tvd:.3f} ± {p.tvd_stderr:.3f}",
            f"{p.nll:.3f} ± {p.nll_stderr:.3f}",
        ]
        rows.append([*cells, *(["", ""] if here else changes), f"{p.seconds:.3f}"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def write(points: Sequence[Point], ngram: Scores, folder: Path = FOLDER) -> None:
    """The figures and their picture, as bayes_quality.csv and bayes_quality.svg; and the table into README.md."""
    with atomic_write(folder / "bayes_quality.csv") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(Point)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: v if isinstance(v, int) else f"{v:.6f}" for k, v in asdict(p).items()} for p in points)
    with atomic_write(folder / "bayes_quality.svg", "wb") as file, rc_context({"svg.hashsalt": "bayes_quality"}):
        draw(points, ngram).savefig(file, format="svg", metadata={"Date": None})
    page = folder / "README.md"
    text = page.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    with atomic_write(page) as file:
        file.write(f"{text[:start]}\n\n{table(points)}\n{text[end:]}")


def read(folder: Path = FOLDER) -> list[Point]:
    """What `write` wrote."""
    types = {field.name: int if field.name in ("hypotheses", "moves") else float for field in dataclasses.fields(Point)}
    with open(folder / "bayes_quality.csv", newline="", encoding="utf-8") as file:
        return [Point(**{k: types[k](v) for k, v in row.items()}) for row in csv.DictReader(file)]


def main() -> None:
    """Measures, writes, and prints the table."""
    points = measure([(hypotheses, m) for hypotheses, moves in SETTINGS.items() for m in moves])
    write(points, best_ngram())
    print(table(points))


if __name__ == "__main__":
    main()
