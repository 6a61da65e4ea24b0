"""The command `regbench`: finds the command, lets it parse, call and print, and prints what went wrong.

Exit codes: 0 done; 1 a check said no; 2 the input was wrong, said in one line; 130 interrupted, and can be resumed.
SIGTERM, which job schedulers send, interrupts as Ctrl-C does.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.metadata
import pkgutil
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from textwrap import fill
from typing import NoReturn

from rich.console import Console

from regbench.cli import commands
from regbench.training.options import OTHER_NAMES, TrainingOptions
from regbench.utils import registry, threads
from regbench.utils.errors import UserError, closest, escaped, nearest

_EXAMPLES = """\
examples:
  regbench run                                    train Mamba on pfa-small-v1 and score it (minutes on two cores)
  regbench run --arch transformer --seed 0 1 2    three seeds
  regbench run --arch my_mixer.py --set d_model=96 --set training.learning_rate=1e-3
  regbench data pfa-small-v1                      what the instances look like
  regbench ls                                     what there is
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises its complaints, so that they become one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    threads.wait_asleep()  # before a command imports PyTorch
    if isinstance(sys.stdout, TextIOWrapper):  # on stderr Python does so by itself
        sys.stdout.reconfigure(errors="replace")  # a terminal or a file may have no "±"
    # Names of users' files are printed as they are: brackets in them are no markup, words no emoji, numbers have no colour.
    console = _Console(markup=False, emoji=False, highlight=False)
    try:
        with _terminated_as_interrupted():
            parsed = _parse(sys.argv[1:] if arguments is None else arguments)
            code: int = parsed.command(parsed, console)
    except UserError as error:
        print(f"regbench: {escaped(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # e.g. `regbench ls | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO):
            wrong = f"the output cannot be written: {error.strerror}"
        elif error.filename is None:
            raise
        elif error.errno == errno.ENAMETOOLONG:
            wrong = f"{str(error.filename)[:60]}... is longer than a file's name can be"
        else:
            wrong = f"{error.filename}: {error.strerror}"
        print(f"regbench: {escaped(wrong)}", file=sys.stderr)
        return 2
    return code


class _Console(Console):
    """Stops the command where nobody reads on, as `print` does. Rich ends the process with exit code 1."""

    def on_broken_pipe(self) -> None:
        with suppress(SystemExit):
            super().on_broken_pipe()  # what is left goes nowhere
        raise BrokenPipeError


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt meanwhile, so that the command says how to go on and leaves nothing behind."""
    if threading.current_thread() is not threading.main_thread():  # only there can a handler be set
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    if not arguments or arguments[0] == "help":  # `regbench`, `regbench help`, `regbench help run`
        arguments = [*arguments[1:2], "--help"]
    own = _commands()
    papers = registry.paper_commands(own)
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    if name is not None and name not in own | papers:
        raise UserError(f"unknown command '{name}'{nearest(name, own | papers)}")
    # The modules of the other commands stay unread: some import PyTorch and matplotlib, which takes seconds.
    parser, subparsers = _parsers(own if name is None else {name: (own | papers)[name]}, papers)
    try:
        parsed, unknown = parser.parse_known_args(arguments)
    except UserError as error:
        word = arguments[1] if len(arguments) == 2 else ""  # `regbench check my_mixer.py` lacks a flag, `--arch`
        strange = word and name is not None and word not in _flags(subparsers[name])
        raise UserError(f"{error}{_hint(word, subparsers[str(name)])}" if strange else str(error)) from None
    if unknown:
        hint = "; a command comes first" if name is None else _hint(unknown[0], subparsers[name])
        raise UserError(f"unrecognized argument '{unknown[0]}'{hint}")
    for action in subparsers[name]._actions if name is not None else ():
        value = getattr(parsed, action.dest, None)
        if value != action.default and "" in (
            value if isinstance(value, list) else [value]
        ):  # as a path it would be "."
            what = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
            raise UserError(f"{what} is empty: give it a value, or leave it out")
    return parsed


def _commands() -> dict[str, str]:
    return {module.name: f"{commands.__name__}.{module.name}" for module in pkgutil.iter_modules(commands.__path__)}


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]


def _hint(word: str, parser: argparse.ArgumentParser) -> str:
    """What a word may have meant that the parser of a command does not take."""
    from regbench.models.mixer import Options  # imports PyTorch
    from regbench.tracks import track_names  # imports Numba

    flags = _flags(parser)
    key, equals, value = word.removeprefix("--").partition("=")
    written = {flag[2:].replace("-", "_"): flag for flag in flags}
    if "--set" in flags:
        settings = {name: f"training.{name}" for name in TrainingOptions.model_fields}
        settings |= {other: settings[name] for other, name in OTHER_NAMES.items()}
        settings |= {name: name for name in Options.model_fields}
        written = {name: f"--set {setting}={value or 'VALUE'}" for name, setting in settings.items()} | written
    if word.startswith("-"):
        meant = closest(key.lower().replace("-", "_"), written)
        return f"; did you mean '{written[meant]}'?" if meant else f"; known: {', '.join(sorted(flags))}"
    if "--set" in flags and equals:
        return f"; did you mean '{written.get(key, f'--set {word}')}'?"
    if "--arch" in flags and (registry.is_file(word) or word in registry.entries(registry.ARCHITECTURE)):
        return f"; did you mean '--arch {word}'?"
    if "--track" in flags and word in track_names():
        return f"; did you mean '--track {word}'?"
    return ""


def _parsers(
    modules: Mapping[str, str], papers: Iterable[str]
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command line for the commands in these modules, and those of the commands by name.

    The help has a line for each of them, and one line for the names of all commands of papers.
    """
    parser = _Parser(
        prog="regbench",
        description="How well do sequence architectures learn in context? Train one, score it against a known truth.",
        epilog=f"commands of papers: {', '.join(papers)}\n\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"regbench {importlib.metadata.version('regbench')}")
    found: dict[str, argparse.ArgumentParser] = {}
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, module in modules.items():
        command = importlib.import_module(module)
        summary = (command.__doc__ or "").partition("\n")[0].removesuffix(".")
        sub = subparsers.add_parser(
            name,
            help=f"{summary[:1].lower()}{summary[1:]}".rstrip("."),
            description=fill(getattr(command, "DESCRIPTION", summary), max(20, shutil.get_terminal_size().columns - 2)),
            epilog=_EXAMPLES if name == "run" else getattr(command, "EXAMPLES", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.configure(sub)
        sub.set_defaults(command=command.main)
        found[name] = sub
    return parser, found
