"""Measure what the summaries of trained models know about their context."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.cli.arguments import add_instances
from regbench.utils.errors import UserError

DESCRIPTION = (
    "Measures a trained model with a summary y of its context: its scores with a prompt and specialised to it, how fast y "
    "changes, linear probes of y, activation patching of y. It writes analysis.json and pictures. For several runs on one track, "
    "or with --table or --cuts, it makes a table with a row for each run, over all seeds. In a table, models without y have base "
    "scores."
)
EXAMPLES = """\
examples:
  regbench analyze runs/cgt
  regbench analyze runs/transformer runs/cgt-plain runs/cgt --table table.md
  regbench analyze runs/transformer runs/cgt --cuts 2,4,8 --table figure-4.md
"""


def configure(analyze: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    analyze.add_argument("folder", nargs="+", metavar="DIR", help="a run folder; several: a table")
    analyze.add_argument(
        "--table",
        metavar="FILE.md",
        help="write the table there, with FILE.json and, on tracks of examples, FILE.png",
    )
    analyze.add_argument(
        "--cuts",
        metavar="N,N,...",
        help="in the table, freeze y after these numbers of examples, one after another (default: half of the examples)",
    )
    add_instances(analyze)
    one = analyze.add_argument_group("one run")
    one.add_argument("--seed", type=int, metavar="N", help="which of its models (default: the first)")
    one.add_argument("--rate", type=float, metavar="G", help="of the moving average of y (default: 1/300)")
    one.add_argument("--out", metavar="DIR", help="where to write (default: DIR/analysis, or DIR/analysis-seed-N)")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Calls the analysis that the architecture brings with it."""
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
    from regbench.analysis.trained import analysis_of, load_trained

    rate = 1 / 300 if arguments.rate is None else arguments.rate
    if not 0.0 <= rate <= 1.0:
        raise UserError(f"--rate {rate:g} is not between 0 and 1")
    trained = load_trained(arguments.folder[0], arguments.seed)
    name = "analysis" if arguments.seed is None else f"analysis-seed-{arguments.seed}"
    folder = Path(arguments.out) if arguments.out else trained.folder / name
    analysis = analysis_of(trained.architecture)
    analysis.analyze_run(trained, folder, split=arguments.split, limit=arguments.limit, rate=rate, console=console)
    return 0


def _several(arguments: argparse.Namespace, console: Console) -> int:
    """The table."""
    from regbench.analysis.trained import analysis_of
    from regbench.config import read_run

    file = Path(arguments.table) if arguments.table is not None else None
    if file is not None and file.suffix != ".md":
        raise UserError(f"--table takes the name of a Markdown file, FILE.md, not '{file}'")
    cuts = _cuts(arguments.cuts)
    analysis = analysis_of(*(read_run(Path(folder)).architecture for folder in arguments.folder))
    analysis.compare_runs(
        arguments.folder, split=arguments.split, limit=arguments.limit, cuts=cuts, file=file, console=console
    )
    return 0


def _cuts(text: str | None) -> list[int]:
    """The numbers of a list such as "2,4,8"."""
    try:
        cuts = [int(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise UserError(f"--cuts takes whole numbers with commas between them, such as 2,4,8, not '{text}'") from None
    return cuts
