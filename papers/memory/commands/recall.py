"""Show what the memories of associative_memory recall over training, and in which order they are learned."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.cli.lines import print_line
from regbench.report.table import narrow_table
from regbench.utils.errors import UserError

DESCRIPTION = (
    "Reads the logs of runs that measure their memories while they train. It loads no weights and shows every seed. A memory is "
    "half learned at the step from which on its recall stays above half of the way from chance to its last value."
)
EXAMPLES = """\
examples:
  regbench recall runs/am --out am.png --csv am.csv
  regbench recall runs/am --expect o2,k2,k1    exit code 1 if the order is another
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="+", metavar="DIR", help="run folders")
    parser.add_argument("--out", metavar="FILE.png", help="draw a picture there")
    parser.add_argument("--csv", metavar="FILE", help="write every figure there")
    parser.add_argument("--expect", metavar="M,M,...", help="exit code 1 if memories are learned in another order")


def main(arguments: argparse.Namespace, console: Console) -> int:
    from papers.memory.recall import CHANCE, RECALL, in_order, learned_at, plot_recall, read_measured, write_csv
    from regbench.utils.files import explain_writing, require_writable_files

    if arguments.out and not arguments.out.endswith(".png"):
        raise UserError(f"--out takes the name of a PNG picture, not '{arguments.out}'")
    found = [one for folder in arguments.folder for one in read_measured(folder)]
    expected = arguments.expect.split(",") if arguments.expect else []
    right = not expected or all(in_order(one, expected) for one in found)
    require_writable_files(arguments.out, arguments.csv)
    table = narrow_table(None, ("run", "memory", "seed", "recall", "chance", "half learned at step"), 2)
    for one in found:
        for memory in one.memories():
            chance, step = one.figures.get(CHANCE + memory), learned_at(one, memory)
            last = f"{one.figures[RECALL + memory][-1]:.3f}"
            cells = (f"{chance[0]:.3f}" if chance else "", "never" if step is None else f"{step:,}")
            table.add_row(one.run.name, memory, str(one.seed), last, *cells)
    console.print(table)
    with explain_writing(Path(arguments.out or arguments.csv or ".").parent):
        if arguments.out:
            plot_recall(found, Path(arguments.out))
            print_line(f"picture: {arguments.out}", console)
        if arguments.csv:
            write_csv(found, Path(arguments.csv))
            print_line(f"every figure: {arguments.csv}", console)
    if expected:
        console.print(f"{' before '.join(expected)}: {'yes' if right else 'not in every seed'}")
    return 0 if right else 1
