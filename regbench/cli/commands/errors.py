"""Show where predictors err on automata: by state, by what was seen before, by kind of error."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from regbench.utils.errors import UserError, nearest

if TYPE_CHECKING:
    from regbench.analysis.errors import Bin
    from regbench.results import ScoreRecord

DESCRIPTION = (
    "Sorts the scored positions of the test split by the state of the automaton and by what was seen before, and scores "
    "predictors in each bin: by the edges of the state, its earlier visits, the number of last tokens that determine it, whether "
    "the edge is new, and the place in the string. It tells what illegal predictions are. Beside the runs stand 2-gram, 3-gram "
    "and Bayes: what Bayes errs in, the prompt does not tell. Stored predictions are read; nothing in a folder is executed."
)
EXAMPLES = """\
examples:
  regbench errors runs/transformer
  regbench errors runs/transformer runs/mamba --score legal_accuracy --out errors
"""
REFERENCES = ("2-gram", "3-gram", "Bayes")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("predictor", nargs="+", metavar="PREDICTOR", help="run folders and baselines, as in `compare`")
    parser.add_argument("--track", metavar="T", help="default: that of the run folders, else pfa-small-v1")
    parser.add_argument("--score", default="tvd", metavar="S", help="tvd (default), legal_accuracy or nll")
    parser.add_argument("--out", metavar="DIR", help="write errors.csv and errors.png there")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints the tables; writes what is asked for."""
    from regbench.analysis import errors
    from regbench.evaluation.comparison import KnownScores, find_predictors, predictions_at_scored, track_of
    from regbench.tracks import load_track
    from regbench.utils.files import explain_full_disk

    if arguments.score not in errors.SCORES:
        raise UserError(f"unknown --score '{arguments.score}'{nearest(arguments.score, errors.SCORES)}")
    track = arguments.track or track_of(arguments.predictor)
    loaded = load_track(track)
    errors.require_states(loaded, loaded.instances("validation")[:1])
    wanted = [*arguments.predictor, *(name for name in REFERENCES if name not in arguments.predictor)]
    found = find_predictors(wanted, track)
    at = errors.sort_positions(found.test, found.track.task.io)
    progress = Console(stderr=True)

    def announce(name: str, done: int, total: int) -> None:
        if done == total:
            progress.print(f"predicted by {name}: {total} instances", highlight=False)

    values, illegal = {}, {}
    for name, one in zip(found.names, found.compared, strict=True):
        assert not isinstance(one.source, KnownScores)  # no board is asked
        seeds = predictions_at_scored(one.source, found.track, found.test, found.test, announce)
        values[name] = errors.mean_of_seeds(seeds, at, errors.scores_of)
        kinds = errors.mean_of_seeds(seeds, at, errors.illegal_kinds)
        illegal[name] = {kind: errors.average(of, at) for kind, of in kinds.items()}
    bins = errors.binned(values, at)
    metric = found.track.metrics[arguments.score]
    whole = {name: errors.average(own[arguments.score], at) for name, own in values.items()}
    console.print(_table(f"{metric.label} {metric.arrow} on {found.track.name}, test split", bins, whole, arguments))
    console.print(_illegal(illegal))
    console.print(
        f"bins of fewer than {errors.LEAST_POSITIONS} positions or {errors.LEAST_INSTANCES} instances are left out; "
        f"the largest standard error is {max(r[arguments.score].stderr for b in bins for r in b.scores.values()):.3f}",
        highlight=False,
        soft_wrap=True,
    )
    if arguments.out:
        from regbench.analysis.pictures import plot_errors

        folder = Path(arguments.out)
        with explain_full_disk(folder):
            errors.write_csv(bins, folder / "errors.csv")
            title = f"{metric.label} {metric.arrow} on {found.track.name}, test split"
            plot_errors(bins, arguments.score, title, folder / "errors.png")
        console.print(f"errors.csv and errors.png: {folder}", highlight=False, soft_wrap=True)
    return 0


def _table(title: str, bins: Sequence[Bin], whole: Mapping[str, ScoreRecord], arguments: argparse.Namespace) -> Table:
    """A row for each bin, a column for each predictor."""
    from regbench.analysis.errors import FEATURES

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column("positions by", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for name in whole:
        table.add_column(fill(name, 11), justify="right", no_wrap=True)
    table.add_row("all", "", *(_short(record.value) for record in whole.values()), style="bold")
    total = {feature: sum(one.positions for one in bins if one.feature == feature) for feature in FEATURES}
    before = ""
    for one in bins:
        if one.feature != before:
            table.add_row(FEATURES[one.feature], style="italic")
            before = one.feature
        cells = [_short(one.scores[name][arguments.score].value) for name in whole]
        table.add_row(f"  {one.label}", f"{100 * one.positions / total[one.feature]:.0f} %", *cells)
    return table


def _short(value: float) -> str:
    """Three decimals without the zero before the point."""
    return f"{value:.3f}".removeprefix("0")


def _illegal(illegal: Mapping[str, Mapping[str, ScoreRecord]]) -> Table:
    """The share of positions whose most likely token is illegal, by kind."""
    title = "share of positions whose most likely token is illegal"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("the token", no_wrap=True)
    for name in illegal:
        table.add_column(fill(name, 11), justify="right", no_wrap=True)
    kinds = list(next(iter(illegal.values())))
    for kind in kinds:
        table.add_row(kind, *(f"{100 * own[kind].value:.1f} %" for own in illegal.values()))
    table.add_row("all", *(f"{100 * sum(record.value for record in own.values()):.1f} %" for own in illegal.values()))
    return table
