"""Count the parameters of a TinT simulator, by the paper's formula and in the construction."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.cli.arguments import refuse_unused
from regbench.report.table import narrow_table
from regbench.utils.errors import UserError, nearest

DESCRIPTION = (
    "How many parameters the constructed transformer of TinT has, by the formula of the paper's Table 3. For a run of tint it "
    "also counts the maps that the construction holds, and compares them with their terms of the formula."
)
EXAMPLES = """\
examples:
  regbench tint
  regbench tint --size d=768,heads=12,layers=12,positions=2048,slots=4
  regbench tint --size-of runs/tint
"""
DEFAULTS = {"d": 768, "heads": 12, "layers": 12, "positions": 2048, "slots": 4}


def configure(tint: argparse.ArgumentParser) -> None:
    which = tint.add_mutually_exclusive_group()
    which.add_argument(
        "--size",
        metavar="KEY=N,...",
        default="",
        help="d, heads, layers and positions of the auxiliary, and slots (default: those of OPT-125M with 4 slots)",
    )
    which.add_argument("--size-of", metavar="DIR", help="the run folder of a tint")
    tint.add_argument("--track", metavar="FILE", help="with --size-of, if the run is on a track of your own")


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.utils import registry

    if arguments.size_of is None:
        refuse_unused(arguments, ("track",), "is of a run: it goes with --size-of")
    cls = registry.load(registry.ARCHITECTURE, "tint")
    if arguments.size_of is None:
        sizes = cls.sizes_of(**_sizes(arguments.size))
        counts: dict[str, tuple[int, int]] = {}
    else:
        from regbench.analysis.trained import load_named
        from regbench.config import read_run

        if (architecture := read_run(Path(arguments.size_of)).architecture) != "tint":
            raise UserError(f"{arguments.size_of} is a run of '{architecture}', not of 'tint'")
        trained = load_named(arguments.size_of, None, "validation", track=arguments.track, read_track=True)
        assert isinstance(trained.model, cls)
        sizes, counts = trained.model.sizes()
    table = narrow_table("by the paper's formula", ["what", "number"], 1)
    for name, number in sizes.items():
        table.add_row(name, f"{number:,}")
    console.print(table)
    if not counts:
        return 0
    table = narrow_table("in the construction", ["map", "counted", "by its term"], 1)
    every = tuple(sum(pair[i] for pair in counts.values()) for i in (0, 1))
    for name, (counted, expected) in {**counts, "all": every}.items():
        table.add_row(name, f"{counted:,}", f"{expected:,}", style=None if counted == expected else "red")
    console.print(table)
    if all(counted == expected for counted, expected in counts.values()):
        console.print("Both agree for every map. One set of maps serves all layers; the paper counts each layer's own.")
        return 0
    console.print("They do not agree.")
    return 1


def _sizes(text: str) -> dict[str, int]:
    """The sizes of "d=768,heads=12". Those that are not given are OPT-125M's."""
    found = dict(DEFAULTS)
    for part in text.split(",") if text else []:
        key, _, value = part.partition("=")
        if key not in DEFAULTS:
            raise UserError(f"--size knows no '{key}'{nearest(key, DEFAULTS)}")
        if not value.isdecimal():
            raise UserError(f"--size: {key} takes a whole number, not '{value}'")
        found[key] = int(value)
    return found
