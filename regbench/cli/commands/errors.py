"""Show where predictors err: on automata by state and kind of error, on text by what followed the same tokens before."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from regbench.cli.lines import Bar, print_line, stderr
from regbench.report.table import narrow_table, print_fitting, short
from regbench.utils.errors import UserError, nearest

if TYPE_CHECKING:
    from regbench.analysis.errors import Bin, Positions
    from regbench.evaluation.find_predictors import Found
    from regbench.results import ScoreRecord
    from regbench.utils.arrays import FloatArray

DESCRIPTION = (
    "Sorts the scored positions of the test split by the state of the automaton and by what was seen before, and scores "
    "predictors in each bin: by the edges of the state, its earlier visits, the number of last tokens that determine it, whether "
    "the edge is new, and the place in the string. It tells what illegal predictions are. On other tracks, such as text, "
    "positions are sorted by the number of tokens before, and by what has followed the last 1, 2 and 3 tokens before. Beside the "
    "runs stand 2-gram, 3-gram and Bayes, on text a 3-gram model by Witten and Bell. What Bayes gets wrong cannot be learned "
    "from the prompt. Stored predictions are read; nothing in a folder is executed."
)
EXAMPLES = """\
examples:
  regbench errors runs/transformer
  regbench errors runs/transformer runs/mamba --score legal_accuracy --out errors
  regbench errors runs/gla runs/gla-12                   on text: where n-gram heads help
"""
REFERENCES = ("2-gram", "3-gram", "Bayes")
TEXT_REFERENCE = "3-gram witten-bell"
"""Stands in their place where there is one: of a large vocabulary they know next to nothing."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("predictor", nargs="+", metavar="PREDICTOR", help="run folders and baselines, as in `compare`")
    parser.add_argument("--track", metavar="T", help="default: that of the run folders, else pfa-small-v1")
    parser.add_argument(
        "--score",
        metavar="S",
        help="tvd (default), legal_accuracy or nll; without states: nll (default) or token_accuracy",
    )
    parser.add_argument("--out", metavar="DIR", help="write errors.csv and errors.png there")


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.analysis import errors
    from regbench.evaluation.baselines import default_baselines
    from regbench.evaluation.find_predictors import find_predictors, track_of
    from regbench.metrics.metric import METRICS
    from regbench.tracks import load_track
    from regbench.utils.files import explain_writing, require_writable

    track = arguments.track or track_of(arguments.predictor)
    loaded = load_track(track)
    by_state = errors.has_states(loaded)
    known = errors.SCORES if by_state else errors.TOKEN_SCORES
    score = known[0] if arguments.score is None else arguments.score
    if score not in known:
        raise UserError(f"unknown --score '{score}'{nearest(score, known)}")
    there = {baseline.name for baseline in default_baselines(loaded, loaded.instances("test"))}
    wanted = (TEXT_REFERENCE,) if TEXT_REFERENCE in there else REFERENCES
    found = find_predictors([*arguments.predictor, *(name for name in wanted if name in there)], track)
    at = (errors.sort_positions if by_state else errors.sort_by_repetition)(found.test, found.track.task.io)
    if arguments.out:
        require_writable(Path(arguments.out))
    values, illegal = _measured(found, at)
    bins = errors.binned(values, at)
    metric = METRICS[score]
    title = f"{metric.heading} on {found.track.name}, test split"
    whole = {name: errors.average(own[score], at) for name, own in values.items()}
    print_fitting(_table(title, bins, whole, score, len(at.row)), console)
    if illegal:
        print_fitting(_illegal(illegal), console)
    print_line(
        f"bins of fewer than {errors.LEAST_POSITIONS} positions or {errors.LEAST_INSTANCES} instances are left out; "
        f"the largest standard error is {max((r[score].stderr for b in bins for r in b.scores.values()), default=0.0):.3f}",
        console,
    )
    if arguments.out:
        from regbench.analysis.pictures import plot_errors

        folder = Path(arguments.out)
        with explain_writing(folder):
            errors.write_csv(bins, folder / "errors.csv")
            plot_errors(bins, score, title, folder / "errors.png")
        print_line(f"errors.csv and errors.png: {folder}", console)
    return 0


def _measured(
    found: Found, at: Positions
) -> tuple[dict[str, dict[str, FloatArray]], dict[str, dict[str, ScoreRecord]]]:
    """By predictor every score at each position; and on automata the share of each kind of illegal prediction."""
    from regbench.analysis import errors
    from regbench.evaluation.comparison import normalized, predictions_at_scored, tokens_at_scored
    from regbench.evaluation.find_predictors import KnownScores

    values, illegal = {}, {}
    with Bar(stderr()) as bar:
        for name, one in zip(found.names, found.compared, strict=True):
            assert not isinstance(one.source, KnownScores)  # no board is asked
            if isinstance(at, errors.StatePositions):
                stored = predictions_at_scored(one.source, found.track, found.test, found.test, bar.announce)
                seeds = [normalized(rows) for rows in stored]
                values[name] = errors.mean_of_seeds(seeds, at, errors.scores_of)
                kinds = errors.mean_of_seeds(seeds, at, errors.illegal_kinds)
                illegal[name] = {kind: errors.average(of, at) for kind, of in kinds.items()}
            else:
                tokens = tokens_at_scored(one.source, found.track, found.test, bar.announce)
                values[name] = errors.mean_of_seeds(tokens, at, errors.token_scores)
    return values, illegal


def _table(title: str, bins: Sequence[Bin], whole: Mapping[str, ScoreRecord], score: str, positions: int) -> Table:
    """A row for each bin, a column for each predictor."""
    from regbench.analysis.errors import FEATURES

    heads = ["positions by", "share", *(fill(name, 11) for name in whole)]
    table = narrow_table(title, heads, 1, padding=0, show_edge=False)
    for column in table.columns[2:]:
        column.min_width = 5
    table.add_row("all", "", *(short(record.value) for record in whole.values()), style="bold")
    before = ""
    for one in bins:
        if one.feature != before:
            table.add_row(FEATURES[one.feature], style="italic")
            before = one.feature
        cells = [short(one.scores[name][score].value) for name in whole]
        table.add_row(f"  {one.label}", f"{100 * one.positions / positions:.0f} %", *cells)
    return table


def _illegal(illegal: Mapping[str, Mapping[str, ScoreRecord]]) -> Table:
    title = "share of positions whose most likely token is illegal"
    heads = ["the token", *(fill(name, 11) for name in illegal)]
    table = narrow_table(title, heads, 1, pad_edge=True, show_edge=False)
    kinds = list(next(iter(illegal.values())))
    for kind in kinds:
        table.add_row(kind, *(f"{100 * own[kind].value:.1f} %" for own in illegal.values()))
    table.add_row("all", *(f"{100 * sum(record.value for record in own.values()):.1f} %" for own in illegal.values()))
    return table
