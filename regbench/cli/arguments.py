"""Arguments that several commands share: settings, the architecture, the track, the ops, the device."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from regbench.utils.errors import UserError, nearest
from regbench.utils.guard import Refused, parse_yaml

if TYPE_CHECKING:
    from regbench.tracks import Track


def one_of(*known: str) -> Callable[[str], str]:
    """The `type` of an argument that takes one of a few words. For any other a UserError names the nearest known one."""

    def read(text: str) -> str:
        if text not in known:
            raise UserError(f"unknown choice '{text}'{nearest(text, known)}")
        return text

    return read


def refuse_unused(arguments: argparse.Namespace, options: Iterable[str], why: str) -> None:
    for option in options:
        given = getattr(arguments, option)
        if given is not None and given is not False:  # 0 is given
            raise UserError(f"--{option.replace('_', '-')} {why}")


def read_settings(pairs: Sequence[str]) -> dict[str, object]:
    """Turns ["key=value", ...] into a dictionary. A value is read as YAML; where it is no YAML, it is text."""
    settings: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--set takes KEY=VALUE, not '{pair}'")
        if key in settings:
            raise UserError(f"--set gives '{key}' twice")
        try:
            settings[key] = parse_yaml(value, key)
        except Refused:
            settings[key] = value
    return settings


def add_instances(parser: argparse.ArgumentParser) -> None:
    """Declares which instances a trained model is asked about."""
    parser.add_argument(
        "--split",
        choices=("validation", "test"),
        default="validation",
        help="which instances; nothing may be chosen by the test split (default: validation)",
    )
    parser.add_argument("--limit", type=int, default=200, metavar="N", help="how many of them (default: 200)")


def add_named(parser: argparse.ArgumentParser) -> None:
    """Declares how the code and the track of a run of your own are named."""
    parser.add_argument("--arch", metavar="FILE", help="FILE.py[:CLASS], if the run is of an architecture of your own")
    parser.add_argument("--track", metavar="FILE", help="the YAML file, if the run is on a track of your own")


def add_own_track(parser: argparse.ArgumentParser) -> None:
    """Declares how a track of your own is named, where entries may be of one; see `own_track`."""
    parser.add_argument("--track", metavar="FILE", help="the YAML file of a track of your own")


def own_track(arguments: argparse.Namespace) -> Track | None:
    """The track of your own that is named, if there is one."""
    from regbench.tracks import load_track  # imports Numba

    return load_track(arguments.track) if arguments.track else None


def add_architecture(parser: argparse.ArgumentParser) -> None:
    """Declares what `run` and `check` share. There are no defaults here: what is not given stays None."""
    parser.add_argument(
        "--track", metavar="T", help="a name from `regbench ls tracks`, or a YAML file (default: pfa-small-v1)"
    )
    meaning = "an option of the architecture (`regbench ls architectures NAME` lists them), or training.KEY=VALUE"
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help=meaning)
    parser.add_argument(
        "--ngram-heads", metavar="N,N,...", help="put n-gram heads of these orders into the architecture"
    )
    parser.add_argument("--ngram-after", metavar="M,...", help="after which blocks, counted from 1 (default: 1)")
    parser.add_argument(
        "--backend",
        metavar="B",
        help="implementation of the ops: auto (default), naive, cpu, mamba-ssm, ...; or OP=B,OP=B for some of them",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda, or auto (default)")


def given_settings(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings of --set, --ngram-heads and --ngram-after as one dictionary."""
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
    """Sends what an architecture's own code prints to stderr. Stdout holds only what the command prints."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
