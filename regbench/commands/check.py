"""ask an architecture every line of the contract"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape

from regbench import registry
from regbench.commands._settings import add_settings, read_settings

DESCRIPTION = "Asks an architecture every line of the contract. Exit code 1 where a line does not hold."


def configure(check: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument("--arch", metavar="NAME|FILE[:CLASS]", help="a name from `regbench ls`, or your own file")
    which.add_argument("--all", action="store_true", help="every registered architecture")
    add_settings(check, "an option of it")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints a line for each line of the contract."""
    from regbench.contract import CONTRACT, Subject, examine
    from regbench.models.build import resolve_options
    from regbench.tracks import load_track

    names = list(registry.entries(registry.ARCHITECTURE)) if arguments.all else [arguments.arch]
    task_io = load_track("pfa-small-v1").task.io
    meaning = {check.__name__: (check.__doc__ or "").partition("\n")[0] for check in CONTRACT}
    faults = 0
    for name in names:
        cls = registry.load(registry.ARCHITECTURE, name)
        subject = Subject(cls, resolve_options(cls, read_settings(arguments.settings)), task_io)
        console.print(f"[bold]{registry.short_name(name)}[/]")
        for outcome in examine(subject):
            faults += outcome.fault is not None
            mark = "[red]FAILS[/]" if outcome.fault else "  —  " if outcome.note else "[green]holds[/]"
            text = outcome.fault or outcome.note or meaning[outcome.check]
            console.print(f"  {mark}  {outcome.check:18} {escape(text)}", highlight=False, soft_wrap=True)
    console.print(f"{len(names)} examined, {faults} lines of the contract broken", highlight=False)
    return 1 if faults else 0
