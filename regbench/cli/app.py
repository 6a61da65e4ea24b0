"""The command `regbench`: finds the command asked for, lets it parse, call and print, and says what went wrong.

Exit codes: 0 done; 1 a check said no; 2 the input was wrong, said in one line; 130 interrupted, and can be resumed.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from rich.console import Console

from regbench.cli import commands
from regbench.utils import threads
from regbench.utils.errors import UserError, nearest

_EXAMPLES = """\
examples:
  regbench run                                    train Mamba on pfa-small-v1 and score it (minutes on two cores)
  regbench run --arch transformer --seed 0 1 2    three seeds
  regbench run --arch my_mixer.py --set d_model=96 --set training.learning_rate=1e-3
  regbench data pfa-small-v1                      what the instances look like
  regbench ls                                     what there is
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, with the nearest known command."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice: " in message and "choose from" in message:
            given = message.split("invalid choice: ")[1].split(" (")[0].strip("'\"")
            known = message.split("choose from ")[1].rstrip(")").replace("'", "").split(", ")
            message = f"unknown choice '{given}'{nearest(given, known)}"
        raise UserError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    threads.wait_asleep()  # before a command imports PyTorch
    console = Console()
    try:
        parsed = _parser().parse_args(arguments)
        code: int = parsed.command(parsed, console)
    except UserError as error:
        print(f"regbench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("regbench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # e.g. `regbench ls | head`
        sys.stderr.close()
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="regbench",
        description="How well do sequence architectures learn in context? Train one, score it against a known truth.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    for module in pkgutil.iter_modules(commands.__path__):
        if module.name.startswith("_"):
            continue
        command = importlib.import_module(f"{commands.__name__}.{module.name}")
        summary = (command.__doc__ or "").partition("\n")[0]
        sub = subparsers.add_parser(
            module.name,
            help=summary,
            description=getattr(command, "DESCRIPTION", f"{summary[:1].upper()}{summary[1:]}."),
            epilog=_EXAMPLES if module.name == "run" else getattr(command, "EXAMPLES", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.configure(sub)
        sub.set_defaults(command=command.main)
    return parser
