"""docs/own-task.md keeps its word: its task keeps the contract, its commands run, in a folder of their own."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from regbench import cli
from regbench.checks.task import CONTRACT
from regbench.results import Code
from regbench.tracks import SPLITS, load_track
from tests.helpers.documents import blocks, commands
from tests.tasks.conftest import PAGE


def test_it_is_short() -> None:
    (task,) = (block for kind, block in blocks(PAGE) if kind == "python")
    assert len(task.splitlines()) < 60
    assert len(PAGE.splitlines()) <= 120


def test_its_commands_run(own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand there, with fewer tokens; what `run` leaves is what `compare` and `submit` take."""
    monkeypatch.setattr(
        "regbench.runner.train.describe_code", lambda: Code(commit="0" * 40, dirty=False)
    )  # as from a clean checkout
    outputs = {}
    for command in commands(PAGE):
        program, *arguments = shlex.split(command)
        if program == "mkdir":
            Path(*arguments).mkdir()
            continue
        if arguments[0] == "run":
            arguments += ["--set", "training.train_tokens=3000", "--set", "d_model=8", "--set", "n_layers=1"]
        assert cli.main(arguments) == 0, command
        outputs[arguments[0]] = capsys.readouterr().out
    assert list(outputs) == ["data", "baselines", "run", "compare", "submit"]
    assert f"the task keeps its contract: {len(CONTRACT)} checks" in " ".join(outputs["data"].split())
    assert "train and test 0" in outputs["data"]
    (entry,) = (own / "board" / "entries" / "repeating-v1").glob("*.json")
    for rest in ([], ["--run", "runs/lstm"]):
        assert cli.main(["verify", str(entry), "--track", "repeating-v1.yaml", *rest]) == 0


def test_its_instances_are_what_it_says(own: Path) -> None:
    """The symbol of a period before, but for the noise; scored from the second time on; the truth has the noise's share."""
    track = load_track("repeating-v1.yaml")
    for split in SPLITS:
        instances = track.instances(split)
        clean, scored = instances.truth_at["clean"], instances.scored
        for row in range(len(instances)):
            period = int(scored[row].argmax())
            assert 6 <= period <= 8
            assert scored[row, period:].all()
            assert (clean[row, period:] == clean[row, :-period]).all()
        truth = track.task.truth(instances)
        assert set(truth[scored].round(9).ravel()) == {0.0, 0.02, 0.92}
        assert (instances.tokens != clean).mean() == pytest.approx(
            0.08, abs=0.03
        )  # of one in ten a fifth stays as it is


def test_too_few_words_is_said_in_one_line(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    track = Path("repeating-v1.yaml")
    track.write_text(track.read_text().replace("n_symbols: 5, longest: 8", "n_symbols: 2, longest: 6"))
    assert cli.main(["data", str(track)]) == 2
    assert capsys.readouterr().err == "regbench: there are too few words for so many instances: raise longest\n"
