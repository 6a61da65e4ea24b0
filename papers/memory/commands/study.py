"""Run a numerical study of associative memories, and check it against its oracles."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regbench.cli.arguments import refuse_unused
from regbench.cli.lines import print_line, stderr, under_way
from regbench.report.table import narrow_table

if TYPE_CHECKING:
    from papers.memory.study import Study

DESCRIPTION = (
    "Runs a numerical study: no track and no architecture, random embeddings only. It prints tables. With --check it also prints "
    "what must hold, by exact oracles and published figures, and the exit code is 1 where something does not."
)
EXAMPLES = """\
examples:
  regbench study                                     what there is
  regbench study gradient-memory --check
  regbench study zipf-memory --draws 100 --out zipf
  regbench study zipf-memory --optimizers --check    trained memories, too, in minutes
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="which study; without it, all are listed")
    parser.add_argument("--draws", type=int, metavar="N", help="how many times embeddings are drawn")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of all draws (default: 0)")
    parser.add_argument("--optimizers", action="store_true", help="zipf-memory: also train memories by SGD and Adam")
    parser.add_argument("--out", metavar="DIR", help="write the tables as CSV files and a picture there")
    parser.add_argument("--check", action="store_true", help="print what must hold; exit code 1 where it does not")


def main(arguments: argparse.Namespace, console: Console) -> int:
    from papers.memory.study import run_study, study_names
    from regbench.utils.files import require_writable

    if arguments.name is None:
        every = ("draws", "seed", "optimizers", "out", "check")
        refuse_unused(arguments, every, f"goes with a study: {', '.join(study_names())}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for name, summary in study_names().items():
            table.add_row(Text(name, "bold"), summary)
        console.print(table)
        return 0
    if arguments.out:
        require_writable(Path(arguments.out))
    with under_way(stderr()) as step:
        step(f"measuring {arguments.name}")
        study = run_study(arguments.name, arguments.draws, arguments.seed or 0, arguments.optimizers)
    for rows in study.tables:
        table = narrow_table(rows.title, rows.columns, 1)
        for row in rows.rows:
            table.add_row(*map(str, row))
        console.print(table)
    if arguments.out:
        _write(study, arguments.name, Path(arguments.out), console)
    if not arguments.check:
        return 0
    table = narrow_table("what must hold", ("", "measured", "wanted", "holds"), 4, fold=4, pad_edge=True)
    for one in study.expectations:
        table.add_row(one.what, one.measured, one.wanted, "yes" if one.holds else Text("NO", "red"))
    console.print(table)
    failed = sum(not one.holds for one in study.expectations)
    console.print(f"{len(study.expectations)} checked, {failed} do not hold")
    return 1 if failed else 0


def _write(study: Study, name: str, folder: Path, console: Console) -> None:
    from papers.memory.picture import draw
    from regbench.utils.files import explain_writing, write_rows

    with explain_writing(folder):
        for number, rows in enumerate(study.tables, 1):
            path = folder / f"{name}-{number}.csv"
            write_rows(path, rows.columns, rows.rows)
            print_line(f"table: {path}", console)
        path = folder / f"{name}.png"
        draw(study, name, path)
        print_line(f"picture: {path}", console)
