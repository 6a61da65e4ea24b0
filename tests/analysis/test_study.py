"""`regbench analyze` on a tiny run: every finding and picture, and what it says of wrong input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from regbench import cli
from regbench.analysis.guided import guided
from regbench.analysis.modes import MODES
from regbench.analysis.segments import segments
from regbench.analysis.study import caught_up_after, distance_behind, study
from regbench.analysis.trained import load_trained
from regbench.models.build import build, resolve_options
from regbench.tasks.arithmetic import Arithmetic
from regbench.tasks.base import Splits
from regbench.tracks import Track
from regbench.training.provenance import FILE
from regbench.utils import registry
from regbench.utils.errors import UserError

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
    assert found["loss_by_distance"]["counted_in"] == "tokens"
    moved = found["tokens_until_moved"]
    assert moved["changes"] == moved["controls"] > 0
    assert moved["share_moved"] == moved["moved"] / moved["changes"]
    assert moved["distance"]["controls"] <= moved["distance"]["far"]
    assert set(found["topics"]) == {"texts", "documents", "nearest_of_same_topic", "by_chance"}
    assert found["transplant"]["pairs"] > 0
    for words in ("specialised, prompt read", "CGT Eq. 4", "y moves at", "pictures and analysis.json"):
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


def test_a_run_of_another_track_than_todays_is_refused(
    run_folder: Path, text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A track of one's own that was edited, and text that has changed: then the weights mean nothing."""
    edited, other = tmp_path / "edited", tmp_path / "other"
    for folder, source in ((edited, run_folder), (other, text_run)):
        shutil.copytree(source, folder)
    config = yaml.safe_load((edited / "config.yaml").read_text())
    content = yaml.safe_load(Path(config["track"]).read_text())
    content["splits"]["seed"] += 1
    (tmp_path / "tiny-v1.yaml").write_text(yaml.safe_dump(content))
    (edited / "config.yaml").write_text(yaml.safe_dump(config | {"track": str(tmp_path / "tiny-v1.yaml")}))
    record = json.loads((other / "result.json").read_text())
    record["track"]["fingerprints"]["validation"] = "f" * 64
    (other / "result.json").write_text(json.dumps(record))
    (tmp_path / "prompt.txt").write_text("ab|")
    for arguments, message in (
        (["analyze", str(edited)], "edited is of another track: tiny-v1 was changed since (digest "),
        (["analyze", str(edited), "--table", "t.md"], "edited is of another track: tiny-v1 was changed since (digest "),
        (["specialize", str(edited), "--prompt", str(tmp_path / "prompt.txt")], "edited is of another track"),
        (["analyze", str(other)], "other is of other validation instances of markov-text-v1: its text or what makes"),
    ):
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert load_trained(other, split="test").track.name == "markov-text-v1"  # of that split nothing has changed
    (edited / "result.json").unlink()
    assert load_trained(edited).track.name == "tiny-v1"  # it is not known on what it was trained
    said, digest = edited / "seed-0" / FILE, load_trained(edited).track.definition.digest
    for parts, message in (
        ({"track": "0" * 64}, "seed-0 is of another track: tiny-v1 was changed since"),
        ({"track": digest, "text": "0" * 64}, "seed-0 is of other text: that of tiny-v1 has changed since"),
        ({}, "does not say of what this seed was made"),
    ):
        said.write_text(json.dumps(parts))
        with pytest.raises(UserError, match=message):
            load_trained(edited)
    said.write_text(json.dumps({"track": digest}))
    assert load_trained(edited).seed == 0
    said.unlink()
    (edited / "config.yaml").write_text(yaml.safe_dump(config | {"architecture": "transformer", "settings": {}}))
    with pytest.raises(UserError, match="are those of 'cgt', not of 'transformer'"):
        load_trained(edited)


def test_behind_the_cut_examples_are_counted_where_there_are_any() -> None:
    task = Arithmetic(Arithmetic.Parameters(n_tasks=1, n_examples=6, n_digits=1))
    instances = task.generate(Splits(train=1, validation=1, test=3, seed=0), "test")
    read = segments(task, instances)
    behind, unit = distance_behind(task, instances, read)
    assert unit == "examples"
    for row, cut, end, found in zip(read.row, read.cut, read.end, behind, strict=True):
        text = "".join(np.array(task.io.names)[instances.tokens[row, cut:end]])
        assert found[: end - cut].tolist() == [text[:k].count("|") for k in range(end - cut - 1)] + [
            2
        ]  # and the last "#"


def test_behind_the_cut_of_text_tokens_are_counted(text_track: Track) -> None:
    test = text_track.instances("test")
    behind, unit = distance_behind(text_track.task, test, segments(text_track.task, test))
    assert unit == "tokens"
    assert behind.shape[1] == 28
    assert behind[0].tolist() == [middle for middle in np.arange(1.5, 28, 4) for _ in range(4)]


def test_caught_up_is_where_nothing_behind_it_is_ahead_again() -> None:
    distance, error = np.arange(5.0), np.full(5, 0.1)

    def caught(*mean: float) -> float | None:
        return caught_up_after(distance, np.array(mean), error)

    assert caught(-1.0, 0.05, -1.0, -0.05, 0.0) == 3.0  # at 1 it is level by chance
    assert caught(-1.0, -0.5, 0.2, 0.2, 0.2) == 2.0
    assert caught(-1.0, -0.5, 0.2, 0.2, -0.15) is None
    assert caught(0.0, -0.15, 0.0, 0.0, 0.0) is None  # it was never ahead
    assert caught_up_after(*(np.array([]),) * 3) is None


def test_of_few_instances_it_says_that_it_cannot_tell(run_folder: Path, tmp_path: Path) -> None:
    trained = load_trained(run_folder)
    found = study(trained, tmp_path, split="validation", limit=4, rate=0.1)
    few = found.findings["loss_by_distance"]["modes"]["specialised"]["distance"]
    words = dict(found.lines)["the unprompted model catches up"]
    assert (words == "too few instances to tell") == (few == [])
    assert few == []


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
