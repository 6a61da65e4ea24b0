"""`regbench tint`: sizes by the formula of the paper, and what the construction of a run holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from regbench import runner
from tests.helpers.typed import said


def test_sizes_by_formula(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1,275,936,768" in said(capsys, "tint")[1]
    assert "32,030,720" in said(capsys, "tint", "--size", "d=2560,heads=32,layers=32")[1]


def test_sizes_of_a_run(tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"d_model": 12, "n_layers": 1, "n_heads": 3, "training.train_tokens": 1000, "training.batch_size": 8}
    runner.run(str(tiny_file), "tint", settings=small, out=tmp_path / "tint")
    assert "Both agree for every map" in said(capsys, "tint", "--size-of", str(tmp_path / "tint"))[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--size", "d=770,heads=10"], "4 slots do not divide the width 770"),
        (["--size", "depth=3"], "--size knows no 'depth'"),
        (["--size", "d=x"], "--size: d takes a whole number, not 'x'"),
        (["--track", "mine.yaml"], "--track is of a run: it goes with --size-of"),
    ],
)
def test_bad_input_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = said(capsys, "tint", *arguments)
    assert code == 2
    assert words in error


def test_a_run_of_another_architecture_has_no_sizes(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is a run of 'cgt', not of 'tint'" in said(capsys, "tint", "--size-of", str(run_folder))[2]
