"""Rank the entries and write the leaderboard's tables and page."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import add_own_track, own_track
from regbench.cli.lines import print_line, tell
from regbench.cli.tables import folded, print_fitting

if TYPE_CHECKING:
    from regbench.leaderboard.rank import Board

DESCRIPTION = (
    "Ranks the entries of every track and writes the tables (Markdown, CSV, LaTeX) and the page. With --check nothing is "
    "written, and the exit code is 1 if tables or page are out of date."
)


def configure(leaderboard: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    leaderboard.add_argument("--check", action="store_true", help="only say whether tables and page are up to date")
    leaderboard.add_argument("--board", metavar="DIR", help="the leaderboard's folder (default: leaderboard/)")
    add_own_track(leaderboard)


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints the ranking of every track, or what disagrees."""
    from regbench.leaderboard.publish import BASELINES, baselines_file, load_boards, outdated, render, write
    from regbench.leaderboard.store import find_board

    folder = find_board(arguments.board)
    track, announce = own_track(arguments), tell
    boards, faults = load_boards(folder, track, announce)
    for fault in faults:
        print_line(fault, console)
    if faults:
        line = f"{len(faults)} fault{'s' * (len(faults) > 1)} in the entries: `regbench verify {folder}` says more"
        print_line(line, console)
        return 1
    files = {**render(boards), BASELINES: baselines_file(folder, boards, track, announce)}
    changed = outdated(folder, files)
    if arguments.check:
        for name in changed:
            print_line(f"{folder / name} does not agree with the entries", console)
        console.print(f"{sum(len(b.entries) for b in boards)} entries, {len(changed)} files to write")
        return 1 if changed else 0
    write(folder, files)
    for name in changed:
        if name not in files:
            print_line(f"removed {folder / name}", console)
    for board in boards:
        print_fitting(_table(board), console, names=2)
    print_line(f"{folder}: {len(changed)} of {len(files)} files written", console)
    return 0


def _table(board: Board) -> Table:
    table = Table(title=board.track, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", justify="right")
    table.add_column("predictor", no_wrap=True)
    for metric in board.metrics:
        head = board.known[metric].heading.replace(" ", "\n", board.known[metric].label.count(" "))
        table.add_column(head, justify="right", no_wrap=True)
    for row in board.rows:
        scores = [f"{row.scores[m].value:.3f} ±{row.scores[m].stderr:.3f}" for m in board.metrics]
        name = f"{row.name} ({row.mark})" if row.mark else row.name
        table.add_row(row.place, folded(name), *scores, style=None if row.kind == "entry" else "dim")
    return table
