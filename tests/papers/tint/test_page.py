"""The commands of `docs/papers/tint.md` and `docs/papers/adapt.md` are commands, and every option of TinT is named."""

from __future__ import annotations

import shlex

import pytest

from architectures.tint import TinT
from regbench.cli.app import _parse
from tests.helpers.documents import ROOT, commands

DOCS = ROOT / "docs" / "papers"
TEXT, ADAPT = ((DOCS / name).read_text(encoding="utf-8") for name in ("tint.md", "adapt.md"))


@pytest.mark.parametrize("command", commands(TEXT + ADAPT))
def test_its_commands_are_understood(command: str) -> None:
    name, *arguments = shlex.split(command)
    assert name == "regbench"
    assert callable(_parse(arguments).command)


def test_it_names_every_option_of_its_own() -> None:
    for option in TinT.Options.__annotations__:
        assert f"`{option}`" in TEXT or f"`{option}=" in TEXT or option in ("n_layers", "positions"), option
