"""Measure how differently any two predictors predict."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import one_of

if TYPE_CHECKING:
    from regbench.evaluation.comparison import Comparison

DESCRIPTION = (
    "The total variation distance between every two of the predictors given, over the scored positions among the first tokens "
    "of the test split, as a table and a picture (ICLL Figure 6)."
)
EXAMPLES = """\
examples:
  regbench compare uniform ngram Bayes oracle
  regbench compare oracle 3-gram runs/pfa-small-v1/transformer-20260101-120000 small=runs/mine --out who.png
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument(
        "predictor",
        nargs="+",
        metavar="PREDICTOR",
        help="a baseline (3-gram, Bayes, ...; ngram: all its forms; your own FILE.py[:CLASS]) or a run folder; "
        "LABEL=PREDICTOR names it",
    )
    parser.add_argument("--track", metavar="T", help="default: that of the run folders, else pfa-small-v1")
    parser.add_argument(
        "--tokens", type=int, default=100, metavar="N", help="of each instance (default: the first 100)"
    )
    parser.add_argument(
        "--order",
        type=one_of("similar", "given"),
        default="similar",
        help="similar predictors side by side (default), or as given",
    )
    parser.add_argument("--out", metavar="FILE.png", help="draw a heat map there")
    parser.add_argument("--csv", metavar="FILE", help="write every pair with its standard error there")


def _seeds(found: Comparison) -> str:
    """How runs of several seeds are compared, where there are any."""
    by_count: dict[int, list[str]] = {}
    for name, count in zip(found.names, found.seeds, strict=True):
        if count > 1:
            by_count.setdefault(count, []).append(name)
    runs = "; ".join(f"{', '.join(names)}: {count} seeds" for count, names in by_count.items())
    return f"{runs}. Of these the mean over pairs, with itself that between its own seeds." if runs else ""


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints the table; draws and writes what is asked for."""
    from regbench.evaluation.comparison import compare
    from regbench.report.pictures import plot_heat_map
    from regbench.utils.errors import UserError
    from regbench.utils.files import explain_full_disk

    if arguments.out and not arguments.out.endswith(".png"):
        raise UserError(f"--out takes the name of a PNG picture, not '{arguments.out}'")
    progress = Console(stderr=True)

    def announce(name: str, done: int, total: int) -> None:
        if done == total:
            progress.print(f"predicted by {name}: {total} instances", highlight=False)

    found = compare(
        arguments.predictor, arguments.track, tokens=arguments.tokens, order=arguments.order, announce=announce
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("TVD", no_wrap=True)
    for number in range(len(found.names)):  # names would not fit 80 columns
        table.add_column(str(number + 1), justify="right", no_wrap=True)
    digits = 3 if len(found.names) < 10 else 2
    for number, (name, row) in enumerate(zip(found.names, found.distance, strict=True), 1):
        table.add_row(f"{number} {name}", *(f"{value:.{digits}f}".removeprefix("0") for value in row))
    console.print(table, highlight=False)
    what = (
        f"{found.track}, test split: {found.positions:,} scored positions among the first {found.tokens} tokens of "
        f"{found.instances:,} instances"
    )
    console.print(f"{what}; no standard error is above {found.stderr.max():.3f}", highlight=False, soft_wrap=True)
    seeds = _seeds(found)
    if seeds:
        console.print(seeds, highlight=False, soft_wrap=True)
    with explain_full_disk(Path(arguments.out or arguments.csv or ".").parent):
        if arguments.out:
            title = f"Who predicts like whom: {found.track}, the first {found.tokens} tokens"
            plot_heat_map(found.names, found.distance, title, f"{what}\n{seeds}".strip(), Path(arguments.out))
            console.print(f"picture: {arguments.out}", highlight=False, soft_wrap=True)
        if arguments.csv:
            found.write_csv(Path(arguments.csv))
            console.print(f"every pair: {arguments.csv}", highlight=False, soft_wrap=True)
    return 0
