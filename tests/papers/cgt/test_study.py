"""`regbench analyze` on a tiny run: every finding and picture, and what it says of wrong input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from papers.cgt.modes import MODES, read_in_modes
from papers.cgt.segments import segments, single_context_segments
from papers.cgt.study import caught_up_after, distance_from_cut, study
from regbench import cli
from regbench.analysis.trained import load
from regbench.tasks.arithmetic import Arithmetic
from regbench.tasks.base import Splits
from regbench.tracks import Track
from tests.helpers.typed import refused

PICTURES = {"loss_by_distance", "dot_products"}


@pytest.mark.ci
def test_everything_is_measured_and_drawn(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", str(run_folder), "--limit", "16", "--rate", "0.1"]) == 0
    out = capsys.readouterr().out
    folder = run_folder / "analysis"
    assert {path.stem for path in folder.glob("*.png")} == PICTURES
    found = json.loads((folder / "analysis.json").read_text())
    assert found["architecture"] == "cgt"
    assert found["instances"] == 16
    assert found["split"] == "validation"
    assert set(found["after_the_prompt"]) == set(MODES)
    assert set(found["after_the_prompt"]["dynamic"]) == {"legal_accuracy", "token_accuracy", "tvd", "nll"}
    assert found["linear_probe"] is None  # the truth of an automaton is no list of real numbers
    assert found["variation"] > 0
    assert set(found["loss_by_distance"]["modes"]) == set(MODES) - {"unprompted"}
    assert found["loss_by_distance"]["counted_in"] == "tokens"
    assert found["tokens_until_moved"] is found["topics"] is None  # one context an instance, and no topics
    assert found["activation_patching"]["pairs"] > 0
    for words in ("specialised, prompt read", "CGT Eq. 4", "pictures and analysis.json"):
        assert words in out


@pytest.mark.ci
def test_another_seed_and_another_place(run_folder: Path, tmp_path: Path) -> None:
    out = ["--limit", "8", "--split", "test", "--out", str(tmp_path / "here")]
    assert cli.main(["analyze", str(run_folder), "--seed", "4", *out]) == 0
    found = json.loads((tmp_path / "here" / "analysis.json").read_text())
    assert (found["seed"], found["split"]) == (4, "test")


@pytest.mark.ci
def test_against_another_run(run_folder: Path, tmp_path: Path) -> None:
    """Against itself the modes but for "unprompted" are as before, and "unprompted" makes no difference."""
    out = ["--limit", "8", "--against", str(run_folder), "--out", str(tmp_path)]
    assert cli.main(["analyze", str(run_folder), *out]) == 0
    found = json.loads((tmp_path / "analysis.json").read_text())
    against, own = found["against"], found["loss_by_distance"]
    assert {mode: against["modes"][mode] for mode in own["modes"]} == own["modes"]
    assert set(against["modes"]["unprompted"]["mean"]) == {0.0}
    assert (against["architecture"], against["counted_in"], found["trained_on"]) == ("cgt", "tokens", "tiny-v1")
    assert (tmp_path / "against.png").exists()
    trained = load(run_folder)
    instances = trained.track.instances("validation")[:8]
    parts = single_context_segments(trained.track.task, instances)
    outcomes = read_in_modes(trained.model, trained.track.task, instances, parts, 1 / 300)  # type: ignore[arg-type]
    gap = outcomes.values["specialised"]["nll"] - outcomes.values["unprompted"]["nll"]
    first = against["specialised_in_first_8_tokens"]["value"]
    assert first == pytest.approx(gap[:, :8][outcomes.scored[:, :8]].mean())


@pytest.mark.ci
def test_on_another_track(
    run_folder: Path, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(tiny_file.read_text())
    for name, change in (
        ("shorter-v1", {"max_strings": 3}),
        ("longer-v1", {"max_strings": 9}),
        ("fewer-v1", {"max_alphabet": 3}),
    ):
        content["name"] = name
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content | {"parameters": content["parameters"] | change}))
    track = tmp_path / "shorter-v1.yaml"
    out = ["--limit", "4", "--out", str(tmp_path / "out")]
    assert cli.main(["analyze", str(run_folder), "--track", str(track), *out]) == 0
    found = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert (found["track"], found["trained_on"]) == ("shorter-v1", "tiny-v1")
    assert cli.main(["analyze", str(run_folder), "--against", str(tmp_path)]) == 2
    refused(capsys, ["analyze", str(run_folder), "--track", str(tmp_path / "longer-v1.yaml")], "with instances of")
    other = "was trained on tiny-v1; arithmetic-small-v1 has other tokens"
    refused(capsys, ["analyze", str(run_folder), "--track", "arithmetic-small-v1"], other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task-vectors", "--rate", "0.1"], "--rate is not for --task-vectors"),
        (["--seed", "7"], "has no seed 7; its seeds are 0, 4"),
        (["--limit", "2"], "--limit 2 is too few: four instances or more"),
        (["--rate", "2"], "--rate 2 is not between 0 and 1"),
        (["--out", "/dev/null/x"], "cannot write /dev/null/x: a part of that path is a file, no folder"),
        (["--task-vectors", "--out", "/dev/null/x"], "cannot write /dev/null/x: a part of that path is a file"),
    ],
)
def test_wrong_arguments(
    run_folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["analyze", str(run_folder), *arguments], message)


def test_after_the_prompt_examples_are_counted_where_there_are_any() -> None:
    task = Arithmetic(Arithmetic.Parameters(n_tasks=1, n_examples=6, n_digits=1))
    instances = task.generate(Splits(train=1, validation=1, test=3, seed=0), "test")
    read = segments(task, instances)
    after, unit = distance_from_cut(task, instances, read)
    assert unit == "examples"
    for row, cut, end, found in zip(read.row, read.cut, read.end, after, strict=True):
        text = "".join(np.array(task.io.names)[instances.tokens[row, cut:end]])
        assert found[: end - cut].tolist() == [text[:k].count("|") for k in range(end - cut - 1)] + [
            2
        ]  # and the last "#"


def test_after_the_prompt_of_text_tokens_are_counted(text_track: Track) -> None:
    test = text_track.instances("test")
    after, unit = distance_from_cut(text_track.task, test, segments(text_track.task, test))
    assert unit == "tokens"
    assert after.shape[1] == 28
    assert after[0].tolist() == [middle for middle in np.arange(1.5, 28, 4) for _ in range(4)]


def test_caught_up_is_where_nothing_after_it_is_ahead_again() -> None:
    distance, error = np.arange(5.0), np.full(5, 0.1)

    def caught(*mean: float) -> float | None:
        return caught_up_after(distance, np.array(mean), error)

    assert caught(-1.0, 0.05, -1.0, -0.05, 0.0) == 3.0  # at 1 it is level by chance
    assert caught(-1.0, -0.5, 0.2, 0.2, 0.2) == 2.0
    assert caught(-1.0, -0.5, 0.2, 0.2, -0.3) is None
    assert caught(-1.0, -0.5, 0.2, 0.2, -0.2) == 2.0  # of five, one is so far ahead by chance
    assert caught(0.0, -0.15, 0.0, 0.0, 0.0) is None  # it was never ahead
    assert caught_up_after(*(np.array([]),) * 3) is None
    rng, alone, error = np.random.default_rng(0), np.arange(64.0), np.ones(64)
    chance = [caught_up_after(alone, rng.normal(size=64), error) for _ in range(2000)]
    assert np.mean([one is not None for one in chance]) < 0.04
    lead = np.where(alone < 16, -10.0, 0.0)
    found = [caught_up_after(alone, lead + rng.normal(size=64), error) for _ in range(500)]
    assert np.mean([one == 16.0 for one in found]) > 0.95


@pytest.mark.ci
def test_of_few_instances_it_says_that_it_cannot_tell(run_folder: Path, tmp_path: Path) -> None:
    trained = load(run_folder)
    found = study(trained, tmp_path, split="validation", limit=4, rate=0.1)
    few = found.findings["loss_by_distance"]["modes"]["specialised"]["distance"]
    words = found.lines["the unprompted model catches up with the specialised one"]
    assert (words == "too few instances to tell") == (few == [])
    assert few == []


def test_without_scikit_learn_nothing_is_measured(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for more in ([], ["--table", "t.md"]):
        message = "needs the package scikit-learn: pip install 'regbench[analysis]'\n"
        refused(capsys, ["analyze", str(run_folder), *more], message)
