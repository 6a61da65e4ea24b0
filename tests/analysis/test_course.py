"""The distance of a run from baselines over the course of its training: by the definition, in a table and a picture."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import regbench
from baselines.ngram import NGram
from regbench import cli
from regbench.analysis.course import courses
from regbench.analysis.trained import load
from regbench.evaluation.find_predictors import find_predictors
from regbench.tracks import Track
from regbench.training.checkpoint import course_file, load_tensors
from regbench.utils.errors import UserError
from tests.helpers.typed import PLUGIN, refused

SETTINGS = {"d_model": 8, "n_layers": 1, "training.train_tokens": 3000, "training.evaluations": 3}


def kept_checkpoints(folder: Path) -> dict[int, Path]:
    """The weights in a seed's folder, by the number of training tokens, in order."""
    return {int(path.stem): path for path in sorted((folder / course_file(0)).parent.glob("*.safetensors"))}


@pytest.fixture(scope="module")
def runs(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of two seeds that keeps its checkpoints, and the first seed of it without."""
    folder = tmp_path_factory.mktemp("course")
    kept = SETTINGS | {"training.keep_checkpoints": True}
    regbench.run(str(tiny_file), "lstm", [0, 1], settings=kept, out=folder / "kept")
    regbench.run(str(tiny_file), "lstm", [0], settings=SETTINGS, out=folder / "plain")
    return {"kept": folder / "kept", "plain": folder / "plain"}


def test_weights_are_kept_at_every_evaluation_and_training_is_the_same(runs: dict[str, Path]) -> None:
    kept = kept_checkpoints(runs["kept"] / "seed-0")
    result = regbench.Result.model_validate_json((runs["kept"] / "result.json").read_text())
    assert list(kept) == [0, *(row.tokens for row in result.seeds[0].training_curve)]
    best = {min(result.seeds[0].training_curve, key=lambda row: row.validation_loss).tokens: "best"}
    final, _ = load_tensors(runs["kept"] / "seed-0" / "checkpoint.safetensors")
    for tokens, path in kept.items():
        weights, _ = load_tensors(path)
        same = all(torch.equal(weights[name], value) for name, value in final.items())
        assert same == (tokens in best)
    other, _ = load_tensors(runs["plain"] / "seed-0" / "checkpoint.safetensors")
    assert all(torch.equal(other[name], value) for name, value in final.items())
    assert kept_checkpoints(runs["plain"] / "seed-0") == {}


def test_distances_are_those_of_the_definition(tiny: Track, tiny_file: Path, runs: dict[str, Path]) -> None:
    found = find_predictors([f"run={runs['kept']}", "2-gram", "oracle"], str(tiny_file))
    (course,) = courses(found, tokens=9)
    test, io = tiny.instances("test"), tiny.task.io
    scored = test.scored[:, :9]
    known = {
        "2-gram": NGram(2, io.vocab_size, io.separator).predict(test.tokens)[:, :9],
        "oracle": tiny.task.truth(test)[:, :9],
    }
    assert course.name == "run"
    assert set(course.distance) == set(known)
    for at, tokens in enumerate(course.tokens):
        for name, said in known.items():
            by_seed = []
            for seed in (0, 1):
                trained = load(runs["kept"], seed)
                path = list(kept_checkpoints(runs["kept"] / f"seed-{seed}").values())[at]
                trained.model.load_state_dict(load_tensors(path)[0])
                by_seed.append(0.5 * np.abs(trained.predict(test.tokens[:, :9]) - said).sum(-1)[scored].mean())
            assert course.distance[name][at].value == pytest.approx(np.mean(by_seed), abs=1e-3), (tokens, name)


def test_the_command(
    tiny_file: Path, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "course.png"
    words = [f"mine={runs['kept']}", "2-gram", "oracle", "--track", str(tiny_file), "--course", str(picture)]
    assert cli.main(["compare", *words]) == 0
    said = capsys.readouterr().out
    assert "mine: TVD from" in said
    assert f"wrote {picture} and course.csv" in said.replace("\n", "")
    assert imread(picture).shape[0] > 300
    rows = list(csv.DictReader(picture.with_suffix(".csv").open()))
    assert {row["predictor"] for row in rows} == {"2-gram", "oracle"}
    assert len(rows) == 2 * len(kept_checkpoints(runs["kept"] / "seed-0"))
    assert [int(row["training_tokens"]) for row in rows[:2]] == list(kept_checkpoints(runs["kept"] / "seed-0"))[:2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{plain}", "2-gram"], "plain kept no checkpoints: train it with --set training.keep_checkpoints=true"),
        (["{kept}", "{plain}"], "a course needs a run to follow, and a baseline to compare it with"),
        (["2-gram", "oracle"], "a course needs a run to follow, and a baseline to compare it with"),
        (["{kept}", "2-gram", "--tokens", "0"], "tokens must be at least 1, not 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    words: list[str],
    message: str,
    tiny_file: Path,
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [word.format(**runs) for word in words]
    course = ["--track", str(tiny_file), "--course", str(tmp_path / "c.png")]
    refused(capsys, ["compare", *given, *course], message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--out=d.png", "--csv=d.csv", "--order=given"])
def test_what_a_course_does_not_take_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = f"{option.split('=')[0]} is of the distances between predictors: leave it out beside --course"
    refused(capsys, ["compare", "2-gram", "oracle", "--course", "c.png", option], message)


def test_seeds_that_were_evaluated_at_different_moments_have_no_course(
    tiny_file: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["kept"], run)
    result = json.loads((run / "result.json").read_text())
    del result["seeds"][1]["training_curve"][-1]
    (run / "result.json").write_text(json.dumps(result))
    found = find_predictors([str(run), "2-gram"], str(tiny_file))
    with pytest.raises(UserError, match="were evaluated 2 and 3 times: their mean has no course"):
        courses(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"d_modle": 8}, "d_modle"), ({"d_model": "eight"}, "d_model"), ({"d_model": 16}, "not the weights of this")],
)
def test_options_that_are_not_those_of_the_weights_are_refused(
    options: dict[str, object], message: str, tiny_file: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["kept"], run)
    result = json.loads((run / "result.json").read_text())
    result["architecture"]["options"] |= options
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=message):
        courses(find_predictors([str(run), "2-gram"], str(tiny_file)))


def test_no_link_is_followed(tiny_file: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["kept"], run)
    kept = run / "seed-1" / course_file(0)
    kept.unlink()
    kept.symlink_to(runs["kept"] / "seed-1" / course_file(0))
    with pytest.raises(UserError, match=f"{run}: seed-1/{course_file(0)}: "):
        courses(find_predictors([str(run), "2-gram"], str(tiny_file)))


def test_no_file_is_executed(tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixer = tmp_path / "mine.py"
    mixer.write_text(PLUGIN)
    kept = SETTINGS | {"training.keep_checkpoints": True}
    regbench.run(str(tiny_file), str(mixer), [0], settings=kept, out=tmp_path / "run")
    words = [str(tmp_path / "run"), "2-gram", "--track", str(tiny_file), "--course", str(tmp_path / "c.png")]
    refused(capsys, ["compare", *words], "a comparison executes no file")


def test_a_picture_is_a_png(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    message = "--course takes the name of a PNG picture, not 'course.svg'"
    refused(capsys, ["compare", str(runs["kept"]), "2-gram", "--course", "course.svg"], message)
