"""Compare predictors: their scores, whether they differ by more than chance, and how differently they predict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import one_of, refuse_unused
from regbench.cli.lines import Bar, print_line, stderr
from regbench.report.table import folded, narrow_table, print_fitting, short, small_error

if TYPE_CHECKING:
    from regbench.evaluation.baselines import Announce
    from regbench.evaluation.comparison import Comparison, ScoreRow
    from regbench.evaluation.find_predictors import Found

DESCRIPTION = (
    "Scores predictors on the test split: the difference of each from the first, on the same instances, and whether seeds and "
    "instances explain it. Below, the total variation distance between every two of them, over the scored positions among the "
    "first tokens of each instance, as a table and a picture (ICLL Figure 6). Entries of the leaderboard have scores alone."
)
EXAMPLES = """\
examples:
  regbench compare runs/mine mamba 3-gram                     a run, an entry of the leaderboard, a baseline
  regbench compare uniform ngram Bayes oracle
  regbench compare oracle 3-gram runs/pfa-small-v1/transformer-20260101-120000 small=runs/mine --out who.png
  regbench compare runs/mine 2-gram Bayes oracle --course course.png
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "predictor",
        nargs="+",
        metavar="PREDICTOR",
        help="a baseline (3-gram, Bayes, ...; ngram: all its forms; your own FILE.py[:CLASS]), a run folder, or an entry of the "
        "leaderboard by its name or file; LABEL=PREDICTOR names it",
    )
    parser.add_argument("--track", metavar="T", help="default: that of the runs and files given, else pfa-small-v1")
    parser.add_argument("--tokens", type=int, metavar="N", help="of each instance (default: the first 100)")
    parser.add_argument(
        "--order",
        type=one_of("similar", "given"),
        help="similar predictors side by side (default), or as given",
    )
    parser.add_argument("--out", metavar="FILE.png", help="draw a heat map there")
    parser.add_argument(
        "--course",
        metavar="FILE.png",
        help="draw how far each run is from each baseline over the course of its training, with FILE.csv; for runs with "
        "training.keep_checkpoints=true",
    )
    parser.add_argument("--csv", metavar="FILE", help="write every pair with its standard error there")


def _seeds(found: Comparison) -> str:
    """How runs of several seeds are compared. Empty where there are none."""
    by_count: dict[int, list[str]] = {}
    for name, count in zip(found.names, found.seeds, strict=True):
        if count > 1:
            by_count.setdefault(count, []).append(name)
    if not by_count:
        return ""
    runs = "; ".join(f"{', '.join(names)}: {count} seeds" for count, names in by_count.items())
    return f"{runs}. A distance is the mean over pairs of seeds; from itself, over pairs of different seeds."


def main(arguments: argparse.Namespace, console: Console) -> int:
    with Bar(stderr()) as bar:
        return _compare(arguments, bar.announce, console)


def _compare(arguments: argparse.Namespace, announce: Announce, console: Console) -> int:
    from regbench.evaluation.comparison import FIRST_TOKENS, NoDistances, distances, score_table
    from regbench.evaluation.find_predictors import KnownScores, find_predictors
    from regbench.leaderboard.standing import Entries, percent
    from regbench.leaderboard.store import without_evidence
    from regbench.metrics.reach import reach_words
    from regbench.metrics.significance import SIGNIFICANCE
    from regbench.utils.errors import UserError
    from regbench.utils.files import require_writable_files

    for option in ("out", "course"):
        file = getattr(arguments, option)
        if file and not file.endswith(".png"):
            raise UserError(f"--{option} takes the name of a PNG picture, not '{file}'")
    if arguments.course:
        why = "is of the distances between predictors: leave it out beside --course"
        refuse_unused(arguments, ("out", "csv", "order"), why)
    found = find_predictors(without_evidence(arguments.predictor), arguments.track, Entries())
    require_writable_files(arguments.out, arguments.csv, arguments.course)
    asked = arguments.tokens is not None
    arguments.tokens = arguments.tokens if asked else FIRST_TOKENS
    if arguments.course:
        return _show_courses(found, arguments, announce, console)
    compared, why_not = None, ""
    try:
        compared = distances(found, tokens=arguments.tokens, order=arguments.order or "similar", announce=announce)
    except NoDistances as reason:
        if arguments.out or arguments.csv or asked:
            raise
        why_not = str(reason)
    rows = score_table(found, announce)
    print_fitting(_scores(rows, found), console)
    console.print(
        f"difference: from {found.names[0]}, on the same instances; tied: p is {SIGNIFICANCE:g} or more, given the "
        "noise of instances and seeds; each row is tested by itself",
    )
    known = (one.source for one in found.compared if isinstance(one.source, KnownScores))
    if shipped := [one.name for one in known if one.main.error is not None]:
        why = "from the table that ships with regbench, which has no scores of single instances"
        print_line(f"{', '.join(shipped)}: {why}; so differences from them are not paired", console)
    shares = {row.name: f"{percent(share)} %" for row in rows if (share := _share(row, found)) is not None}
    if len(set(shares.values())) > 1:
        print_line(f"budgets differ: {', '.join(f'{name} used {share}' for name, share in shares.items())}", console)
    for row in rows:
        if row.result is not None and (words := reach_words(row.result)):
            print_line(f"{row.name}: reach {words}", console)
    if compared is None:
        print_line(f"no distances: {why_not}", console)
        return 0
    _show_distances(compared, arguments, console)
    return 0


def _show_courses(found: Found, arguments: argparse.Namespace, announce: Announce, console: Console) -> int:
    """Prints a table for each run: its distance from each baseline at every kept checkpoint. Draws and writes the files."""
    from regbench.analysis.course import courses, write_csv
    from regbench.analysis.pictures import plot_courses
    from regbench.utils.files import explain_writing

    made = courses(found, tokens=arguments.tokens, announce=announce)
    for course in made:
        rows = (
            [f"{tokens:,}", *(f"{records[at].value:.3f}" for records in course.distance.values())]
            for at, tokens in enumerate(course.tokens)
        )
        heads = ["training tokens", *course.distance]
        print_fitting(narrow_table(f"{course.name}: TVD from", heads, 0, rows, show_edge=False), console)
    largest = max(record.stderr for course in made for records in course.distance.values() for record in records)
    what = f"{found.track.name}, test split, the first {arguments.tokens} tokens; the largest standard error is {largest:.3f}"
    print_line(what, console)
    picture = Path(arguments.course)
    with explain_writing(picture.parent):
        plot_courses(made, what, picture)
        write_csv(made, picture.with_suffix(".csv"))
    print_line(f"wrote {picture} and {picture.with_suffix('.csv').name}", console)
    return 0


def _scores(rows: Sequence[ScoreRow], found: Found) -> Table:
    """The table of scores. Only the main score has its error, and the difference is in it."""
    main = found.track.definition.main_score
    others = [metric for metric in found.track.task.scores if metric != main]
    learned = any(row.learned is not None for row in rows)
    costs = ("parameters", "state", "training tokens", "of the budget", *(["learns in"] if learned else []))
    narrow = [*(found.track.metrics[name].heading for name in others), *costs]
    heads = ["predictor", "seeds", fill(found.track.metrics[main].heading, 11, break_long_words=False)]
    heads += ["difference", "p", "verdict", *(fill(head, 8, break_long_words=False) for head in narrow)]
    table = narrow_table(f"{found.track.name}, test split", heads, 1, padding=0, pad_edge=True, show_edge=False)
    table.columns[0].min_width, table.columns[5].justify = 11, "left"
    first = next(row.scores[main] for row in rows if row.change is None)
    for row in rows:
        record, gap, p = row.scores[main], "", ""
        if row.change is not None:
            gap = f"{record.value - first.value:+.3f} {small_error(row.change.noise)}"
            p = "<.001" if row.change.p < 0.001 else short(row.change.p)
        cells = (f"{record.value:.3f} {small_error(record.stderr)}", gap, p, row.verdict)
        table.add_row(
            folded(row.name),
            str(row.seeds or ""),
            *cells,
            *(f"{row.scores[metric].value:.3f}" for metric in others),
            *_costs(row, found),
            *([f"{row.learned} of {row.seeds}" if row.learned is not None else ""] if learned else []),
        )
    return table


def _share(row: ScoreRow, found: Found) -> float | None:
    """The share of the track's budget that the row's shortest training saw. None of what was not trained on the track."""
    from regbench.leaderboard.standing import budget_share

    if row.result is None or row.result.evaluation is not None:
        return None
    return budget_share(row.result, found.track)


def _costs(row: ScoreRow, found: Found) -> tuple[str, ...]:
    from regbench.leaderboard.standing import percent
    from regbench.report.content import human_state

    if row.result is None:
        return ("",) * 4
    share, architecture = _share(row, found), row.result.architecture
    tokens = ("", "") if share is None else (f"{row.result.tokens:,}", f"{percent(share)} %")
    return (f"{architecture.parameters:,}", fill(human_state(architecture), 12), *tokens)


def _show_distances(found: Comparison, arguments: argparse.Namespace, console: Console) -> None:
    from regbench.report.pictures import plot_heat_map
    from regbench.utils.files import explain_writing

    numbers = [str(number + 1) for number in range(len(found.names))]  # names would not fit 80 columns
    table = narrow_table(None, ["TVD", *numbers], 1, pad_edge=True)
    digits = 3 if len(found.names) < 10 else 2
    for number, (name, row) in enumerate(zip(found.names, found.distance, strict=True), 1):
        table.add_row(folded(f"{number} {name}"), *(short(value, digits) for value in row))
    print_fitting(table, console)
    what = (
        f"{found.track}, test split: {found.positions:,} scored positions among the first {found.tokens} tokens of "
        f"{found.instances:,} instances"
    )
    print_line(f"{what}; the largest standard error is {found.stderr.max():.3f}", console)
    seeds = _seeds(found)
    if seeds:
        print_line(seeds, console)
    with explain_writing(Path(arguments.out or arguments.csv or ".").parent):
        if arguments.out:
            title = f"Distances between predictors: {found.track}, the first {found.tokens} tokens"
            plot_heat_map(found.names, found.distance, title, f"{what}\n{seeds}".strip(), Path(arguments.out))
            print_line(f"picture: {arguments.out}", console)
        if arguments.csv:
            found.write_csv(Path(arguments.csv))
            print_line(f"every pair: {arguments.csv}", console)
