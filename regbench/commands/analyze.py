"""measure what a trained model's summary of its context knows and does"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from regbench.errors import UserError

DESCRIPTION = (
    "Measures a trained model that keeps a summary y of its context: with the prompt and specialised to it, how y moves, "
    "what can be read from it, what another's y does. Writes analysis.json and pictures."
)


def configure(analyze: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    analyze.add_argument("folder", metavar="DIR", help="the run folder")
    analyze.add_argument("--seed", type=int, metavar="N", help="which of its models (default: the first)")
    analyze.add_argument(
        "--split",
        choices=("validation", "test"),
        default="validation",
        help="which instances; nothing may be chosen by the test split (default: validation)",
    )
    analyze.add_argument("--limit", type=int, default=200, metavar="N", help="how many of them (default: 200)")
    analyze.add_argument(
        "--rate", type=float, default=1 / 300, metavar="G", help="of y as a moving average (default: 1/300)"
    )
    analyze.add_argument("--out", metavar="DIR", help="where to write (default: DIR/analysis, or DIR/analysis-seed-N)")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints the findings, a line each."""
    from regbench.analysis.study import study
    from regbench.analysis.trained import load_trained

    if arguments.limit < 4:
        raise UserError(f"--limit {arguments.limit} is too few: four instances or more")
    if not 0.0 <= arguments.rate <= 1.0:
        raise UserError(f"--rate {arguments.rate:g} is not between 0 and 1")
    trained = load_trained(arguments.folder, arguments.seed)
    name = "analysis" if arguments.seed is None else f"analysis-seed-{arguments.seed}"
    folder = Path(arguments.out) if arguments.out else trained.folder / name
    progress = Console(stderr=True)
    found = study(
        trained,
        folder,
        split=arguments.split,
        limit=arguments.limit,
        rate=arguments.rate,
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
