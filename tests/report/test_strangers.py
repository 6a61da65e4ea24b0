"""Run folders of strangers: to report or compare them runs nothing of theirs, writes nowhere else, and ends in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench import cli
from regbench.utils.errors import UserError
from regbench.utils.files import exclusive
from tests.conftest import TINY

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    """A finished run, to be spoiled."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def refused(folder: Path, track: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `report` and `compare` say: each refuses in one line."""
    lines = []
    for command in (["report", folder], ["compare", "uniform", folder]):
        assert cli.main([*map(str, command), "--track", str(track)]) == 2
        lines.append(capsys.readouterr().err.splitlines()[-1])
        assert lines[-1].startswith("regbench: ")
    return lines[0]


def test_a_task_of_the_folder_is_not_run(folder: Path, tiny_file: Path) -> None:
    task = folder / "task.py"
    task.write_text(f"open({str(folder / 'hacked')!r}, 'w')\n")
    track = folder / "evil-v1.yaml"
    track.write_text(yaml.safe_dump({**TINY, "name": "evil-v1", "task": str(task)}))
    (folder / "config.yaml").write_text(f"track: {track}\narchitecture: {task}\n")
    assert cli.main(["report", str(folder)]) == 0
    for name in (str(track), "evil-v1"):
        content = json.loads((folder / "result.json").read_text())
        content["track"]["name"] = name
        (folder / "result.json").write_text(json.dumps(content))
        assert cli.main(["report", str(folder)]) in (0, 2)
        assert cli.main(["compare", "uniform", str(folder)]) == 2
    assert not (folder / "hacked").exists()


@pytest.mark.ci
def test_nothing_outside_is_written(folder: Path, drawn: None, tmp_path: Path) -> None:
    outside = tmp_path / "mine"
    outside.write_text("mine")
    for name in ("report.html", "training.png", "score_by_position.png"):
        (folder / name).unlink()
        (folder / name).symlink_to(outside)
    assert cli.main(["report", str(folder)]) == 0
    (folder / ".lock").unlink(missing_ok=True)
    (folder / ".lock").symlink_to(outside)
    with pytest.raises(UserError, match=".lock is a link or no regular file"), exclusive(folder):
        pass
    assert outside.read_text() == "mine"


def test_no_link_is_followed_out_of_it(
    folder: Path, run_folder: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(folder / "seed-4")
    (folder / "seed-4").symlink_to(run_folder / "seed-4")
    assert "links are not followed" in refused(folder, tiny_file, capsys)
    (folder / "result.json").unlink()
    (folder / "result.json").symlink_to(run_folder / "result.json")
    assert "links are not followed" in refused(folder, tiny_file, capsys)


@pytest.mark.parametrize(
    "text", [b"[" * 1_000_000, b'{"schema_version": ' + b"9" * 4000 + b"}", b'{"a": NaN}', b"\xff", b"{}", b"[]"]
)
def test_what_is_no_result(folder: Path, tiny_file: Path, text: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "result.json").write_bytes(text)
    assert len(refused(folder, tiny_file, capsys)) < 400


CHANGES: dict[str, Change] = {
    "no fingerprints": lambda c: c["track"].update(fingerprints={}),
    "an unknown main score": lambda c: c["track"].update(main_score="plateau"),
    "a main score of another task": lambda c: c["track"].update(main_score="mse"),
    "empty curves": lambda c: [
        curve.update(value=[], position=[], count=[]) for curve in c["seeds"][0]["curves"].values()
    ],
    "no curves": lambda c: c["seeds"][0].update(curves={}),
    "a count of zero": lambda c: c["seeds"][0]["curves"]["tvd"].update(
        count=[0] * len(c["seeds"][0]["curves"]["tvd"]["count"])
    ),
    "scores whose sum is none": lambda c: [seed["scores"]["nll"].update(value=1.7e308) for seed in c["seeds"]],
    "no losses": lambda c: c["seeds"][0]["training_curve"][0].update(loss={}),
    "a seed of 30 digits": lambda c: c["seeds"][0].update(seed=10**30),
    "a terminal's escape codes": lambda c: c["architecture"].update(name="\x1b[2J"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_result_that_cannot_be_shown(
    folder: Path, tiny_file: Path, change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((folder / "result.json").read_text())
    change(content)
    (folder / "result.json").write_text(json.dumps(content))
    assert refused(folder, tiny_file, capsys).isprintable()


STRANGE: dict[str, Change] = {
    "no training curve": lambda c: [seed.update(training_curve=[]) for seed in c["seeds"]],
    "a formula as the name": lambda c: c["architecture"].update(name="$\\frac{$"),
    "no baselines": lambda c: c.update(baselines={}),
    "a score beyond measure": lambda c: c["seeds"][0]["scores"]["nll"].update(value=1e300, stderr=1e308),
    "a curve beyond measure": lambda c: c["seeds"][0]["curves"]["nll"].update(
        value=[1e308, -1e308, *c["seeds"][0]["curves"]["nll"]["value"][2:]]
    ),
    "positions beyond measure": lambda c: [
        seed["curves"]["nll"].update(
            position=[(-1) ** i * 1e308 for i in range(len(seed["curves"]["nll"]["position"]))]
        )
        for seed in c["seeds"]
    ],
    "numbers of steps beyond measure": lambda c: [
        row.update(tokens=(-1) ** i * (2**62), validation_loss=1e308)
        for i, row in enumerate(c["seeds"][0]["training_curve"])
    ],
    "seconds beyond measure": lambda c: c["seeds"][0].update(seconds=1e308, tokens_per_second=-1e308),
}


@pytest.mark.ci
@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE.keys())
@pytest.mark.filterwarnings("ignore")
def test_a_strange_result_is_shown_or_refused_in_a_line(
    folder: Path, drawn: None, change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((folder / "result.json").read_text())
    change(content)
    (folder / "result.json").write_text(json.dumps(content))
    if cli.main(["report", str(folder)]) != 0:
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("regbench: ")


def test_a_name_is_no_markup(folder: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((folder / "result.json").read_text())
    content["architecture"]["name"] = "[/]"
    (folder / "result.json").write_text(json.dumps(content))
    for command in (["errors"], ["compare", "uniform"]):
        assert cli.main([*command, str(folder), "--track", str(tiny_file)]) == 0
    assert "[/]" in capsys.readouterr().out
