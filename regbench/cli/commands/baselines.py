"""Score the baselines of a track, with paired differences and times."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from regbench.cli.lines import Bar, stderr
from regbench.report.table import narrow_table, print_fitting

DESCRIPTION = (
    "Scores every baseline of a track on its test split, with the paired difference to the best that does not know the truth. "
    "What was predicted is kept in the cache, so that an interrupted command goes on with the baseline it stopped at."
)
EXAMPLES = """\
examples:
  regbench baselines                                            those of pfa-small-v1: a minute or two on one core
  regbench baselines pfa-v1 --write baselines/README.md         and put the table into that page
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("track", nargs="*", default=["pfa-small-v1"], metavar="TRACK", help="default: pfa-small-v1")
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="a Markdown page to put the tables into; the numbers go to scores.json beside it",
    )


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.checks.task import require_scored
    from regbench.evaluation.measured_baselines import TrackTable, measure
    from regbench.report.baseline_table import difference_cells, read_page, score_cells, write_tables
    from regbench.tracks import load_track
    from regbench.utils.files import explain_writing

    page = Path(arguments.write) if arguments.write else None
    if page is not None:
        read_page(page)  # before minutes are spent
    tracks = [load_track(name) for name in arguments.track]
    for track in tracks:
        require_scored(track, "test")
    measured: dict[str, TrackTable] = {}
    with Bar(stderr()) as bar:
        for track in tracks:
            bar.on = f" on {track.name}"
            measured[track.name] = measure(track, bar.announce)
            console.print(f"{track.name}, test split")
            for cells in (score_cells, difference_cells):
                print_fitting(_table(*cells(track.name, measured[track.name])), console)
            if page is not None:
                with explain_writing(page.parent):
                    write_tables(page, {track.name: measured[track.name]})
    return 0


def _table(heads: list[str], *rows: list[str]) -> Table:
    """As narrow as it can be: the head has a word a line."""
    cells = ([cell.replace("± ", "±") for cell in row] for row in rows)
    return narrow_table(None, [name.replace(" ", "\n") for name in heads], 1, cells, pad_edge=True)
