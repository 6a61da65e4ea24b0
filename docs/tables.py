"""The tables of the pages that follow from entries, sweeps and files: `python docs/tables.py` writes each between its markers.

A page asks for a table by name: `<!-- table: NAME -->`, then `<!-- end -->`. `TABLES` says what makes it, and a name that ends in
`.csv` is a file of measured numbers in docs/measured/, whose cells are shown as they are.
"""

from __future__ import annotations

import csv
import re
import runpy
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import pandas as pd

from regbench.leaderboard.overview import ABILITIES
from regbench.leaderboard.publish import abilities
from regbench.leaderboard.rank import rank
from regbench.leaderboard.store import stored_in
from regbench.leaderboard.tiers import read_evidence
from regbench.metrics.metric import METRICS
from regbench.report.content import human_state
from regbench.results import BaselineRecord, Result, ScoreRecord
from regbench.tracks import load_track
from regbench.utils import registry
from regbench.utils.files import atomic_write

ROOT = Path(__file__).resolve().parents[1]
ENTRIES, SWEEPS, MEASURED = ROOT / "leaderboard" / "entries", ROOT / "sweeps", ROOT / "docs" / "measured"
PLACE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
FINDINGS = runpy.run_path(str(ROOT / "docs" / "findings.py"))
PFA = ("legal_accuracy", "token_accuracy", "tvd", "nll")
SUITE = (
    *("mqar-small-v1", "mad-recall-small-v1", "mad-noisy-recall-small-v1", "mad-fuzzy-recall-small-v1"),
    *(
        "mad-memorization-small-v1",
        "state-tracking-small-v1",
        "mad-selective-copying-small-v1",
        "mad-compression-small-v1",
    ),
)
WHOLE = ("cgt", "fast_slow", "associative_memory", "tint", "learned_ngram")
LOOKS_BACK = {"rwkv": "token shift", "rwkv7": "token shift", "h3": "shift state space", "hyena": "3"}
"""What an architecture itself has that sees the previous token, where it is not the option of a short convolution."""


@cache
def entries(track: str) -> dict[str, Result]:
    """The result of every entry of a track, by the entry's name."""
    return {one.name: one.result for one in (stored.entry for stored in stored_in(ENTRIES / track))}


def baselines(track: str) -> dict[str, BaselineRecord]:
    """The baselines of a track, as they stand beside its entries."""
    return next(iter(entries(track).values())).baselines


def main_score(track: str, name: str) -> float:
    """The main score of an entry, the mean over its seeds, or of a baseline."""
    result = next(iter(entries(track).values()))
    if name in result.baselines:
        return result.baselines[name].scores[result.track.main_score].value
    return fmean(seed.scores[result.track.main_score].value for seed in entries(track)[name].seeds)


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def scores(result: Result, metrics: Iterable[str]) -> list[str]:
    """The scores of an entry: the mean over its seeds, ± its standard error."""
    return [str(ScoreRecord.over_seeds([seed.scores[metric] for seed in result.seeds])) for metric in metrics]


def of_bayes(track: str, name: str) -> str:
    """The share of Bayes' gain over the unigram model."""
    least, most = main_score(track, "unigram"), main_score(track, "Bayes")
    return "" if name == "oracle" else f"{100 * (main_score(track, name) - least) / (most - least):.0f} %"


def board(track: str, metrics: tuple[str, ...], share: bool = False, shown: Callable[[str], bool] = bool) -> str:
    """The entries of a track and its baselines, best first by the first metric; of the entries those that are `shown`."""
    rows = {}
    for name, record in baselines(track).items():
        if name != "uniform":
            rows[name] = [f"*{name}*", *(str(record.scores[metric]) for metric in metrics), "", "", ""]
    for name, result in entries(track).items():
        if shown(name):
            about = result.architecture
            rest = (f"{about.parameters:,}", human_state(about), str(result.selection.trials))
            rows[name] = [name, *scores(result, metrics), *rest]
    known = load_track(track).metrics
    head = ["architecture", *(known[metric].heading for metric in metrics), "parameters", "state", "trials"]
    if share:
        head.insert(2, "of Bayes' gain")
        for name, row in rows.items():
            row.insert(2, of_bayes(track, name))
    sign = known[metrics[0]].sign
    return markdown(head, (rows[name] for name in sorted(rows, key=lambda name: -sign * main_score(track, name))))


def state_tracking() -> str:
    """Accuracy after long stretches by group, and over all test walks, of every entry."""
    track = "state-tracking-small-v1"
    metrics = ("longer_accuracy", "parity_accuracy", "s3_accuracy", "a4_accuracy", "token_accuracy")
    rows = [[name, *scores(result, metrics)] for name, result in entries(track).items()]
    head = ["entry", *(load_track(track).metrics[metric].heading for metric in metrics)]
    return markdown(head, sorted(rows, key=lambda row: -main_score(track, row[0])))


def on_the_default_track(name: str) -> bool:
    """Every architecture as it is by default, the best with n-gram heads, and whole models and transformers as tuned."""
    more = (
        "gla+ngh-1-2-3",
        "retnet+ngh-1-2-3",
        "fast_slow+learning_rate-0.0025",
        "transformer+mimetic",
        "transformer+n_heads-1",
    )
    return "+" not in name or name in more or name.startswith("tint+")


def suite() -> str:
    """The entries of `sweeps/board-tasks.yaml`: a row of an architecture and its options, a column of a track."""
    trials = pd.read_csv(SWEEPS / "board-tasks-trials.csv", dtype=str).fillna("")
    cells: dict[str, dict[str, str]] = {}
    looks: dict[str, str] = {}
    for row in trials[trials.chosen == "yes"].to_dict("records"):
        for name, one in entries(row["track"]).items():
            options = one.architecture.options
            same = one.architecture.name == row["architecture"] and one.training["learning_rate"] == float(
                row["training.learning_rate"]
            )
            if same and all(
                not row[key] or str(options[key]).lower() == row[key]
                for key in ("n_heads", "short_conv", "negative_eigenvalues")
            ):
                tuned = ("learning_rate", "n_heads") if row["n_heads"] else ("learning_rate",)
                plain = "+".join(part for part in name.split("+") if not part.startswith(tuned))
                cells.setdefault(plain, {})[row["track"]] = f"{main_score(row['track'], name):.3f}"
                width = one.architecture.conv_width
                looks[plain] = LOOKS_BACK.get(one.architecture.name, str(width) if width else "none")
    order = sorted(cells, key=lambda name: cells[name]["mad-fuzzy-recall-small-v1"], reverse=True)
    head = ["entry, without its rate", "short convolution", *(f"`{track}`" for track in SUITE)]
    return markdown(head, ([name, looks[name], *(cells[name][track] for track in SUITE)] for name in order))


def mad_ranks() -> str:
    """The scores and ranks of the MAD tasks in an independent run, and of the best entry of each architecture here.

    Ranks that differ by five places or more are bold.
    """
    theirs = pd.read_csv(ROOT / "docs" / "published" / "mad.csv", index_col="architecture")
    ours = pd.DataFrame({track: best_by_architecture(track) for track in theirs}).reindex(theirs.index).dropna()
    theirs, ours = theirs.loc[ours.index], ours.round(3)
    ranks, own = theirs.rank(ascending=False), ours.rank(ascending=False)

    def cell(name: str, track: str) -> str:
        here = f"{theirs[track][name]:.3f} ({ranks[track][name]:g}) / {ours[track][name]:.3f} ({own[track][name]:g})"
        return f"**{here}**" if abs(ranks[track][name] - own[track][name]) >= 5 else here

    rows = [[name, *(cell(name, track) for track in theirs)] for name in ours.index]
    alike = [f"{ranks[t].corr(own[t]):.2f}" if ours[t].nunique() > 1 else "" for t in theirs]
    return markdown(["theirs / ours (rank)", *(f"`{track}`" for track in theirs)], [*rows, ["Spearman", *alike]])


def best_by_architecture(track: str) -> pd.Series[float]:
    """The main score of the best entry of each architecture."""
    found = pd.Series({name: main_score(track, name) for name in entries(track)})
    return found.groupby(lambda name: entries(track)[name].architecture.name).max()


def whole_models() -> str:
    """The entry of each whole model with its default size on each track, beside the best transformer without its extras."""
    trials = pd.read_csv(SWEEPS / "board-whole-trials.csv")
    rows = []
    for track in dict.fromkeys(trials.track):
        found = entries(track)
        main = load_track(track).metrics[next(iter(found.values())).track.main_score]
        cells = [f"{main_score(track, of_default_options(track, model)):.3f}" for model in WHOLE]
        plain = [name for name, one in found.items() if one.architecture.name == "transformer" and is_plain(one)]
        best = max(main.sign * main_score(track, name) for name in plain)
        rows.append([f"`{track}`", main.heading.removesuffix(" ↑"), *cells, f"{main.sign * best:.3f}"])
    return markdown(["track", "score", *WHOLE, "transformer"], rows)


def of_default_options(track: str, model: str) -> str:
    """The entry of a model that differs from its defaults by rates alone."""
    defaults = registry.load(registry.ARCHITECTURE, model).Options().model_dump(mode="json")
    (name,) = (
        name
        for name, one in entries(track).items()
        if one.architecture.name == model
        and {**defaults, **one.architecture.options, "inner_rate": 0} == {**defaults, "inner_rate": 0}
    )
    return name


def is_plain(result: Result) -> bool:
    """Whether a transformer has two layers, and neither `mimetic` nor a short convolution nor n-gram heads."""
    options = result.architecture.options
    unset = not (options["mimetic"] or options["short_conv"] or options["ngram_heads"])
    return unset and options["n_layers"] == 2 and options.get("positions") == "learned"


def short_convolution() -> str:
    """Seven architectures as the grid chose them, and the same but for the convolution."""
    found, rows = entries("pfa-small-v1"), []
    for name in ("gla", "retnet", "linear_transformer", "s4", "deltanet", "gated_deltanet", "mamba"):
        pair = (found[name], found.get(f"{name}+short_conv-4") or found[f"{name}+d_conv-1"])
        without, with_one = (
            scores(one, ("legal_accuracy", "tvd")) for one in sorted(pair, key=lambda o: o.architecture.conv_width)
        )
        rows.append([name, without[0], with_one[0], without[1], with_one[1]])
    return markdown(["architecture", "legal accuracy ↑, without", "with", "TVD ↓, without", "with"], rows)


def ngram_heads() -> str:
    """RetNet and GLA without heads, then with more and more of them."""
    found, rows = entries("pfa-small-v1"), []
    for name in ("retnet", "gla"):
        for more in ("n_heads-4+learning_rate-0.005", "ngh-1", "ngh-1-2", "ngh-1-2-3"):
            rows.append([f"{name}+{more}", *scores(found[f"{name}+{more}"], PFA)])
    last = "transformer+mimetic+learning_rate-0.005"
    rows.append([last, *scores(found[last], PFA)])
    return markdown(["architecture", *(METRICS[metric].heading for metric in PFA)], rows)


def instances() -> str:
    """Legal accuracy by training instances and layers, of `sweeps/icll-figure-3.yaml`."""
    table = pd.read_csv(SWEEPS / "icll-figure-3-scores.csv")
    heads = table["ngram_heads"].fillna("[]").ne("[]")
    table["name"] = table["architecture"].where(~heads, table["architecture"] + " with n-gram heads")
    wide = table.pivot_table(index=["name", "n_layers"], columns="training.train_instances", values="legal_accuracy")
    order = sorted(wide.index, key=lambda key: (-wide.loc[[k for k in wide.index if k[0] == key[0]]].max().max(), key))
    rows = [[name, str(layers), *(f"{value:.3f}" for value in wide.loc[(name, layers)])] for name, layers in order]
    rows += [
        [name, "", *([f"{main_score('pfa-medium-v1', name):.3f}"] * len(wide.columns))] for name in ("3-gram", "2-gram")
    ]
    return markdown(["architecture", "layers", *(f"{count:,} instances" for count in wide.columns)], rows)


def first_run() -> str:
    """What `make run` prints: Mamba's seed 0 among the baselines."""
    result = entries("pfa-small-v1")["mamba"]
    (first,) = (seed for seed in result.seeds if seed.seed == 0)
    found = {name: record.scores for name, record in result.baselines.items()} | {"**mamba**": first.scores}
    rows = []
    for name in sorted(found, key=lambda name: -found[name]["legal_accuracy"].value):
        rows.append(
            [name, *(str(found[name][m]) for m in PFA), normalized(result, found[name]["legal_accuracy"].value)]
        )
    return markdown(["predictor", *(METRICS[metric].heading for metric in PFA), "normalized score"], rows)


def reach() -> str:
    """How far each architecture goes: who goes farthest, the picture, and the first lines of the table."""
    stored = [one for track in ABILITIES for one in stored_in(ENTRIES / track)]
    evidence = {one.entry.digest: read_evidence(one) for one in stored}
    return "\n\n".join(abilities(rank([one.entry for one in stored], evidence=evidence), ".", most=10))


def normalized(result: Result, value: float) -> str:
    """A main score rescaled: 0 at chance, 100 at the oracle."""
    ends = {record.anchor: record.scores[result.track.main_score].value for record in result.baselines.values()}
    return f"{100 * (value - ends['start']) / (ends['end'] - ends['start']):.0f}"


def architectures() -> str:
    """Every architecture with what its file says: its family, its paper and the first line of its docstring."""
    rows = []
    for name, entry in registry.entries(registry.ARCHITECTURE).items():
        cls = registry.load(registry.ARCHITECTURE, name)
        paper = cls.paper
        cited = f"[{paper.title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else paper.title
        summary = entry.summary.removesuffix(".").replace("|", "\\|")
        rows.append([f"`{name}`", cls.family, f"{paper.authors}, {cited}", str(paper.year), summary])
    return markdown(["name", "family", "paper", "year", "what it is"], rows)


def families() -> str:
    """The names of all architectures, by family."""
    found: dict[str, list[str]] = {}
    for name in registry.entries(registry.ARCHITECTURE):
        found.setdefault(registry.load(registry.ARCHITECTURE, name).family, []).append(f"`{name}`")
    return ". ".join(f"*{family}*: {', '.join(names)}" for family, names in sorted(found.items())) + "."


def measured(name: str) -> str:
    """A file of measured numbers."""
    head, *rows = csv.reader((MEASURED / name).read_text(encoding="utf-8").splitlines())
    return markdown(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "pfa-small-v1": partial(board, "pfa-small-v1", PFA, share=True, shown=on_the_default_track),
    "pfa-medium-v1": partial(board, "pfa-medium-v1", PFA, share=True),
    "assoc-recall-small-v1": partial(board, "assoc-recall-small-v1", ("final_accuracy", "token_accuracy", "nll")),
    "bigram-small-v1": partial(board, "bigram-small-v1", ("nll", "in_context_accuracy", "global_tvd", "tvd")),
    "bigram-outputs-small-v1": partial(board, "bigram-outputs-small-v1", ("in_context_accuracy", "nll")),
    "bigram-outputs-all-small-v1": partial(
        board, "bigram-outputs-all-small-v1", ("nll", "in_context_accuracy", "global_tvd")
    ),
    "linear-regression-small-v1": partial(board, "linear-regression-small-v1", ("mse", "truth_mse")),
    "arithmetic-small-v1": partial(board, "arithmetic-small-v1", ("last_two_accuracy", "token_accuracy", "nll")),
    "suite": suite,
    "mad-ranks": mad_ranks,
    "state-tracking": state_tracking,
    "whole-models": whole_models,
    "short-convolution": short_convolution,
    "ngram-heads": ngram_heads,
    "instances": instances,
    "first-run": first_run,
    "reach": reach,
    "architectures": architectures,
    "families": families,
    "findings": FINDINGS["overview"],
    "findings-one-by-one": FINDINGS["sections"],
}


def filled(text: str) -> str:
    """A page with every table that it asks for.

    Raises:
        KeyError: It asks for a table that is not there.
    """
    made = {
        name: measured(name) if name.endswith(".csv") else TABLES[name]()
        for name in re.findall(r"<!-- table: (\S+) -->", text)
    }
    return PLACE.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n\n{found[3]}", text)


def pages() -> list[Path]:
    """The pages that can ask for tables."""
    return [ROOT / "README.md", ROOT / "architectures" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


if __name__ == "__main__":
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            with atomic_write(page) as file:
                file.write(after)
