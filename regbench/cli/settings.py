"""`--set KEY=VALUE` as the commands share it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import yaml

from regbench.utils.errors import UserError
from regbench.utils.files import parse_yaml


def add_settings(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declares `--set`, which may be given many times."""
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help=meaning)


def read_settings(pairs: Sequence[str]) -> dict[str, object]:
    """["key=value", ...] as a dictionary; values are read as YAML, and as text where they are none.

    Raises:
        UserError: a pair without "=", or a key given twice.
    """
    settings: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--set takes KEY=VALUE, not '{pair}'")
        if key in settings:
            raise UserError(f"--set gives '{key}' twice")
        try:
            settings[key] = parse_yaml(value)
        except yaml.YAMLError:
            settings[key] = value
    return settings
