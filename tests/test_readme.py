"""The README keeps its word: its commands run, its tables are the entries', its figure and its map are of what is there."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from regbench import cli
from regbench.results import Code, read_result
from regbench.tracks import load_track, track_names
from regbench.utils import registry
from tests.helpers.documents import ROOT, blocks, body_rows, commands, section, table_rows

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks(README)
COMMANDS = commands(README)
METRICS = ("legal_accuracy", "token_accuracy", "tvd", "nll")


def test_it_is_one_page() -> None:
    """Without its generated tables, which grow with the leaderboard."""
    written = re.sub("<!-- table: .*?<!-- end -->", "", README, flags=re.DOTALL)
    assert len(written.splitlines()) <= 140


def test_there_are_commands_to_test() -> None:
    assert "make run" in COMMANDS
    assert "make test" in COMMANDS
    assert sum(command.startswith("regbench") for command in COMMANDS) >= 4


def test_make_targets_exist() -> None:
    pages = [README, *((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("index.md", "speed.md"))]
    named = {match for page in pages for match in re.findall(r"\bmake ([a-z]+)\b", page)} - {"sure"}
    assert {"run", "test", "docs", "bench", "plot"} <= named
    for target in sorted(named):
        subprocess.run(["make", target, "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def test_the_installation_names_what_is_there() -> None:
    (command,) = (c for c in COMMANDS if c.startswith("pip"))
    assert command == "pip install -c constraints.txt -e '.[test]'"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "test" in project["optional-dependencies"]
    assert "Python 3.11 or newer" in README
    assert project["requires-python"] == ">=3.11"


def test_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand there, one after another, on a smaller track and with few tokens where they would train for minutes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "regbench.runner.train.describe_code", lambda: Code(commit="0" * 40, dirty=False)
    )  # as from a clean checkout
    monkeypatch.setattr("regbench.checks.training.OVERFIT_STEPS", 25)  # its outcome is another test's
    monkeypatch.setattr("torch.compile", lambda model, **_: model)
    (mixer,) = (block for kind, block in BLOCKS if kind == "python" and block.startswith("# my_mixer.py"))
    Path("my_mixer.py").write_text(mixer)
    Path("leaderboard").mkdir()
    Path("leaderboard/RULES.md").touch()  # which makes it a board
    for command in COMMANDS:
        arguments = shlex.split(command)[1:]
        if not command.startswith("regbench"):
            continue
        if arguments[0] in ("run", "submit"):
            arguments += ["--track", str(tiny_file)]
        if arguments[0] == "run":
            arguments += ["--set", "d_model=16"]
        assert cli.main(arguments) in ((0, 1) if arguments[0] == "check" else (0,)), command
        assert capsys.readouterr().out
    assert list(Path("leaderboard/entries").glob("*/my_mixer*.json"))


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = (block for kind, block in BLOCKS if kind == "python" and "load_track" in block)
    assert len([line for line in example.splitlines() if line]) <= 6
    small = example.replace('"pfa-small-v1"', repr(str(tiny_file))).replace("400_000", "4_000")
    exec(small, {})
    assert re.fullmatch(r"\(24, \d+\) 0\.\d+\n", capsys.readouterr().out)
    assert f"({len(load_track('pfa-small-v1').instances('test'))}, L) integers" in example


# --- The tables. ---


def test_every_task_and_track_is_in_its_table() -> None:
    rows = {
        row[0]: re.findall(r"`?([a-z-]+-v\d)`?", row[2]) for row in body_rows(section(README, "## Tasks and tracks"))
    }
    assert set(rows) == set(registry.entries(registry.TASK))
    assert {track: task for task, tracks in rows.items() for track in tracks} == {
        name: load_track(name).definition.task for name in track_names()
    }


def test_the_map_is_the_folders() -> None:
    """Every room of the engine and every folder above has its line, and no line is of what is not there."""
    (tree,) = (block for kind, block in BLOCKS if kind == "text")
    named, folder = set(), ""
    for line in tree.splitlines():
        first = re.split(r"\s{2,}", line.strip())[0].split()
        folder = folder if line.startswith(" ") else ""
        named |= {folder + name for name in first}
        folder = folder or (first[0] if first == ["regbench/"] else "")
    for name in named:
        assert (ROOT / name).exists(), name
    rooms = {f"{p.relative_to(ROOT)}/" for p in (ROOT / "regbench").iterdir() if (p / "__init__.py").exists()}
    loose = {f"regbench/{p.name}" for p in (ROOT / "regbench").glob("[a-z]*.py")}
    above = {
        f"{p.name}/"
        for p in ROOT.iterdir()
        if p.is_dir()
        and subprocess.run(
            ["git", "ls-files", "--error-unmatch", p.name], cwd=ROOT, capture_output=True, check=False
        ).returncode
        == 0
        and not p.name.startswith(".")
    }
    assert named == rooms | loose | above


def test_the_figures_are_of_the_entries() -> None:
    """A figure carries the digest of the curves it was drawn from."""
    path = ROOT / "docs" / "figures" / "score_by_position.py"
    script = runpy.run_path(str(path))
    for file, drawing in script["DRAWINGS"].items():
        found = script["curves"](drawing)
        drawn = path.with_name(f"{file}.svg").read_text(encoding="utf-8")
        assert script["digest"](found) in drawn, "draw it again: make figures"
        assert len(script["draw"](drawing, found).axes[0].get_lines()) == 2 * len(drawing.lines)
        assert set(found) == set(drawing.lines)
        assert all(len(position) > 10 for position, _ in found.values())


def test_the_figure_of_training_instances_is_of_the_scores() -> None:
    """The same for the panels of ICLL Figure 3: each architecture at each number of layers and of instances."""
    path = ROOT / "docs" / "figures" / "instances.py"
    script = runpy.run_path(str(path))
    found, lines = script["curves"](), script["heights"]()
    assert list(found) == ["1 layer", "2 layers", "4 layers"]
    for own in found.values():
        assert {curve.name for curve in own} == set(script["NAMES"].values())
        assert {curve.values for curve in own} == {(150, 600, 2500, 10000, 40000)}
    assert script["digest"](found, lines) in path.with_suffix(".svg").read_text(encoding="utf-8"), "make figures"
    panels = script["draw"](found, lines).axes
    assert [len(frame.get_lines()) for frame in panels] == 3 * [len(script["NAMES"]) + len(lines)]


@pytest.mark.slow
def test_make_run_gives_the_promised_numbers(
    regbench: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Two seeds of the default run: every baseline to the digits, Mamba within the stated error."""
    promised = table_rows(section(README, "## Run"))
    done = regbench("run", "--arch", "mamba", "--seed", "0", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "out")
    for name, record in result.baselines.items():
        printed = [f"{record.scores[m].value:.3f} ± {record.scores[m].stderr:.3f}" for m in METRICS]
        assert promised[name][:4] == printed
    for seed in result.seeds:
        for column, metric in ((0, "legal_accuracy"), (2, "tvd")):
            assert seed.scores[metric].value == pytest.approx(float(promised["mamba"][column].split()[0]), abs=0.015)
