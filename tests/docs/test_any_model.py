"""docs/any-model.md keeps its word: its examples run as they stand there, on a smaller track."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import regbench
from regbench import cli
from regbench.evaluation.given import KINDS
from regbench.evaluation.guards import LARGEST_Z
from regbench.results import read_result
from tests.helpers.documents import ROOT, blocks, body_rows, commands

PAGE = (ROOT / "docs" / "any-model.md").read_text(encoding="utf-8")
PYTHON = [block for kind, block in blocks(PAGE) if kind == "python"]
SMALL = ["--set", "d_model=8", "--set", "training.train_tokens=500"]


def test_examples_run(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "--arch", "lstm", "--track", str(tiny_file), *SMALL, "--out", "runs/lstm"]) == 0
    scoring, data, load, llama = (block.replace('"pfa-small-v1"', repr(str(tiny_file))) for block in PYTHON)
    capsys.readouterr()
    exec(scoring, {})
    assert re.fullmatch(r"0\.\d+ \d\.\d+\n", capsys.readouterr().out)
    assert read_result("runs/gru").evaluation is not None
    assert Path("runs/gru/report.html").exists()
    exec(data, {})
    assert re.fullmatch(r"torch\.Size\(\[16, \d+\]\) \d+\n", capsys.readouterr().out)
    exec(load, {})
    assert re.fullmatch(r"torch\.Size\(\[4, \d+, 5\]\) \(4, \d+, 5\)\n4\n", capsys.readouterr().out)
    Path("llama.py").write_text(llama, encoding="utf-8")
    assert cli.main(["run", "--arch", "llama.py", "--track", str(tiny_file), *SMALL, "--out", "runs/llama"]) == 0
    (command,) = commands(PAGE)
    assert cli.main([str(tiny_file) if word == "pfa-small-v1" else word for word in shlex.split(command)[1:]]) == 0


def test_the_examples_are_short() -> None:
    scoring, _, _, llama = PYTHON
    assert len([line for line in scoring.splitlines() if line and not line.startswith("#")]) < 10
    body = llama.partition("class Llama")[2].splitlines()
    assert len([line for line in body if line]) == 8


def test_names_of_the_code_resolve_as_they_stand_there() -> None:
    names = re.findall(r"`(regbench\.[a-z_]+\.[\w.]+)`", PAGE)
    assert {"regbench.runner.evaluate_language_model", "regbench.training.progress"} <= {*names}
    lines = "".join(f"print({name})\n" for name in names)
    subprocess.run([sys.executable, "-c", f"import regbench\n{lines}"], check=True)
    assert not hasattr(regbench, "runers")
    assert not hasattr(regbench, "__main__"), "it would be run"


def test_its_words_are_those_of_the_code() -> None:
    values = [row[1] for row in body_rows(PAGE) if row[1].startswith('"')]
    assert values == ['"next"', '"this"', *(f'"{kind}"' for kind in KINDS)]
    assert f"by {LARGEST_Z:g} standard errors" in PAGE
