"""Scores by the value of an option: grouped and judged as by hand, drawn, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from papers.cgt.by_option import ByOption, by_option, option_values
from papers.cgt.table import Mean, Row, RunTable
from regbench import cli, runner
from regbench.utils.errors import UserError
from tests.conftest import TINY_CGT


@pytest.fixture(scope="module")
def runs(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of two seeds with the ranks 1, 2 and 1."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, rank in (("a", 1), ("b", 2), ("c", 1)):
        seeds = (0, 1) if name != "c" else (2,)
        settings = {**TINY_CGT, "rank": rank, "training.train_tokens": 1000}
        runner.run(str(tiny_file), "cgt", seeds=seeds, settings=settings, out=folder / name)
    return [folder / name for name in "abc"]


def table(rows: dict[str, dict[str, tuple[float, ...]]], metric: str) -> RunTable:
    made = [
        Row(
            name,
            "cgt",
            tuple(range(9)),
            None,
            {mode: {metric: Mean(float(np.mean(s)), 0.0, s)} for mode, s in modes.items()},
        )
        for name, modes in rows.items()
    ]
    return RunTable("t", "test", 9, metric, "", tuple(made), 9)


def test_seeds_of_one_value_are_put_together_and_values_ascend() -> None:
    rows = {"x": {"dynamic": (0.5,)}, "y": {"dynamic": (0.1, 0.2)}, "z": {"dynamic": (0.7,), "specialised": (0.6,)}}
    found = by_option(table(rows, "token_accuracy"), "l", [10, 2, 10])
    assert found.scores == {"dynamic": {2: (0.1, 0.2), 10: (0.5, 0.7)}, "specialised": {10: (0.6,)}}
    assert list(found.scores["dynamic"]) == [2, 10]


def test_a_difference_that_is_not_significant_decides_nothing() -> None:
    seeds = {1: (0.50, 0.52, 0.54), 2: (0.51, 0.52, 0.53), 3: (0.30, 0.31, 0.32), 4: (0.1,)}
    (line,) = ByOption("rank", "token_accuracy", {"dynamic": seeds}).lines()
    error = np.sqrt(0.02**2 / 3 + 0.01**2 / 3)
    assert line == (
        f"dynamic: best at rank=1; 2 is behind by 0.000 ±{error:.3f}, undecided; "
        "3 is behind by 0.210 ±0.013; 4 is behind by 0.420, undecided with one seed"
    )
    two = {1: (0.50, 0.52), 2: (0.46, 0.48)}
    (line,) = ByOption("rank", "token_accuracy", {"dynamic": two}).lines()
    assert line.endswith("2 is behind by 0.040 ±0.014, undecided"), "2.8 standard errors of two seeds each"
    (line,) = ByOption("rank", "nll", {"specialised": {k: seeds[k] for k in (1, 3)}}).lines()
    assert line == "specialised: best at rank=3; 1 is behind by 0.210 ±0.013"


@pytest.mark.ci
def test_the_command_draws_and_writes(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ranks.md"
    words = ["analyze", *map(str, runs), "--limit", "16", "--table", str(path), "--plot-by", "rank"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert imread(tmp_path / "ranks-rank.png").shape[0] > 300
    content = json.loads(path.with_suffix(".json").read_text())
    dynamic = content["by_option"]["scores"]["dynamic"]
    assert [(one["value"], len(one["by_seed"])) for one in dynamic] == [(1, 3), (2, 2)]
    of_run = {row["name"]: row["scores"]["dynamic"]["legal_accuracy"]["by_seed"] for row in content["rows"]}
    assert dynamic[0]["by_seed"] == [*of_run["a"], *of_run["c"]]
    lines = [line for line in path.read_text().splitlines() if line.startswith("- ")]
    assert len(lines) == 4
    assert lines[0].startswith("- dynamic: best at rank=")
    assert lines[0][2:] in out


@pytest.mark.ci
def test_values_are_read_of_the_architecture_and_of_training(runs: list[Path]) -> None:
    assert option_values(runs, "rank") == [1, 2, 1]
    with pytest.raises(UserError, match="all runs have training.train_tokens=1000"):
        option_values(runs, "training.train_tokens")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plot-by", "rnak", "--table", "{}/t.md"], "has no option 'rnak'; did you mean 'rank'?"),
        (["--plot-by", "d_y", "--table", "{}/t.md"], "all runs have d_y=8: there is nothing to plot by it"),
        (["--plot-by", "training.batch_size", "--table", "{}/t.md"], "all runs have training.batch_size=16"),
        (["--plot-by", "rank"], "--plot-by draws a picture beside --table FILE.md, with one cut at most"),
        (["--plot-by", "rank", "--table", "{}/t.md", "--cuts", "1,2"], "with one cut at most"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    words: list[str], message: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(tmp_path) for word in words]
    assert cli.main(["analyze", *map(str, runs), *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())
