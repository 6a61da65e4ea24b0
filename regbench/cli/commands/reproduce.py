"""Train a leaderboard entry again and compare the scores."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.cli.arguments import add_own_track, own_track
from regbench.cli.lines import print_line, stderr, tell
from regbench.report.table import narrow_table, print_fitting
from regbench.training.terminal import TerminalReporter
from regbench.utils.errors import UserError

DESCRIPTION = (
    "Runs the configuration of an entry again and compares every score. With the same machine and versions the predictions are "
    "the same to the bit. Elsewhere scores agree within the noise of seeds and instances. Exit code 1 if a score does not."
)
EXAMPLES = """\
examples:
  regbench reproduce leaderboard/entries/pfa-small-v1/mamba-....json             all seeds of the entry
  regbench reproduce leaderboard/entries/pfa-small-v1/mamba-....json --seed 0    one of them
  regbench reproduce FILE --run DIR --by NAME --run-their-code    an architecture that is not built in: you trained its file
"""


def configure(reproduce: argparse.ArgumentParser) -> None:
    reproduce.add_argument("entry", metavar="FILE", help="an entry of the leaderboard")
    reproduce.add_argument(
        "--seed", type=int, nargs="+", default=[], metavar="N", help="which of its seeds (default: all)"
    )
    reproduce.add_argument(
        "--out", metavar="DIR", help="the run folder (default: under runs/reproduced/); an unfinished run goes on"
    )
    reproduce.add_argument(
        "--run", metavar="DIR", help="a finished run of the same configuration, e.g. of a sweep: nothing is trained"
    )
    reproduce.add_argument(
        "--by", metavar="NAME", help="your name, for the evidence beside the entry: it is then reproduced (all seeds)"
    )
    reproduce.add_argument(
        "--run-their-code",
        action="store_true",
        help="with --run and --by: let the weights of an architecture that is not built in predict, under bubblewrap",
    )
    add_own_track(reproduce)


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.leaderboard.reproduce import check_reproducer, keep_reproduction, reproduce
    from regbench.leaderboard.store import find_entry
    from regbench.report.content import label

    stored = find_entry(arguments.entry)
    if arguments.run and (arguments.seed or arguments.out):
        raise UserError("--run takes a finished run as it is: leave --seed and --out away")
    if arguments.run_their_code and not (arguments.run and arguments.by):
        raise UserError("--run-their-code goes with --run and --by")
    if arguments.by is not None:
        check_reproducer(stored, arguments.by, run_their_code=arguments.run_their_code)
        if arguments.seed:
            raise UserError("--by goes with all seeds: leave --seed away")
    with TerminalReporter(stderr()) as reporter:
        made = reproduce(
            stored,
            seeds=arguments.seed,
            out=Path(arguments.out) if arguments.out else None,
            run=Path(arguments.run) if arguments.run else None,
            track=arguments.track,
            reporter=reporter,
            announce=reporter.phase,
        )
    seeds, all_seeds = [seed.seed for seed in made.result.seeds], [seed.seed for seed in made.entry.result.seeds]
    entry, again = (f"{what}\n({', '.join(map(str, of))})" for what, of in (("entry", all_seeds), ("again", seeds)))
    heads = ("score", entry, again, "difference", "within\nnoise", "")
    table = narrow_table(f"{made.entry.name} on {made.entry.track}, mean over seeds", heads, 1)
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for metric, change in made.changes.items():
        then, now = (result.score(metric).value for result in (made.entry.result, made.result))
        verdict = "the same"
        if metric in made.differs:
            verdict = "different" if change.worse or change.better else "different by the entry's noise alone"
        cells = (f"{then:.4f}", f"{now:.4f}", f"{now - then:+.4f}", f"± {change.allowed:.4f}")
        table.add_row(label(metric, made.entry.track), *cells, verdict)
    print_fitting(table, console)
    same = f"seed{'s' * (len(made.identical) > 1)} {', '.join(map(str, made.identical))}" if made.identical else "none"
    rest = "; what differs above is the entry's other seeds" if list(made.identical) == seeds != all_seeds else ""
    console.print(f"predictions the same to the bit: {same}{rest}")
    print_line(f"the run: {made.folder}", console)
    if arguments.by and not made.differs:
        own = own_track(arguments)
        keep_reproduction(made, arguments.by, own, run_their_code=arguments.run_their_code, announce=tell)
        print_line(f"{arguments.entry}: reproduced by {arguments.by}", console)
    return 1 if made.differs else 0
