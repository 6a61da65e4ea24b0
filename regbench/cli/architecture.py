"""What `run` and `check` alike are told of an architecture: its options, its n-gram heads, the track, the ops, the device."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

from regbench.cli.settings import add_settings, read_settings
from regbench.utils.errors import UserError


def add_architecture(parser: argparse.ArgumentParser) -> None:
    """Declares them, without defaults: whether an option is given decides what it overrides, and `run --resume` takes none."""
    parser.add_argument(
        "--track", metavar="T", help="a name from `regbench ls tracks`, or a YAML file (default: pfa-small-v1)"
    )
    add_settings(
        parser, "an option of the architecture (`regbench ls architectures NAME` lists them), or training.KEY=VALUE"
    )
    parser.add_argument(
        "--ngram-heads", metavar="N,N,...", help="put n-gram heads of these orders into the architecture"
    )
    parser.add_argument("--ngram-after", metavar="M,...", help="after which blocks, counted from 1 (default: 1)")
    parser.add_argument(
        "--backend",
        metavar="B",
        help="form of the ops: auto (default), naive, cpu, mamba-ssm, ...; or OP=B,OP=B for some of them",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda, or auto (default)")


def given_settings(arguments: argparse.Namespace) -> dict[str, object]:
    """--set, --ngram-heads and --ngram-after as one dictionary.

    Raises:
        UserError: a pair that is none, a key given twice, or n-gram flags that say nothing.
    """
    if arguments.ngram_after is not None and arguments.ngram_heads is None:
        raise UserError("--ngram-after says where --ngram-heads stand: give those too")
    flags = {"ngram_heads": arguments.ngram_heads, "ngram_after": arguments.ngram_after}
    pairs = []
    for key, value in flags.items():
        if value is not None and not value.strip():
            raise UserError(f"--{key.replace('_', '-')} is empty: give numbers, as in --{key.replace('_', '-')} 1,2")
        pairs += [f"{key}=[{value}]"] if value is not None else []
    return read_settings(pairs + arguments.settings)


@contextlib.contextmanager
def apart_from_stdout() -> Iterator[None]:
    """What an architecture's own code prints goes to stderr: stdout holds what the command was asked for."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
