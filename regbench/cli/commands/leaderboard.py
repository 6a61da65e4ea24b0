"""Rank the entries and write the leaderboard's tables."""

from __future__ import annotations

import argparse
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import add_own_track, own_track
from regbench.cli.lines import print_line, tell
from regbench.report.table import folded, narrow_table, plain, print_fitting

if TYPE_CHECKING:
    from regbench.leaderboard.rank import Board

DESCRIPTION = (
    "Ranks the entries of every track and writes the tables (Markdown, CSV, LaTeX). With --check nothing is written, and the "
    "exit code is 1 if tables are out of date. With --page it writes a page with the same tables and with curves, and no table."
)


def configure(leaderboard: argparse.ArgumentParser) -> None:
    what = leaderboard.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only say whether the tables are up to date")
    what.add_argument("--page", metavar="FILE.html", help="only write the page there")
    leaderboard.add_argument("--board", metavar="DIR", help="the leaderboard's folder (default: leaderboard/)")
    add_own_track(leaderboard)


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.leaderboard.page import build_page
    from regbench.leaderboard.publish import BASELINES, baselines_file, load_boards, outdated, render, write
    from regbench.leaderboard.spread import SPREAD, spread_file
    from regbench.leaderboard.store import find_board
    from regbench.leaderboard.table import TABLE, table
    from regbench.utils.files import atomic_write, explain_writing, require_writable_files

    require_writable_files(arguments.page)
    folder = find_board(arguments.board)
    track, announce = own_track(arguments), tell
    boards, faults = load_boards(folder, track, announce)
    for fault in faults:
        print_line(fault, console)
    if faults:
        line = f"{len(faults)} fault{'s' * (len(faults) > 1)} in the entries: `regbench verify {folder}` says more"
        print_line(line, console)
        return 1
    if arguments.page is not None:
        with explain_writing(Path(arguments.page).parent), atomic_write(Path(arguments.page)) as file:
            file.write(build_page(boards))
        print_line(f"page: {arguments.page}", console)
        return 0
    files = {
        **render(boards),
        BASELINES: baselines_file(folder, boards, track, announce),
        SPREAD: spread_file(folder, {board.digest: board.priors for board in boards}),
    }
    if (folder / TABLE).parent.is_dir():
        files[TABLE] = table(boards)
    changed = outdated(folder, files)
    if arguments.check:
        for name in changed:
            print_line(f"{normpath(folder / name)} does not agree with the entries", console)
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
    known = [board.known[metric] for metric in board.metrics]
    heads = [metric.heading.replace(" ", "\n", metric.label.count(" ")) for metric in known]
    table = narrow_table(board.track, ["", "predictor", *heads], 2, pad_edge=True)
    table.columns[0].justify = "right"
    for row in board.rows:
        scores = [plain(row.scores[metric]) for metric in board.metrics]
        table.add_row(row.place, folded(row.title), *scores, style=None if row.kind == "entry" else "dim")
    return table
