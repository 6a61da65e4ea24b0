"""The pages of CGT in `docs/papers/` keep their word: their commands run in order, and the options are the model's."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from architectures.cgt import ContextuallyGuided
from papers.cgt.prompts import load_specialised
from regbench import cli
from tests.data.text.conftest import write_corpus
from tests.helpers.documents import ROOT, blocks, body_rows, commands, section

USE, CLAIMS = ((ROOT / "docs" / "papers" / name).read_text(encoding="utf-8") for name in ("cgt.md", "cgt-claims.md"))
TEXT = USE + CLAIMS
TRACK = {
    "name": "tiny-v1",
    "task": "arithmetic",
    "parameters": {"n_tasks": 1, "n_examples": 16, "n_digits": 1},
    "splits": {"train": 40, "validation": 60, "test": 60, "seed": 0},  # enough of them for a linear probe
    "budget": {"train_tokens": 2400},
    "main_score": "last_two_accuracy",
}
TEXT_TRACK: dict[str, Any] = {
    "name": "tiny-text-v1",
    "task": "text_mixture",
    "parameters": {"source": "texts", "length": 64, "min_cut": 24, "max_cut": 40, "vocab_size": 300},
    "splits": {"train": 40, "validation": 24, "test": 24, "seed": 0},
    "budget": {"train_tokens": 2400},
    "main_score": "nll",
}
SINGLE_TRACK: dict[str, Any] = TEXT_TRACK | {
    "name": "tiny-single-v1",
    "task": "text",
    "parameters": {"source": "texts", "length": 64, "vocab_size": 300},
}
TINY_TRAINING = {"train_tokens": 2400, "batch_size": 8}
SMALL = {
    "cgt": ("d_model=16", "n_heads=2", "d_y=8", "y_heads=2", "n_layers=2", "y_layer=1", "templates=2"),
    "transformer": ("d_model=16", "n_heads=2", "n_layers=1"),
    "fast_slow": ("d_model=16", "n_heads=2", "d_y=8", "n_layers=2", "y_layer=1"),
}


def replaced(setting: re.Match[str]) -> str:
    """A training setting, for a tiny track."""
    return f"training.{setting[1]}={TINY_TRAINING[setting[1]]}"


def smaller(arguments: list[str]) -> list[str]:
    """The same `regbench run`, on a tiny track of its kind, with a tiny model and no GPU."""
    given_track = arguments[arguments.index("--track") + 1] if "--track" in arguments else ""
    of_text = {"text-mixture-small-v1": "tiny-text-v1", "text-small-v1": "tiny-single-v1"}
    track = of_text.get(given_track, given_track.removesuffix(".yaml") if given_track.endswith(".yaml") else "tiny-v1")
    architecture = next((name for name in ("transformer", "fast_slow") if name in " ".join(arguments[:3])), "cgt")
    given = {pair.partition("=")[0] for flag, pair in itertools.pairwise(arguments) if flag == "--set"}
    small = (*SMALL[architecture], *(["training.batch_size=8"] if "--config" in arguments else []))
    settings = [pair for pair in small if pair.partition("=")[0] not in given]
    return [
        *(re.sub(r"^training\.(train_tokens|batch_size)=.*", replaced, word) for word in arguments),
        *(word for pair in settings for word in ("--set", pair)),
        *("--track", f"{track}.yaml", "--device", "cpu", "--seed", "0", *(["1"] if "1" in arguments else [])),
    ]


def own_tracks() -> list[dict[str, Any]]:
    """The tracks of the pages, smaller: of three texts, with the tokens of the tiny one; of several tasks."""
    found = []
    for content in (yaml.safe_load(block) for kind, block in blocks(TEXT) if kind == "yaml"):
        small = {key: TEXT_TRACK[key] for key in ("splits", "budget")}
        if content["task"] == "text_mixture":
            small["parameters"] = {**SINGLE_TRACK["parameters"], "excerpts": content["parameters"]["excerpts"]}
        found.append(content | small)
    return found


@pytest.mark.ci
def test_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, for they build on one another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "architectures").symlink_to(ROOT / "architectures")
    for track in (TRACK, TEXT_TRACK, SINGLE_TRACK, *own_tracks()):
        Path(f"{track['name']}.yaml").write_text(yaml.safe_dump(track))
    write_corpus(tmp_path / "texts", documents=24)
    for command in commands(TEXT):
        words = shlex.split(command)
        if words[0] == "echo":
            subprocess.run(command, shell=True, check=True)
            continue
        assert words[0] == "regbench", command
        if words[1] == "adapt":  # fewer steps of fewer prompts
            words = [{"1,4,16,64": "1,2", "100": "4"}.get(word, word) for word in words]
        if words[1] == "analyze":
            words = ["tiny-text-v1.yaml" if word == "text-mixture-small-v1" else word for word in words]
        code = cli.main(smaller(words[1:]) if words[1] == "run" else words[1:])
        said = capsys.readouterr()
        assert code == 0, f"{command}: {said.err}"
        assert said.out
        if "--generate" in words:
            assert "noise" not in said.out, "it is shown where every token is trained"
    written = {path.name for path in tmp_path.iterdir()}
    assert {f"{name}.{form}" for name in ("table-1", "figure-4") for form in ("md", "json", "png")} <= written
    table = Path("table-1.md").read_text()
    for name in ("transformer", "cgt-plain", "cgt-auxiliary", "cgt-both"):
        assert f"| {name} | 2 |" in table
    (example,) = (block for kind, block in blocks(TEXT) if kind == "python")
    names: dict[str, object] = {}
    exec(example, names)
    assert isinstance(names["model"], type(load_specialised("runs/cgt-both/specialised.safetensors")))
    # Every picture that the page speaks of is there.
    for picture in re.findall(r"`(\w+\.png)`", section(USE, "### What one run gives")):
        assert any(tmp_path.glob(f"runs/*/analysis/{picture}")), picture


def test_its_table_of_options_is_the_models() -> None:
    """Every option of the model, those of the common backbone apart, and none besides."""
    rows = [line for line in section(USE, "## Options").splitlines() if line.startswith("| ")][2:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    common = {"ngram_heads", "ngram_after", "ngram_mlp", "short_conv", "canon"}
    assert named == set(ContextuallyGuided.Options.model_fields) - common


@pytest.mark.parametrize(
    "heading",
    [
        "## Arithmetic (CGT Table 1)",
        "## Linear regression (CGT Figure 4)",
        "## Text (CGT section 4.4)",
        "## The base model and its VAE form (2024)",
        "## Options of CGT",
    ],
)
def test_every_claim_has_a_criterion_and_a_verdict(heading: str) -> None:
    """And stands first in its section, before the commands and the scores."""
    part = section(CLAIMS, heading)
    rows = body_rows(part)
    claims = [row for row in rows if len(row) == 5]
    assert len(claims) >= 4
    assert rows[: len(claims)] == claims
    for claim, _, ours, criterion, holds in claims:
        assert "" not in (ours, criterion), claim
        assert holds.startswith(("holds", "in direction", "not ", "undecided")) or criterion == "none", claim
    assert commands(part)
