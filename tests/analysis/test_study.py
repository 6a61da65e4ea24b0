"""`regbench analyze` on a tiny run: every finding and picture, and what it says of wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regbench import cli, registry
from regbench.analysis.guided import guided
from regbench.analysis.modes import MODES
from regbench.analysis.trained import load_trained
from regbench.errors import UserError
from regbench.models.build import build, resolve_options
from regbench.tracks import Track

PICTURES = {"loss_by_distance", "dot_products", "context", "topics", "transplant"}


def test_everything_is_measured_and_drawn(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", str(run_folder), "--limit", "16", "--rate", "0.1"]) == 0
    out = capsys.readouterr().out
    folder = run_folder / "analysis"
    assert {path.stem for path in folder.glob("*.png")} == PICTURES
    found = json.loads((folder / "analysis.json").read_text())
    assert found["architecture"] == "cgt"
    assert found["instances"] == 16
    assert found["split"] == "validation"
    assert set(found["behind_the_cut"]) == set(MODES)
    assert set(found["behind_the_cut"]["dynamic"]) == {"legal_accuracy", "token_accuracy", "tvd", "nll"}
    assert found["linear_fit"] is None  # the truth of an automaton is no list of real numbers
    assert found["variation"] > 0
    assert set(found["loss_by_distance"]["modes"]) == set(MODES) - {"unprompted"}
    assert found["tokens_until_moved"]["changes"] > 0
    assert set(found["topics"]) == {"documents", "nearest_of_same_topic", "by_chance"}
    assert found["transplant"]["pairs"] > 0
    for words in ("specialised, prompt read", "CGT Eq. 4", "y has moved after", "pictures and analysis.json"):
        assert words in out


def test_another_seed_and_another_place(run_folder: Path, tmp_path: Path) -> None:
    out = ["--limit", "8", "--split", "test", "--out", str(tmp_path / "here")]
    assert cli.main(["analyze", str(run_folder), "--seed", "4", *out]) == 0
    found = json.loads((tmp_path / "here" / "analysis.json").read_text())
    assert (found["seed"], found["split"]) == (4, "test")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "7"], "has no seed 7; it has 0, 4"),
        (["--limit", "2"], "--limit 2 is too few: four instances or more"),
        (["--rate", "2"], "--rate 2 is not between 0 and 1"),
    ],
)
def test_wrong_arguments(
    run_folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["analyze", str(run_folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_folders_that_hold_no_finished_run(tmp_path: Path, run_folder: Path) -> None:
    with pytest.raises(UserError, match="holds no run: there is no config.yaml"):
        load_trained(tmp_path)
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text())
    with pytest.raises(UserError, match="has not trained seed 0 to the end"):
        load_trained(tmp_path)
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "checkpoint.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        load_trained(tmp_path)
    (tmp_path / "config.yaml").write_text("architecture: cgt\ntrack: pfa-small-v1\nseed: 0\n")
    with pytest.raises(UserError, match="unknown key 'seed'; did you mean 'seeds'?"):
        load_trained(tmp_path)


def test_weights_of_another_width_are_refused(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text().replace("d_y: 8", "d_y: 16"))
    (tmp_path / "seed-0").mkdir()
    weights = (run_folder / "seed-0" / "checkpoint.safetensors").read_bytes()
    (tmp_path / "seed-0" / "checkpoint.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match="are not those of 'cgt' as it is now"):
        load_trained(tmp_path)


def test_an_architecture_without_a_summary_is_refused(tiny: Track) -> None:
    cls = registry.load(registry.ARCHITECTURE, "lstm")
    model = build(cls, resolve_options(cls, {"d_model": 8}), tiny.task.io)
    message = r"architecture 'lstm' keeps no summary of its context: it has no context\(\); these do: cgt$"
    with pytest.raises(UserError, match=message):
        guided(model, "lstm")
