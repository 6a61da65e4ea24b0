"""The README keeps its word: its commands run, its tree is the tree, its example is an example."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regbench import cli
from regbench.leaderboard.store import Stored
from regbench.results import Result, read_result
from tests.helpers.documents import blocks, commands, table_rows

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks(README)
COMMANDS = commands(README)


def test_there_are_commands_to_test() -> None:
    assert "make run" in COMMANDS
    assert "make test" in COMMANDS
    assert sum(command.startswith("regbench") for command in COMMANDS) >= 8


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make")])
def test_make_targets_exist(command: str) -> None:
    subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("regbench")])
def test_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand there, on a smaller track and with few tokens where they would train for minutes."""
    monkeypatch.chdir(tmp_path)
    (mixer,) = (block for kind, block in BLOCKS if kind == "python" and block.startswith("# my_mixer.py"))
    Path("my_mixer.py").write_text(mixer)
    arguments = shlex.split(command)[1:]
    if "--resume" in arguments:
        assert cli.main(["run", "--arch", "my_mixer.py", "--track", str(tiny_file), "--out", "runs/..."]) == 0
    elif arguments[0] == "run":
        arguments += ["--track", str(tiny_file), "--set", "d_model=16"]
    elif arguments[0] == "check":
        monkeypatch.setattr("regbench.checks.architecture.OVERFIT_STEPS", 50)  # its outcome is another test's
        assert cli.main(arguments) in (0, 1)
        return
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out


def test_the_tree_is_the_tree() -> None:
    """Every module of the three packages has its line, and no line speaks of what is not there."""
    (tree,) = (block for kind, block in BLOCKS if kind == "text")
    named: set[str] = set()
    headings: set[str] = set()
    folder = ""
    for line in tree.splitlines():
        path = line.strip().split("  ")[0] if line.startswith(" ") else ""
        if line and not line.startswith(" "):
            folder = line.split()[0]
            headings.add(folder)
        elif path:
            named.add(folder + path)
    for name in named | headings:
        assert (ROOT / name).exists(), name
    for package in ("regbench", "architectures", "baselines"):
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if path.name in ("__init__.py", "__main__.py") or path.name.startswith("_"):
                continue
            candidates = {str(relative), *(f"{parent}/" for parent in relative.parents if len(parent.parts) > 1)}
            assert candidates & named, f"{relative} has no line in the README's tree"


def test_its_scores_are_the_boards() -> None:
    """Every row of the tables of architectures is an entry's, to the digits."""
    tables = README.partition("Architectures with their default options")[2].partition("Without make")[0]
    board, _, rest = tables.partition("One layer instead of two")
    parts = (board, rest.partition("N-gram heads after")[2])
    rows = {
        name: cells for part in parts for name, cells in table_rows(part).items() if name not in ("architecture", "---")
    }
    assert len(rows) >= 14
    compare(rows, "pfa-small-v1", ("legal_accuracy", "token_accuracy", "tvd", "nll"))


@pytest.mark.parametrize(
    ("heading", "track", "metrics"),
    [
        ("**Associative recall**", "assoc-recall-small-v1", ("final_accuracy", "token_accuracy", "nll")),
        ("**In-context bigrams**", "bigram-small-v1", ("nll", "in_context_accuracy", "global_tvd", "tvd")),
    ],
)
def test_so_are_those_of_other_tracks(heading: str, track: str, metrics: tuple[str, ...]) -> None:
    """All entries of the track, and what the text says of baselines."""
    part = README.partition(heading)[2].partition("\n**")[0].partition("\n## ")[0]
    rows = {name: cells for name, cells in table_rows(part).items() if name not in ("architecture", "---")}
    assert len(rows) == len(list((ROOT / "leaderboard" / "entries" / track).glob("*.json")))
    result = compare(rows, track, metrics)
    said = re.findall(r"\b\d\.\d{3}\b", part.partition("|")[0])
    known = {f"{score.value:.3f}" for record in result.baselines.values() for score in record.scores.values()}
    assert said
    assert set(said) <= known


def compare(rows: dict[str, list[str]], track: str, metrics: tuple[str, ...]) -> Result:
    """Rows of architectures against the entries of a track, of which the last one's result is returned."""
    found = [Stored(path).read()[0] for path in sorted((ROOT / "leaderboard" / "entries" / track).glob("*.json"))]
    by_name = {entry.name: entry.result for entry in found}
    for name, cells in rows.items():
        scores = [by_name[name].score(m) for m in metrics]
        assert cells[: len(metrics)] == [f"{s.value:.3f} ± {s.stderr:.3f}" for s in scores], name
        assert cells[len(metrics)] == f"{by_name[name].architecture.parameters:,}"
    return found[-1].result


@pytest.mark.slow
def test_make_run_gives_the_promised_numbers(
    regbench: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Two seeds of the default run: every baseline to the digits, Mamba within the stated error."""
    promised = table_rows(README.partition("*Legal accuracy*")[0])
    done = regbench("run", "--arch", "mamba", "--seed", "0", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "out")
    order = ("legal_accuracy", "token_accuracy", "tvd", "nll")
    for name, record in result.baselines.items():
        printed = [f"{record.scores[m].value:.3f} ± {record.scores[m].stderr:.3f}" for m in order]
        assert promised[name][:4] == printed
    for seed in result.seeds:
        for column, metric in ((0, "legal_accuracy"), (2, "tvd")):
            assert seed.scores[metric].value == pytest.approx(float(promised["mamba"][column].split()[0]), abs=0.015)
