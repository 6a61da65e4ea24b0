"""Measure what gradient steps on its own prompt give a trained model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from regbench.utils.errors import UserError, nearest

if TYPE_CHECKING:
    from regbench.analysis.adaptation import Place

DESCRIPTION = (
    "Takes the first part of each instance, the segment, for gradient descent on a trained model, for each instance by itself. "
    "Scores the rest with the weights before and after. full: the true gradient of all parameters, of any model. values: no "
    "gradient through attention scores, and only the parameters that TinT changes. tint: as values, with finite differences, "
    "which is what TinT computes. The last two are for transformer and tint. The learning rate is chosen on validation."
)
EXAMPLES = """\
examples:
  regbench adapt runs/tint
  regbench adapt runs/tint runs/mamba --how full --at 0.5 --table adapt.md
  regbench adapt runs/tint --at 0.5 --steps 4 --layers 1 --how tint
"""
WAYS = ("full", "values", "tint")


def configure(adapt: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    adapt.add_argument(
        "folder", nargs="+", metavar="DIR", help="run folders, all on one track; a mean over all their seeds"
    )
    place = adapt.add_mutually_exclusive_group()
    place.add_argument(
        "--at", metavar="S,S,...", help="where the segment ends, as a share of an instance (default: 0.3,0.5,0.7,0.9)"
    )
    place.add_argument("--tokens", metavar="N,N,...", help="where the segment ends, in tokens")
    adapt.add_argument(
        "--how", metavar="WAY,...", help="of full, values and tint (default: all, and full where there is no simulator)"
    )
    adapt.add_argument(
        "--rates",
        metavar="R,R,...",
        default="1e-4,3e-4,1e-3,2e-3,3e-3",
        help="learning rates to choose from, for the summed loss (default: 1e-4,3e-4,1e-3,2e-3,3e-3)",
    )
    adapt.add_argument("--steps", type=int, default=1, metavar="N", help="steps of gradient descent (default: 1)")
    adapt.add_argument(
        "--layers", type=int, metavar="K", help="only the top K blocks and the last norm change (default: all)"
    )
    adapt.add_argument(
        "--split", choices=("validation", "test"), default="test", help="which instances are scored (default: test)"
    )
    adapt.add_argument("--limit", type=int, default=200, metavar="N", help="how many of each split (default: 200)")
    adapt.add_argument("--seed", type=int, metavar="N", help="only this seed of the runs (default: all)")
    adapt.add_argument("--table", metavar="FILE.md", help="write the table there, with FILE.csv and FILE.png")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Adapts each run at each place, prints the table, and writes the files."""
    from regbench.analysis import adaptation, adaptation_report
    from regbench.analysis.trained import load_trained
    from regbench.config import read_run
    from regbench.utils.files import atomic_write

    file = Path(arguments.table) if arguments.table is not None else None
    if file is not None and file.suffix != ".md":
        raise UserError(f"--table takes the name of a Markdown file, FILE.md, not '{file}'")
    for option, least in (("steps", 1), ("limit", 4)):
        if getattr(arguments, option) < least:
            raise UserError(f"--{option} {getattr(arguments, option)} is too few: {least} or more")
    places = _places(arguments)
    rates = tuple(_numbers("--rates", arguments.rates))
    if not all(0 < rate < float("inf") for rate in rates):
        raise UserError("--rates takes numbers above 0")
    asked = WAYS if arguments.how is None else tuple(arguments.how.split(","))
    for way in asked:
        if way not in WAYS:
            raise UserError(f"--how knows no '{way}'{nearest(way, WAYS)}")
    names = _names([Path(folder) for folder in arguments.folder])
    runs = []
    for folder in arguments.folder:
        seeds = read_run(Path(folder)).seeds if arguments.seed is None else [arguments.seed]
        for split in {"validation", arguments.split}:  # of both splits nothing may have changed
            models = [load_trained(folder, seed, split) for seed in seeds]
        runs.append(models)
    tracks = {models[0].track.name for models in runs}
    if len(tracks) > 1:
        raise UserError(f"the runs are on different tracks: {', '.join(sorted(tracks))}")
    rows = []
    for name, models in zip(names, runs, strict=True):
        has = adaptation.simulator_of(models[0].model) is not None
        ways = asked if has or arguments.how is not None else ("full",)
        plan = adaptation.Plan(ways, rates, arguments.steps, arguments.layers, arguments.limit)
        adaptation.check_ways(models[0], plan)
        for place in places:
            with console.status(f"{name}, segment {place}"):
                rows += adaptation.adapt_run(models, name, place, plan, arguments.split)
    heading = adaptation_report.title(tracks.pop(), arguments.split, arguments.limit, arguments.steps)
    console.print(heading, style="bold")
    for table in adaptation_report.terminal(rows):
        console.print(table)
    for note in adaptation_report.notes(rows):
        console.print(note, style="dim")
    if file is not None:
        with atomic_write(file) as out:
            out.write(adaptation_report.markdown(rows, heading))
        adaptation_report.write_csv(rows, arguments.split, file.with_suffix(".csv"))
        adaptation_report.draw(rows, heading, file.with_suffix(".png"))
        console.print(f"wrote {file}, {file.with_suffix('.csv').name} and {file.with_suffix('.png').name}")
    return 0


def _places(arguments: argparse.Namespace) -> list[Place]:
    """Where the segments end."""
    from regbench.analysis.adaptation import Place  # it loads PyTorch

    if arguments.tokens is not None:
        counts = _numbers("--tokens", arguments.tokens)
        if any(count < 1 or count != int(count) for count in counts):
            raise UserError(f"--tokens takes whole numbers above 0, not '{arguments.tokens}'")
        return [Place(tokens=int(count)) for count in counts]
    shares = _numbers("--at", "0.3,0.5,0.7,0.9" if arguments.at is None else arguments.at)
    if not all(0 < share < 1 for share in shares):
        raise UserError(f"--at takes shares above 0 and below 1, not '{arguments.at}'")
    return [Place(share=share) for share in shares]


def _numbers(option: str, text: str) -> list[float]:
    """The numbers of a list such as "1e-3,2e-3"."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} takes numbers with commas between them, not '{text}'") from None


def _names(folders: list[Path]) -> list[str]:
    """The name of each folder, or its path where names are the same."""
    short = [folder.name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]
