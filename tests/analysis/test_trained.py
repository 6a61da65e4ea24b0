"""Trained models read back from run folders."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

import regbench
from baselines.ngram import NGram
from regbench import cli
from regbench.analysis.trained import Trained, load, on_track, own_track, untrained
from regbench.config import Config, write_config
from regbench.evaluation.predictions import predict, read_predictions
from regbench.models.backbone import Backbone
from regbench.models.build import build
from regbench.tracks import Track
from regbench.training.checkpoint import load_tensors, save_tensors
from regbench.utils.errors import UserError
from tests.conftest import TINY
from tests.helpers.subjects import trained_of
from tests.helpers.typed import PLUGIN, refused


@pytest.mark.ci
def test_a_run_of_another_track_than_todays_is_refused(
    run_folder: Path, text_run: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A track of your own that was edited, and text that has changed: then the weights mean nothing."""
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
        (
            ["analyze", str(other), "--track", str(text_file)],
            "other is of other validation instances of markov-text-v1: its text or what makes",
        ),
    ):
        refused(capsys, arguments, message)
    assert load(other, split="test").track.name == "markov-text-v1"  # of that split nothing has changed
    (edited / "result.json").unlink()
    (edited / "config.yaml").write_text(yaml.safe_dump(config | {"architecture": "transformer", "settings": {}}))
    with pytest.raises(UserError, match="are those of 'cgt', not of 'transformer'"):
        load(edited)


def test_a_built_in_track_with_other_parameters_needs_no_name(tmp_path: Path) -> None:
    for track, named in (("bigram-small-v1?n_triggers=3", None), ("mine-v1?n_triggers=3", "bigram-v1")):
        write_config(tmp_path, Config(track=track, architecture="lstm"))
        assert own_track(tmp_path, "bigram-v1") == named
        (tmp_path / "config.yaml").unlink()


@pytest.mark.ci
def test_folders_that_hold_no_finished_run(tmp_path: Path, run_folder: Path) -> None:
    with pytest.raises(UserError, match="holds no run: there is no config.yaml"):
        load(tmp_path)
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text())
    with pytest.raises(UserError, match="has not trained seed 0 to the end"):
        load(tmp_path)
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "checkpoint.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        load(tmp_path)
    (tmp_path / "config.yaml").write_text("architecture: cgt\ntrack: pfa-small-v1\nseed: 0\n")
    with pytest.raises(UserError, match="unknown key 'seed'; did you mean 'seeds'?"):
        load(tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["architecture"]["options"].update(n_layers=10**6), "has more than 10,000 modules"),
        (
            lambda c: c["architecture"]["options"].update(d_model=65_536, d_y=65_536),
            "are not those of 'cgt' as it is now",
        ),
        (lambda c: c["track"]["fingerprints"].pop("validation"), r"other validation instances .* \(fingerprint none"),
    ],
)
def test_a_result_of_a_stranger_claims_no_memory(
    change: Callable[[dict[str, Any]], object], message: str, run_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "run")
    content = json.loads((folder / "result.json").read_text())
    change(content)
    (folder / "result.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load(folder)


def test_weights_that_are_no_regular_file_are_refused(run_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "run")
    path = folder / "seed-0" / "checkpoint.safetensors"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=r"cannot read the checkpoint .*: not a regular file"):
        load(folder)
    path.unlink()
    path.symlink_to(run_folder / "seed-0" / "checkpoint.safetensors")
    with pytest.raises(UserError, match="links are not followed"):
        load(folder)


def test_weights_of_another_width_are_refused(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text().replace("d_y: 8", "d_y: 16"))
    (tmp_path / "seed-0").mkdir()
    weights = (run_folder / "seed-0" / "checkpoint.safetensors").read_bytes()
    (tmp_path / "seed-0" / "checkpoint.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match="are not those of 'cgt' as it is now"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w.view(torch.int32), r"checkpoint.safetensors: \S+ is int32, and the model's is float32$"),
        (lambda w: w.half(), r"is float16, and the model's is float32$"),
        (
            lambda w: w.index_fill(0, torch.tensor([0]), torch.nan),
            r"checkpoint.safetensors: \S+ holds NaN or infinity$",
        ),
        (lambda w: w.index_fill(0, torch.tensor([0]), -torch.inf), "holds NaN or infinity$"),
    ],
)
def test_weights_of_another_type_or_not_finite_are_refused(
    run_folder: Path, tmp_path: Path, spoil: Callable[[Tensor], Tensor], message: str
) -> None:
    shutil.copytree(run_folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "seed-0" / "checkpoint.safetensors"
    weights, notes = load_tensors(path)
    name = next(iter(weights))
    save_tensors(path, weights | {name: spoil(weights[name])}, notes)
    with pytest.raises(UserError, match=message):
        regbench.load(tmp_path)


def test_defaults_that_have_changed_since_do_not_matter(run_folder: Path, tiny: Track, tmp_path: Path) -> None:
    """The result says with which options a model was trained. The configuration says only what was asked."""
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["settings"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"settings": {}}))
    tokens = tiny.instances("validation").tokens[:3]
    assert (load(folder).predict(tokens) == load(run_folder).predict(tokens)).all()


def test_a_result_of_evaluate_has_no_model(tiny: Track, tiny_file: Path, tmp_path: Path) -> None:
    regbench.evaluate(tiny, NGram(2, tiny.task.io.vocab_size, tiny.task.io.separator), out=tmp_path / "mine")
    with pytest.raises(UserError, match=r"no config.yaml; what `regbench.evaluate` leaves has none"):
        regbench.load(tmp_path / "mine")


def test_a_trained_model_is_given_back(run_folder: Path, tiny: Track, tiny_file: Path, tmp_path: Path) -> None:
    """It predicts what the run stored, and streams what it predicts."""
    tokens = tiny.instances("test").tokens
    model = regbench.load(run_folder, seed=4)
    stored = read_predictions(run_folder, 4, tiny.task, tiny.instances("test"))
    assert predict(tiny.task, model, tiny.instances("test")).digest == stored.digest
    np.testing.assert_allclose(model.logits(tokens).double().softmax(-1), model.predict(tokens), atol=1e-12)
    with pytest.raises(UserError, match=r"has no seed 1; its seeds are 0, 4"):
        regbench.load(run_folder, seed=1)
    settings = {"d_model": 8, "training.train_tokens": 500}
    regbench.run(str(tiny_file), "lstm", settings=settings, out=tmp_path / "lstm")
    lstm = regbench.load(tmp_path / "lstm")
    row = tokens[0, :5]
    streamed = list(lstm.stream(row.tolist()))
    assert len(streamed) == len(row) + 1
    np.testing.assert_allclose(streamed[:-1], lstm.predict(row[None])[0], atol=1e-5)
    with pytest.raises(UserError, match="token 99 is outside the vocabulary"):
        list(lstm.stream([99]))
    for ask in (lstm.logits, lstm.predict):
        for given, message in (
            ([1, 2], r"tokens must have the shape \(B, L\), not \(2,\)"),
            ([[0.5]], "tokens must be integers, not float64"),
            ([[1, -1]], "token -1 is outside the vocabulary"),
            (np.zeros((0, 3), int), r"there are no tokens in an array of the shape \(0, 3\)"),
        ):
            with pytest.raises(UserError, match=message):
                ask(given)  # type: ignore[arg-type]
    parallel = replace(lstm, model=build(Parallel, Parallel.Options(d_model=8), tiny.task.io))
    with pytest.raises(UserError, match="has no recurrent form to stream by"):
        next(parallel.stream([]))
    stepless = replace(lstm, model=build(Stepless, Stepless.Options(d_model=8), tiny.task.io))
    with pytest.raises(UserError, match="Stepless has no step to stream by"):
        next(stepless.stream([]))


def test_an_architecture_that_the_run_cannot_find_is_named(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was moved, and a class of a program that has ended."""
    (tmp_path / "same.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    settings = {"d_model": 8, "training.train_tokens": 500}
    regbench.run(str(tiny_file), "same.py", settings=settings, out="file")
    regbench.run(str(tiny_file), Parallel, settings=settings, out="class")
    Path("moved").mkdir()
    Path("same.py").rename("moved/same.py")
    with pytest.raises(UserError, match=r"^file is of the architecture in same.py, which is not here: regbench.load\("):
        regbench.load("file")
    with pytest.raises(UserError, match="^'class:Parallel' is a class of the program that ran it"):
        regbench.load("class")
    tokens = np.zeros((1, 3), int)
    assert regbench.load("file", arch=Path("moved/same.py")).logits(tokens).shape[:2] == (1, 3)
    assert regbench.load("class", arch=Parallel).logits(tokens).shape[:2] == (1, 3)
    assert regbench.load("class", arch="moved/same.py").logits(tokens).shape[:2] == (1, 3)


class TwoKinds(Backbone):
    """A backbone of its own, whose blocks differ."""

    def __init__(self, options: regbench.Options, io: regbench.TokenIO) -> None:
        kinds = [Parallel, AlsoParallel]
        super().__init__(lambda options: kinds.pop()(options), options, io)


def test_an_untrained_model_has_the_blocks_of_the_trained_one(tiny: Track) -> None:
    model = build(TwoKinds, TwoKinds.Options(d_model=8), tiny.task.io)
    again = untrained(Trained(Path(), "x.py", 0, tiny, model))
    assert [type(block.mixer) for block in again.blocks] == [AlsoParallel, Parallel]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "settings", "serves"),
    [
        ("lstm", {}, True),
        ("gated_deltanet", {"n_heads": 1}, True),
        ("transformer", {"n_heads": 2, "positions": "rotary"}, True),
        ("transformer", {"n_heads": 2}, False),  # learned positions
    ],
)
def test_a_model_is_asked_about_longer_instances_where_the_longest_does_not_matter(
    name: str, settings: dict[str, Any], serves: bool, tiny: Track, tmp_path: Path
) -> None:
    longest = tiny.task.io.max_length
    longer = tmp_path / "longer-v1.yaml"
    parameters: Any = TINY["parameters"]
    longer.write_text(yaml.safe_dump(TINY | {"name": "longer-v1", "parameters": {**parameters, "max_length": 30}}))
    trained = trained_of(tiny, name, d_model=8, n_layers=1, **settings)
    if not serves:
        with pytest.raises(
            UserError, match=f"^run was trained with instances of {longest} at most, and what it computes"
        ):
            on_track(trained, str(longer))
        return
    asked = on_track(trained, str(longer))
    tokens = asked.track.instances("test").tokens
    assert tokens.shape[1] > longest
    assert asked.logits(tokens).shape[:2] == tokens.shape
    torch.testing.assert_close(asked.logits(tokens[:, :longest]), trained.logits(tokens[:, :longest]))


class Parallel(regbench.Mixer):
    """Has no recurrent form."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Stepless(Parallel):
    """Has a state, and no `step`."""

    def init_state(self, batch: int, device: Any = None, dtype: Any = None) -> Tensor:
        return torch.zeros(batch)


class AlsoParallel(Parallel):
    pass


@pytest.mark.ci
def test_nothing_is_executed_that_a_folder_alone_names(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither an architecture in a file, nor a track whose task is one. Named by the caller, both are read."""
    sprung = tmp_path / "sprung"
    (tmp_path / "trap.py").write_text(f"open({str(sprung)!r}, 'w')\n")
    config = yaml.safe_load((run_folder / "config.yaml").read_text())
    own = yaml.safe_load(Path(config["track"]).read_text())
    (tmp_path / "own-v1.yaml").write_text(yaml.safe_dump(own | {"name": "own-v1", "task": str(tmp_path / "trap.py")}))
    (tmp_path / "prompt.txt").write_text("ab|")
    evil = tmp_path / "evil"
    shutil.copytree(run_folder, evil)
    commands: list[list[str]] = [
        ["adapt", str(evil), "--at", "0.5"],
        ["analyze", str(evil)],
        ["analyze", str(evil), str(run_folder)],
        ["analyze", str(run_folder), "--against", str(evil)],
        ["specialize", str(evil), "--prompt", str(tmp_path / "prompt.txt")],
        ["tint", "--size-of", str(evil)],
    ]
    for change, message in (
        ({"architecture": str(tmp_path / "trap.py")}, "which is executed only if you name it: --arch "),
        ({"track": str(tmp_path / "own-v1.yaml")}, "is loaded only if you name its file: --track "),
    ):
        (evil / "config.yaml").write_text(yaml.safe_dump(config | change))
        for command in commands:
            # tint reads runs of its own architecture alone, so it has no --arch to name.
            refused(capsys, command, "not of 'tint'" if command[0] == "tint" else message)
    assert not sprung.exists()
    (evil / "config.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["analyze", str(evil), "--arch", config["architecture"], "--limit", "8"]) == 0
