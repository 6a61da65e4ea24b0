"""Measure what trained models' summaries of their context know and do."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.analysis.table import RunTable

DESCRIPTION = (
    "Measures a trained model that keeps a summary y of its context: with the prompt and specialised to it, how y moves, "
    "what can be read from it, what another's y does. Writes analysis.json and pictures. Of several runs on one track, or with "
    "--table or --cuts: a table with a row for each, over all their seeds; models without y are compared by their base scores."
)
EXAMPLES = """\
examples:
  regbench analyze runs/cgt
  regbench analyze runs/transformer runs/cgt-plain runs/cgt --table table.md
  regbench analyze runs/transformer runs/cgt --cuts 2,4,8 --table figure-4.md
"""


def configure(analyze: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    analyze.add_argument("folder", nargs="+", metavar="DIR", help="a run folder; several: a table of them")
    analyze.add_argument(
        "--table",
        metavar="FILE.md",
        help="write the table there, FILE.json beside it and, of tracks of examples, FILE.png",
    )
    analyze.add_argument(
        "--cuts",
        metavar="N,N,...",
        help="in the table y is frozen after so many examples, one after the other (default: half of those there are)",
    )
    analyze.add_argument(
        "--split",
        choices=("validation", "test"),
        default="validation",
        help="which instances; nothing may be chosen by the test split (default: validation)",
    )
    analyze.add_argument("--limit", type=int, default=200, metavar="N", help="how many of them (default: 200)")
    one = analyze.add_argument_group("one run")
    one.add_argument("--seed", type=int, metavar="N", help="which of its models (default: the first)")
    one.add_argument("--rate", type=float, metavar="G", help="of y as a moving average (default: 1/300)")
    one.add_argument("--out", metavar="DIR", help="where to write (default: DIR/analysis, or DIR/analysis-seed-N)")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints the findings about one run, a line each, or the table of several."""
    if arguments.limit < 4:
        raise UserError(f"--limit {arguments.limit} is too few: four instances or more")
    if len(arguments.folder) == 1 and arguments.table is None and arguments.cuts is None:
        return _one(arguments, console)
    for option in ("seed", "rate", "out"):
        if getattr(arguments, option) is not None:
            raise UserError(f"--{option} is for one run without --table and --cuts; a table is over all seeds")
    return _several(arguments, console)


def _one(arguments: argparse.Namespace, console: Console) -> int:
    """Everything about one model."""
    from regbench.analysis.study import study
    from regbench.analysis.trained import load_trained

    rate = 1 / 300 if arguments.rate is None else arguments.rate
    if not 0.0 <= rate <= 1.0:
        raise UserError(f"--rate {rate:g} is not between 0 and 1")
    trained = load_trained(arguments.folder[0], arguments.seed)
    name = "analysis" if arguments.seed is None else f"analysis-seed-{arguments.seed}"
    folder = Path(arguments.out) if arguments.out else trained.folder / name
    progress = Console(stderr=True)
    found = study(
        trained,
        folder,
        split=arguments.split,
        limit=arguments.limit,
        rate=rate,
        announce=lambda text: progress.print(text, highlight=False),
    )
    table = Table(
        title=f"{trained.architecture} on {trained.track.name}, seed {trained.seed}, {arguments.split}",
        title_justify="left",
    )
    table.add_column("behind the cut")
    table.add_column("")
    for what, value in found.lines:
        table.add_row(what, value)
    console.print(table)
    console.print(f"pictures and analysis.json: {folder}", highlight=False, soft_wrap=True)
    return 0


def _several(arguments: argparse.Namespace, console: Console) -> int:
    """The table."""
    from regbench.analysis import table_forms
    from regbench.analysis.table import tabulate

    path = Path(arguments.table) if arguments.table is not None else None
    if path is not None and path.suffix != ".md":
        raise UserError(f"--table takes the name of a Markdown file, FILE.md, not '{path}'")
    progress = Console(stderr=True)
    found = tabulate(
        arguments.folder,
        split=arguments.split,
        limit=arguments.limit,
        cuts=_cuts(arguments.cuts),
        announce=lambda text: progress.print(text, highlight=False, markup=False, soft_wrap=True),
    )
    written = _write(found, path) if path is not None else []
    console.print(table_forms.terminal(found, console.width))
    console.print(table_forms.notes(found), highlight=False, markup=False, soft_wrap=True)
    if written:
        console.print(f"written: {', '.join(map(str, written))}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _write(found: RunTable, path: Path) -> list[Path]:
    """The Markdown, the JSON and, where the track counts examples, the picture; returns what was written."""
    from regbench.analysis import table_forms
    from regbench.analysis.pictures import plot_examples
    from regbench.utils.files import atomic_write, explain_full_disk

    written = [path, path.with_suffix(".json")]
    with explain_full_disk(path.parent):
        with atomic_write(path) as file:
            file.write(table_forms.markdown(found))
        with atomic_write(written[1]) as file:
            json.dump(table_forms.plain(found), file, indent=1, allow_nan=False)
        if any(row.by_example for row in found.rows):
            written.append(path.with_suffix(".png"))
            plot_examples(found, written[-1])
    return written


def _cuts(text: str | None) -> list[int]:
    """ "2,4,8" as numbers."""
    try:
        cuts = [int(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise UserError(f"--cuts takes whole numbers with commas between them, such as 2,4,8, not '{text}'") from None
    return cuts
