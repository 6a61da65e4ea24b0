"""docs/mechanisms.md: its commands are understood, and its tables name what the commands print."""

from __future__ import annotations

import runpy
import shlex

import pytest

from regbench.analysis.attention import SHARP
from regbench.analysis.errors import FEATURES
from regbench.analysis.key_sets import CONTRASTS, KINDS
from regbench.analysis.probes import TARGETS
from regbench.cli.app import _parse
from tests.helpers.documents import ROOT, body_rows, commands, section

PAGE = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", commands(PAGE))
def test_commands_are_understood(command: str) -> None:
    assert _parse(shlex.split(command)[1:]).command


def test_the_figure_is_of_the_tables() -> None:
    """It carries the digest of the readings it was drawn from."""
    path = ROOT / "docs" / "figures" / "probes.py"
    script = runpy.run_path(str(path))
    small, medium = found = script["readings"]()
    assert script["digest"](found) in path.with_suffix(".svg").read_text(encoding="utf-8"), (
        "draw it again: make figures"
    )
    assert set(small) == set(medium) == set(script["TARGETS"])
    assert (len(small["state"]["mamba"]), len(medium["state"]["mamba"])) == (1, 3)
    assert all(
        0 < value < 1 for of in found for columns in of.values() for cells in columns.values() for value in cells
    )


def test_tables_name_what_is_printed() -> None:
    sets = [
        name.strip("` ")
        for row in body_rows(section(PAGE, "## Attention: what heads attend to"))[:6]
        for name in row[0].split(",")
    ]
    assert sets == [*KINDS, *CONTRASTS]
    assert set(SHARP) <= set(sets)
    probes = [row[0] for row in body_rows(section(PAGE, "## Probes: what hidden states hold"))]
    kinds = dict.fromkeys(target.name.rsplit("-", 1)[0] for targets in TARGETS.values() for target in targets)
    assert probes[:4] == [f"{kind}-n" if kind != "state" else kind for kind in kinds]
    assert len(body_rows(section(PAGE, "## Errors: where it errs"))) == len(FEATURES)
