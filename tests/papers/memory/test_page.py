"""docs/papers/memory.md keeps its word: its commands are read, and its tracks, options and studies are there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from papers.memory.study import study_names
from regbench.cli.app import _parse
from regbench.cli.arguments import given_settings
from regbench.config import OF_TRAINING, parted
from regbench.models.build import resolve_options
from regbench.tracks import load_track
from regbench.training.options import resolve_training
from regbench.utils import registry
from tests.helpers.documents import ROOT, blocks, commands

PAGE = (ROOT / "docs" / "papers" / "memory.md").read_text(encoding="utf-8")
RUNS = sorted({line for _, block in blocks(PAGE) for line in block.splitlines() if line.startswith("regbench run ")})


@pytest.mark.parametrize("command", RUNS)
def test_what_filled_the_table_can_be_asked_for(command: str) -> None:
    arguments = _parse(shlex.split(command)[1:])
    assert load_track(arguments.track).definition.task == "bigram"
    training, own = parted(given_settings(arguments), OF_TRAINING)
    cls = registry.load(registry.ARCHITECTURE, arguments.arch)
    resolve_options(cls, own)
    resolve_training(cls, training)
    assert f"`{Path(arguments.out).name}`" in PAGE, "a row of the table names the run"


def test_every_study_is_run_and_has_a_row() -> None:
    assert len(RUNS) == 15
    asked = {_parse(words).name for command in commands(PAGE) if (words := shlex.split(command)[1:])[0] == "study"}
    assert asked == {None, *study_names()}
    assert all(f"`{name}`" in PAGE for name in study_names())
