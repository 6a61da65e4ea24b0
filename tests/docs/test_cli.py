"""docs/cli.md keeps its word: its commands run, and it has every command and every file of a run."""

from __future__ import annotations

import pkgutil
import re
import shlex
from pathlib import Path

import pytest
import yaml

from regbench import cli
from regbench.cli import commands as room
from regbench.models.build import resolve_options
from regbench.utils import registry
from tests.helpers.documents import ROOT, body_rows, commands, section

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_command_is_listed() -> None:
    there = [module.name for module in pkgutil.iter_modules(room.__path__)]
    of_papers = registry.paper_commands()
    assert {row[0] for row in body_rows(PAGE.partition("\n## ")[0])} == {*there, *of_papers}
    assert of_papers.keys() == {"adapt", "analyze", "recall", "specialize", "study", "tint"}


@pytest.mark.ci
@pytest.mark.parametrize("command", commands(PAGE))
def test_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand there, on a smaller track and with few tokens where they would train for minutes."""
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command)[1:]
    small = ["--track", str(tiny_file), "--set", "d_model=16"]
    if "--resume" in arguments:
        assert cli.main(["run", "--arch", "lstm", *small, "--out", "runs/..."]) == 0
        assert files_of(Path("runs/...")) == listed_files()
    elif "--suite" in arguments:
        Path("suite.yaml").write_text(yaml.safe_dump({"name": "tiny", "tracks": [str(tiny_file)]}))
        arguments[arguments.index("--suite") + 1] = "suite.yaml"
        arguments += small[2:]
    elif arguments[0] == "run":
        arguments += small
    elif arguments[0] == "check":
        monkeypatch.setattr("regbench.checks.training.OVERFIT_STEPS", 25)  # its outcome is another test's
        monkeypatch.setattr("torch.compile", lambda model, **_: model)
        assert cli.main(arguments) in (0, 1)
        return
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out


def files_of(folder: Path) -> set[str]:
    """What a run has left, of a seed by the name `seed-N`."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name.replace("seed-0", "seed-N") for name in found} - {".lock"}


def listed_files() -> set[str]:
    """The first column of the table of what a run leaves."""
    rows = re.findall(r"^\| (`[^|]*`) \|", section(PAGE, "## What a run leaves"), flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(.+?)`", row)}


def test_the_setting_it_speaks_of_is_there() -> None:
    assert "--set 'extra_ngram_heads=[1,2,3]'" in PAGE
    cls = registry.load(registry.ARCHITECTURE, "transformer")
    assert resolve_options(cls, {"extra_ngram_heads": [1, 2, 3]}).extra_ngram_heads == (1, 2, 3)  # type: ignore[attr-defined]
