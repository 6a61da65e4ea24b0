"""A hybrid as an entry: of built-in mixers it is one, with a file among them it is none, and that file is not run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

import regbench
from regbench.analysis.trained import load_named
from regbench.leaderboard.challenge import challenge
from regbench.leaderboard.verify import submit, verify_run
from regbench.tracks import Track
from regbench.utils.errors import UserError
from tests.helpers.typed import AVERAGE
from tests.leaderboard.conftest import SETTINGS, Made, commit, made_in

HYBRID = {**SETTINGS, "n_layers": 2, "mixers": "gla,transformer", "transformer.window": 4, "transformer.n_heads": 2}


@pytest.fixture(scope="module")
def hybrid(committed: None, tiny_file: Path, tiny: Track, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("hybrid")
    regbench.run(str(tiny_file), "hybrid", (0, 1, 2), settings=HYBRID, out=folder / "run")
    return made_in(folder, tiny)


def test_a_hybrid_is_an_entry_and_can_be_verified(hybrid: Made) -> None:
    entry = hybrid.entry
    assert entry.name.startswith("hybrid+")
    options = entry.result.architecture.options
    assert (options["mixers"], options["transformer.window"], options["sources"]) == ("gla,transformer", 4, [])
    assert entry.result.architecture.state_bytes == 4 * (4 * 8 + 2 * 3 * 8)
    commit(hybrid.board)
    outcome = challenge(hybrid.stored, hybrid.run, by="somebody", cuts=200, track=hybrid.track)
    assert outcome.findings.faults == []


def test_a_hybrid_takes_no_option_that_nobody_set(hybrid: Made, tmp_path: Path) -> None:
    run = hybrid.copy(tmp_path / "run")
    path = run / "config.yaml"
    asked = yaml.safe_load(path.read_text(encoding="utf-8"))
    asked["settings"]["transformer.window"] = 5
    path.write_text(yaml.safe_dump(asked), encoding="utf-8")
    _, findings = verify_run(run, hybrid.track)
    assert any("transformer.window is 4, and the configuration gives 5" in str(fault) for fault in findings.faults)


def test_a_file_among_the_mixers_is_not_run(
    committed: None, tiny: Track, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(AVERAGE, encoding="utf-8")
    settings = {**SETTINGS, "n_layers": 2, "mixers": f"lstm,{file}"}
    regbench.run(str(tiny_file), "hybrid", (0, 1, 2), settings=settings, out=tmp_path / "run")
    assert regbench.load(tmp_path / "run").seed == 0
    file.write_text("raise SystemExit('it was run')", encoding="utf-8")
    (tmp_path / "board").mkdir()
    made = submit(tmp_path / "run", tmp_path / "board", track=tiny)
    faults = [str(fault) for fault in made.findings.faults]
    assert any("put your mixers and the hybrid into one file" in fault for fault in faults)
    assert not any("it was run" in fault for fault in faults)
    with pytest.raises(UserError, match=r"takes the file .*mine.py, which regbench.load\(folder\) alone executes"):
        load_named(tmp_path / "run", None, "test", track=str(tiny_file))
    shutil.rmtree(tmp_path / "run")
