"""Make a finished run an entry of the leaderboard, or put a language model beside them."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rich.console import Console

from regbench.cli.arguments import add_own_track, own_track, refuse_unused
from regbench.cli.lines import print_findings, print_line, tell

DESCRIPTION = (
    "Checks a run folder by the rules of the leaderboard, computes its scores again from the stored predictions, and writes its "
    "entry. It names every file that it overwrites or removes. A refused run gives a line for each fault and exit code 1."
)
EXAMPLES = """\
examples:
  regbench run --arch gla --seed 0 1 2 --out runs/gla
  regbench submit runs/gla
  regbench submit runs/gla --name gla-default --by NAME
  regbench submit runs/gpt2                                          of `regbench evaluate hf:gpt2 --out runs/gpt2`
"""


def configure(submit: argparse.ArgumentParser) -> None:
    submit.add_argument("run", metavar="DIR", help="the folder of a finished run, or of a scored language model")
    submit.add_argument("--name", metavar="N", help="the entry's name (default: from what was set)")
    submit.add_argument(
        "--by", metavar="NAME", help="your name, for the evidence: somebody else must reproduce the entry"
    )
    submit.add_argument("--replace", action="store_true", help="take the place of the entry of the same configuration")
    submit.add_argument("--board", metavar="DIR", help="the leaderboard's folder (default: leaderboard/)")
    submit.add_argument("--source", metavar="FILE", help="the file of an architecture of your own, if it was moved")
    add_own_track(submit)


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.evaluation.language_models import language_model_result, submit_language_model
    from regbench.leaderboard.store import find_board
    from regbench.leaderboard.verify import submit
    from regbench.results import require_finished

    place = find_board(arguments.board)
    require_finished(Path(arguments.run))
    given = [(option, value) for option in ("board", "track") if (value := getattr(arguments, option))]
    options = "".join(f" --{option} {shlex.quote(value)}" for option, value in given)
    result = language_model_result(Path(arguments.run))
    if result is not None:
        refuse_unused(arguments, ("by", "source", "track"), "is not for a language model")
        path = submit_language_model(Path(arguments.run), result, place, name=arguments.name, replace=arguments.replace)
        print_line(f"{path}; next: regbench leaderboard{options}", console)
        return 0
    made = submit(
        Path(arguments.run),
        place,
        name=arguments.name,
        by=arguments.by,
        replace=arguments.replace,
        source=Path(arguments.source) if arguments.source else None,
        track=own_track(arguments),
        announce=tell,
    )
    print_findings(made.findings, console)
    if made.path is None:
        count = len(made.findings.faults)
        line = f"refused: {count} fault{'s' * (count > 1)} in {arguments.run}"
        print_line(line, console)
        return 1
    for what, files in (("overwrote", made.replaced), ("removed", made.removed)):
        for old in files:
            print_line(f"{what} {old}", console)
    print_line(f"{made.path}; next: regbench leaderboard{options}", console)
    return 0
