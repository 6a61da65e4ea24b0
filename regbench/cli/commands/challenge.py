"""Ask an entry's weights about fresh instances."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.cli.arguments import add_own_track, own_track
from regbench.cli.lines import print_findings, print_line, tell

DESCRIPTION = (
    "Cuts instances that nobody has seen, asks the weights of an entry's run for the next token of each, and holds the scores "
    "against the claimed ones. If they agree the entry is verified, and NAME.evidence.json beside it says so. Else there is a "
    "line for each fault, and exit code 1. The entry is committed before: the instances follow from the commit."
)
EXAMPLES = """\
examples:
  regbench challenge leaderboard/entries/pfa-small-v1/gla-....json --run runs/gla --by NAME
  regbench challenge FILE --run DIR --by NAME --cuts 20000        four times as many, for a smaller error
  regbench challenge FILE --run DIR --by NAME --run-their-code    an architecture that is not built in, under bubblewrap
"""


def configure(challenge: argparse.ArgumentParser) -> None:
    challenge.add_argument("entry", metavar="FILE", help="an entry of the leaderboard")
    challenge.add_argument(
        "--run", metavar="DIR", required=True, help="the run that it was made from, with its weights"
    )
    challenge.add_argument("--by", metavar="NAME", required=True, help="who asks, for the evidence: not who submitted")
    challenge.add_argument(
        "--cuts", type=int, default=5000, metavar="N", help="fresh instances that are cut (default: 5000)"
    )
    challenge.add_argument(
        "--run-their-code", action="store_true", help="run an architecture that is not built in, under bubblewrap"
    )
    add_own_track(challenge)


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.leaderboard.challenge import challenge
    from regbench.leaderboard.store import find_entry
    from regbench.report.content import label
    from regbench.results import require_finished

    stored = find_entry(arguments.entry)
    require_finished(Path(arguments.run))
    found = challenge(
        stored,
        Path(arguments.run),
        by=arguments.by,
        track=own_track(arguments),
        cuts=arguments.cuts,
        run_their_code=arguments.run_their_code,
        announce=tell,
    )
    for metric, change in found.changes.items():
        fresh, expected = found.fresh[metric], found.expected[metric]
        name = label(metric, stored.entry.track)
        print_line(
            f"{name}: {fresh.value:.4f} on cut prompts, {expected.value:.4f} ± {expected.stderr:.4f} expected, "
            f"{change.change / max(change.noise, 1e-12):+.1f} standard errors (+ is better)",
            console,
        )
    print_line(f"{stored.path}: {'REFUSED' if found.findings.faults else 'verified'}, number {found.number}", console)
    print_findings(found.findings, console, "  ")
    return 1 if found.findings.faults else 0
