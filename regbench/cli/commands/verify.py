"""Check entries of the leaderboard, or a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from regbench.cli.arguments import add_own_track, own_track, refuse_unused
from regbench.cli.lines import print_findings, print_line, tell
from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.leaderboard.claim import Findings
    from regbench.leaderboard.store import Stored

DESCRIPTION = (
    "Checks an entry, every entry of a folder, or a run that is to become one. Nothing that came with it is executed. "
    "If something is wrong there is a line for each fault, and exit code 1."
)
EXAMPLES = """\
examples:
  regbench verify leaderboard                                     every entry
  regbench verify leaderboard/entries/pfa-small-v1/gla-....json   one entry
  regbench verify FILE --run runs/gla --checkpoint                against the run it was made from, and its weights
  regbench verify runs/gla                                        whether `regbench submit` would take this run
  regbench verify leaderboard --contribution origin/main          what this branch adds, which is no evidence
"""


def configure(verify: argparse.ArgumentParser) -> None:
    verify.add_argument("what", metavar="FILE|DIR", help="an entry, a folder of entries, or a run folder")
    verify.add_argument(
        "--run",
        metavar="DIR",
        help="the run an entry was made from: its scores are computed again",
    )
    verify.add_argument(
        "--checkpoint", action="store_true", help="also predict again with the run's weights (built-in architectures)"
    )
    verify.add_argument(
        "--contribution", metavar="BASE", help="of a folder: only entries that have changed since BASE, and no evidence"
    )
    verify.add_argument(
        "--source", metavar="FILE", help="of a run: the file of an architecture of your own, if it was moved"
    )
    add_own_track(verify)


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.leaderboard.against_run import repredict
    from regbench.leaderboard.verify import contributed, verify_entry, verify_run
    from regbench.results import require_finished

    path, announce, brought = Path(arguments.what), tell, list[str]()
    track = own_track(arguments)
    run = Path(arguments.run) if arguments.run else None
    if path.is_dir() and any((path / name).exists() for name in ("result.json", "config.yaml")):
        refuse_unused(arguments, ("run", "contribution"), f"goes with entries, and {path} is a run")
        require_finished(path)
        run = path
        source = Path(arguments.source) if arguments.source else None
        found: Iterable[tuple[Path, Findings]] = [(path, verify_run(path, track, source, announce)[1])]
    else:
        entries = _entries(arguments)
        if arguments.contribution:
            changed, brought = contributed(path, arguments.contribution)
            entries = [stored for stored in entries if {*stored.files} & {*changed}]
            for line in brought:
                print_line(f"REFUSED: {line}", console)
        refuse_unused(arguments, ("source",), f"goes with a run, and {path} is none: an entry's source lies beside it")
        if run is not None:
            require_finished(run)
        found = ((one.path, verify_entry(one, track=track, run=run, announce=announce)) for one in entries)
    refused = bool(brought)
    for file, findings in found:  # each is printed when it is checked
        if arguments.checkpoint and not findings.faults:
            if run is None:
                raise UserError("--checkpoint needs the run: --run DIR")
            repredict(run, findings, track, announce=announce)
        print_line(f"{file}: {'REFUSED' if findings.faults else 'ok'}", console)
        print_findings(findings, console, "  ")
        refused = refused or bool(findings.faults)
    return int(refused)


def _entries(arguments: argparse.Namespace) -> list[Stored]:
    """The entry whose file is named, or all entries of a folder."""
    from regbench.leaderboard.store import find_entry, stored_in
    from regbench.utils.files import runs_in

    path = Path(arguments.what)
    if not path.is_dir():
        refuse_unused(arguments, ("contribution",), f"goes with a folder, and {path} is none")
        return [find_entry(arguments.what)]
    inside = runs_in(path)
    some = path.name == "entries" or (path / "entries").is_dir() or any(path.glob("*.json"))
    entries = stored_in(path) if some and not inside else []
    if not entries:
        raise UserError(f"{path} holds neither a run nor entries{inside}")
    if arguments.run or arguments.checkpoint:
        raise UserError("--run and --checkpoint go with one entry")
    return entries
