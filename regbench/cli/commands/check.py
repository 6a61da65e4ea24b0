"""Check that an architecture keeps its contract."""

from __future__ import annotations

import argparse
import re

from rich.console import Console
from rich.text import Text

from regbench.cli.arguments import add_architecture, apart_from_stdout, given_settings
from regbench.cli.lines import stderr
from regbench.utils import registry

DESCRIPTION = "Runs every check of the contract on an architecture. Exit code 1 where one fails."


def configure(check: argparse.ArgumentParser) -> None:
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument("--arch", metavar="NAME|FILE[:CLASS]", help="a name from `regbench ls`, or your own file")
    which.add_argument("--all", action="store_true", help="every registered architecture")
    add_architecture(check)


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints a line for each check. The architecture is built and trained as `regbench run` does it with the same options."""
    from regbench.checks.architecture import CONTRACT
    from regbench.checks.contract import examine
    from regbench.checks.subject import Subject
    from regbench.checks.task import examine_task_once
    from regbench.models.model import find_device
    from regbench.ops.backend import require_use, use_backend
    from regbench.tracks import load_track
    from regbench.training.options import resolve_settings

    names = list(registry.entries(registry.ARCHITECTURE)) if arguments.all else [arguments.arch]
    track = load_track(arguments.track or "pfa-small-v1")
    examine_task_once(track)
    device, backend = find_device(arguments.device or "auto"), arguments.backend or "auto"
    with use_backend(backend):
        pass  # an unknown op or implementation is refused at once
    settings = given_settings(arguments)
    meaning = {check.__name__: (check.__doc__ or "").partition("\n")[0] for check in CONTRACT}
    faults, progress = 0, stderr()
    for name in names:
        with apart_from_stdout():
            cls = registry.load(registry.ARCHITECTURE, name)
        options, training = resolve_settings(cls, settings)
        subject = Subject(cls, options, track.task.io, device, training, track.task)
        console.print(Text(registry.short_name(name), "bold"))
        ran: dict[str, str] = {}
        causes: dict[str, str] = {}  # by fault the check that found it first
        for check in CONTRACT:
            with apart_from_stdout(), use_backend(backend) as used, progress.status(f"checking: {check.__name__}"):
                (outcome,) = examine(subject, [check])
            ran |= used
            faults += outcome.fault is not None
            mark = ("FAILS", "red") if outcome.fault else "  —  " if outcome.note else ("holds", "green")
            text = outcome.fault or outcome.note or meaning[outcome.check]
            if outcome.fault:
                cause = re.sub(r"\d+", "", outcome.fault)  # shapes and positions may differ
                if causes.setdefault(cause, outcome.check) != outcome.check:
                    text = f"for the same reason as {causes[cause]}"
            console.print(Text.assemble("  ", mark, f"  {outcome.check:18} {text}"), soft_wrap=True)
        if not arguments.all:
            require_use(backend, ran)
    console.print(f"{len(names)} checked, {faults} fault{'s' * (faults != 1)}")
    return 1 if faults else 0
