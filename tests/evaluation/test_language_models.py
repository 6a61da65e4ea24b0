"""Language models on the board: what is kept, what is refused, and the table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbench import cli, runner
from regbench.evaluation import language_models
from regbench.evaluation.language_models import read_language_models
from regbench.leaderboard import publish
from regbench.leaderboard.page import build_page
from regbench.leaderboard.rank import rank
from regbench.tracks import Track
from tests.helpers.language_models import random_model
from tests.leaderboard.examples import make_entries


@pytest.fixture(scope="module")
def scored(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two mappings of a random GPT-2 on eight test instances."""
    out, folder = tmp_path_factory.mktemp("scored") / "gpt", tmp_path_factory.mktemp("model") / "My-GPT"
    settings = {"mappings": (0, 1), "limit": 8, "prompt": "a b"}
    runner.evaluate_language_model(
        str(tiny_file), random_model("GPT2", folder), settings=settings, device="cpu", out=out
    )
    return out


@pytest.fixture(autouse=True)
def _tiny_is_built_in(tiny: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_models, "track_names", lambda: {tiny.name: ""})
    monkeypatch.setattr(language_models, "load_track", lambda name: tiny)


def submitted(scored: Path, board: Path, *more: str) -> int:
    """To a board whose track has an entry."""
    (board / "entries" / "tiny-v1").mkdir(parents=True, exist_ok=True)
    (board / "entries" / "tiny-v1" / "some.json").touch()
    return cli.main(["submit", str(scored), "--board", str(board), *more])


def test_it_stands_below_the_entries_and_has_no_rank(
    scored: Path, tiny: Track, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted(scored, tmp_path / "board") == 0
    assert "my-gpt.json; next: regbench leaderboard" in capsys.readouterr().out
    assert submitted(scored, tmp_path / "board") == 2
    assert "my-gpt.json is there: --replace" in capsys.readouterr().err
    assert submitted(scored, tmp_path / "board", "--replace") == 0
    assert submitted(scored, tmp_path / "board", "--name", "../mine") == 2
    assert "'../mine' cannot name a language model" in capsys.readouterr().err
    found, faults = read_language_models(tmp_path / "board")
    assert faults == []
    (one,) = found[tiny.name, tiny.definition.digest]
    assert str(tmp_path) not in (tmp_path / "board" / "language-models" / tiny.name / "my-gpt.json").read_text()
    assert one.command == "regbench evaluate hf:My-GPT --track tiny-v1 --mapping 0 1 --prompt 'a b' --limit 8"
    (plain,) = rank(make_entries(tiny), tiny)
    board = replace(plain, language_models=(one,))
    table = publish.markdown(board).partition("## Language models")[2]
    score = one.result.score("legal_accuracy")
    assert f" {score.value:.3f} ± {score.stderr:.3f} " in table
    assert f" {100 * one.outside:.1f} % " in table
    assert one.command in table
    page = build_page([board])
    assert '<section class="models' in page
    assert '<section class="models' not in build_page([plain])
    assert publish.csv(board) == publish.csv(plain)


def test_without_entries_on_its_track_it_would_not_be_shown(
    scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["submit", str(scored), "--board", str(tmp_path)]) == 2
    assert "tiny-v1 has no entries: a language model stands below those of its track" in capsys.readouterr().err
    assert submitted(scored, tmp_path, "--by", "somebody") == 2
    assert "--by is not for a language model" in capsys.readouterr().err


def test_scores_that_do_not_follow_from_the_predictions_are_refused(
    scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = tmp_path / "forged"
    (forged / "seed-0").mkdir(parents=True)
    (forged / "seed-1").mkdir()
    content = json.loads((scored / "result.json").read_text())
    content["seeds"][1]["scores"]["nll"]["value"] -= 0.5
    (forged / "result.json").write_text(json.dumps(content))
    for seed in ("seed-0", "seed-1"):
        (forged / seed / "predictions.npz").write_bytes((scored / seed / "predictions.npz").read_bytes())
    assert submitted(forged, tmp_path / "board") == 2
    assert re.search(r"forged: mapping 1: nll is \S+, and the predictions give \S+\n$", capsys.readouterr().err)
    with np.load(scored / "seed-0" / "predictions.npz") as arrays:
        np.savez(forged / "seed-0" / "predictions.npz", packed=arrays["packed"][:-1], lengths=arrays["lengths"])
    assert submitted(forged, tmp_path / "board") == 2
    assert "cannot read predictions" in capsys.readouterr().err
    assert not (tmp_path / "board" / "language-models").exists()


def changed(what: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], str]:
    """A file of the board with one thing changed."""

    def write(content: dict[str, Any]) -> str:
        what(content)
        return json.dumps(content)

    return write


def options(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["architecture"]["options"]
    return found


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (lambda content: "{", "not JSON"),
        (changed(lambda c: c["track"].update(name="other-v1")), "it is not on other-v1 as it is built in here"),
        (changed(lambda c: c["track"].update(digest="0" * 64)), "it is not on tiny-v1 as it is built in here"),
        (
            changed(lambda c: c["evaluation"].update(split="validation")),
            "of the validation split; the board is of the test",
        ),
        (changed(lambda c: c.update(evaluation=None)), "no result of `regbench evaluate hf:NAME`"),
        (changed(lambda c: c.update(schema_version=True)), "schema_version"),
    ],
)
def test_what_is_wrong_on_the_board_is_one_line(
    spoiled: Callable[[dict[str, Any]], str], message: str, scored: Path, tmp_path: Path
) -> None:
    assert submitted(scored, tmp_path / "board") == 0
    path = tmp_path / "board" / "language-models" / "tiny-v1" / "my-gpt.json"
    path.write_text(spoiled(json.loads(path.read_text())))
    _, faults = read_language_models(tmp_path / "board")
    assert message in faults[0]
    assert "\n" not in faults[0]


def test_a_prompt_does_not_leave_the_block_of_commands(scored: Path, tiny: Track, tmp_path: Path) -> None:
    assert submitted(scored, tmp_path / "board") == 0
    path = tmp_path / "board" / "language-models" / "tiny-v1" / "my-gpt.json"
    prompt = json.dumps("a\n```\n# First place\n````\n")
    path.write_text(changed(lambda content: options(content).update(prompt=prompt))(json.loads(path.read_text())))
    found, _ = read_language_models(tmp_path / "board")
    (board,) = rank(make_entries(tiny), tiny)
    table = publish.markdown(replace(board, language_models=tuple(found[tiny.name, tiny.definition.digest])))
    opening, text, rest = table.partition("`````\nregbench evaluate ")[1], *table.rpartition("\n`````\n")[::2]
    assert opening
    assert "# First place" in text
    assert rest == ""


def test_no_link_is_followed(scored: Path, tmp_path: Path) -> None:
    assert submitted(scored, tmp_path / "board") == 0
    folder = tmp_path / "board" / "language-models" / "tiny-v1"
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    found, faults = read_language_models(tmp_path / "board")
    assert not found
    assert "links are not followed" in "".join(faults)


@pytest.mark.ci
def test_reading_the_board_loads_no_pictures_and_no_kernels() -> None:
    """They take 100 MiB, which `compare` of large runs needs to stay under 1 GiB."""
    code = (
        "import sys, regbench.leaderboard.standing, regbench.evaluation.language_models\n"
        "sys.exit(' '.join({'matplotlib', 'triton'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
