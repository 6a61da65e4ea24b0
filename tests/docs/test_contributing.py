"""CONTRIBUTING.md keeps its word: each of its lists is followed in a copy of the repository, whose default track is tiny.

All commands run as they stand there, list after list, in one process: PyTorch is loaded once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from regbench.checks.architecture import CONTRACT
from tests.conftest import TINY
from tests.helpers.documents import ROOT, blocks, commands, section

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LISTS = ("## Add an architecture", "## Add a task", "## Add an entry")

FOLLOW = """
import glob, json, runpy, shlex, subprocess, sys
import pytest
from regbench import cli
from tests.golden import regenerate

# The curves are measured here alone, and not in a process for each kind of machine.
regenerate.curves_under = lambda environment, chosen, roundings=0: regenerate.curves_here(chosen, roundings)
regenerate.MACHINES = {"again": {}}
for command in json.loads(sys.argv[1]):
    program, *arguments = shlex.split(command)
    arguments = [glob.glob(word.replace("DIGEST.", "????????."))[0] if "DIGEST." in word else word for word in arguments]
    print("$", command, flush=True)
    if program == "git":
        code = subprocess.run([program, *arguments]).returncode
    elif program == "regbench":
        code = cli.main(arguments)
    elif program == "pytest":
        code = pytest.main([*arguments, "-q", "-p", "no:cacheprovider"])
    else:
        assert (program, arguments[0]) == ("python", "-m"), command
        if arguments[1] == "tests.golden.regenerate":
            code = regenerate.main(arguments[2:]) or 0
        else:
            sys.argv = arguments[1:]
            try:
                runpy.run_module(arguments[1], run_name="__main__")
            except SystemExit as end:
                code = end.code
    if code:
        sys.exit(f"{command}: exit code {code}")
"""


def example(page: str, kind: str) -> str:
    """The first block of a kind on a page of docs/."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return next(block for name, block in blocks(text) if name == kind)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with the files that the lists tell to write; a board without entries; of tracks a tiny default."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("regbench", "architectures", "baselines", "tests"):
        shutil.copytree(ROOT / name, folder / name)  # with __pycache__: what Numba has compiled
    for name in ("pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    (folder / "leaderboard").mkdir()
    shutil.copy(ROOT / "leaderboard" / "RULES.md", folder / "leaderboard")
    tracks = folder / "regbench" / "tracks"
    for path in tracks.glob("*.yaml"):
        path.unlink()
    (tracks / "statistics.json").write_text("{}\n")
    default = yaml.safe_load((ROOT / "regbench" / "tracks" / "pfa-small-v1.yaml").read_text(encoding="utf-8"))
    write_track(tracks, default | {"splits": TINY["splits"], "budget": {"train_tokens": 3000}})
    (folder / "architectures" / "averaging.py").write_text(example("own-mixer.md", "python"))
    (row,) = (block for kind, block in blocks(PAGE) if kind == "python")
    cases = folder / "tests" / "architectures" / "cases.py"
    text = cases.read_text(encoding="utf-8")
    assert text.count("\nCASES = {\n") == 1
    cases.write_text(text.replace("\nCASES = {\n", f"\nCASES = {{\n{row.rstrip().rstrip('`')}\n"), encoding="utf-8")
    (folder / "regbench" / "tasks" / "repeating.py").write_text(example("own-task.md", "python"))
    track = yaml.safe_load(example("own-task.md", "yaml"))
    splits = {"train": 60, "validation": 10, "test": 20, "seed": 0}
    write_track(tracks, track | {"task": "repeating", "splits": splits, "budget": {"train_tokens": 3000}})
    return folder


WHO = "git -c user.name=A -c user.email=a@example.org -c commit.gpgsign=false"
COMMIT = [f"{WHO} init -q", f"{WHO} add -A", f"{WHO} commit -q -m 'An architecture and a task'"]
"""The first step towards an entry."""


def write_track(folder: Path, definition: dict[str, object]) -> None:
    """A track's file, its first line a comment."""
    (folder / f"{definition['name']}.yaml").write_text("# A tiny track.\n" + yaml.safe_dump(definition))


@pytest.mark.ci
def test_the_lists_can_be_followed(copy: Path, tmp_path: Path) -> None:
    architecture, task, entry = (commands(section(PAGE, heading)) for heading in LISTS)
    made = 1 + next(i for i, command in enumerate(entry) if command.startswith("regbench submit"))
    entry = [*entry[:made], *COMMIT[1:], *(command.replace("origin/main", "HEAD~1") for command in entry[made:])]
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW, json.dumps([*architecture, *task, *COMMIT, *entry])],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "REGBENCH_CACHE": str(tmp_path), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    # The architecture.
    assert "1 checked, 0 faults" in done.stdout
    asked = re.findall(r"^  holds  (\w+) ", done.stdout, flags=re.MULTILINE)
    assert asked == [check.__name__ for check in CONTRACT]
    assert re.search(r"^\d+ passed", done.stdout, flags=re.MULTILINE)
    assert (copy / "tests" / "golden" / "averaging.json").exists()
    # The task.
    assert "the task keeps its contract" in done.stdout
    assert "repeating-v1" in json.loads((copy / "regbench" / "tracks" / "statistics.json").read_text())
    # The entry.
    evidence, file = sorted((copy / "leaderboard" / "entries" / "pfa-small-v1").glob("*.json"))
    assert json.loads(file.read_text())["result"]["code"]["dirty"] is False
    assert json.loads(evidence.read_text())["challenge"]["by"] == "MAINTAINER"
    assert "1 entries, 0 files to write" in done.stdout


@pytest.mark.parametrize("heading", LISTS)
def test_each_list_is_numbered_and_names_files_that_are_there(heading: str) -> None:
    part = section(PAGE, heading)
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", part, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 6
    for command in commands(part):
        for word in command.split():
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), word


def test_the_form_for_an_entry_speaks_of_what_is_there() -> None:
    form = (ROOT / ".github" / "pull_request_template.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^- \[ \] ", form, flags=re.MULTILINE)) >= 8
    assert "`regbench leaderboard --check`" in form
    assert "`make test`" in form
    assert "\n|" not in form
