"""RULES.md keeps its word: every check it names is there, is all there is, and fires when its rule is broken."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbench.leaderboard import submit as submitting
from regbench.leaderboard.case import Findings
from regbench.leaderboard.examine import CHECKS
from regbench.leaderboard.repredict import repredict
from regbench.leaderboard.submit import submit
from regbench.leaderboard.verify import verify_entry
from regbench.training.checkpoint import load_tensors, save_tensors
from tests.leaderboard.attacks import seal, store
from tests.leaderboard.conftest import Made

RULES = (Path(__file__).resolve().parents[2] / "leaderboard" / "RULES.md").read_text(encoding="utf-8")
NAMED = re.findall(r"^\|.*\| `(\w+)` \|$", RULES, flags=re.MULTILINE)
OF_FILES = ["schema", "form", "name", "retired", "checkpoint"]
"""Checks that are about an entry's file, its name or its run, not about a claim."""

Change = Callable[[dict[str, Any]], object]


def update(*path: str | int, **values: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        place: Any = content["result"]
        for key in path:
            place = place[key]
        place.update(values)

    return change


BROKEN: dict[str, Change] = {
    "schema": update("selection", split="test"),
    "form": lambda c: c.update(digest="0" * 64),
    "name": lambda c: c.update(name="best-of-all"),
    "track": update("track", "fingerprints", test="0" * 64),
    "metrics": lambda c: [seed["curves"].pop("tvd") for seed in c["result"]["seeds"]],
    "seeds": lambda c: (c["result"]["seeds"].pop(0), c["instances"]["sums"].pop(0)),
    "distinct": lambda c: c["result"]["seeds"].__setitem__(1, {**c["result"]["seeds"][0], "seed": 1}),
    "budget": update("seeds", 0, tokens=10**7),
    "learning": update("seeds", 2, best_step=1),
    "ranges": update("seeds", 1, "scores", "legal_accuracy", value=1.01),
    "means": update("seeds", 1, "scores", "tvd", value=0.001),
    "possible": lambda c: c["instances"]["sums"][0].update(nll=[0.0] * len(c["instances"]["counts"])),
    "curves": lambda c: c["result"]["seeds"][0]["curves"]["nll"]["value"].__setitem__(0, 0.01),
    "shares": update("seeds", 0, "share_of_the_way", tvd=1.0),
    "speeds": update("seeds", 0, tokens_per_second=1e6),
    "baselines": update("baselines", "2-gram", "scores", "nll", stderr=0.5),
    "recipe": lambda c: c.update(command=c["command"].replace("--trials 2", "--trials 9")),
    "source": update("architecture", name="mine", source="mine.py"),
    "architecture": update("architecture", parameters=1),
    "code": update("code", dirty=True),
    "environment": update("environment", threads=0),
}
"""How an entry breaks a rule; the digest is made anew except where that is the rule."""


def break_predictions(run: Path) -> None:
    path = run / "seed-1" / "predictions.npz"
    with np.load(path) as file:
        packed, lengths = file["packed"], file["lengths"]
    np.savez_compressed(path, packed=packed[::-1].copy(), lengths=lengths)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


BROKEN_RUN: dict[str, Callable[[Path], object]] = {
    "predictions": break_predictions,
    "config": lambda run: edit(run / "config.yaml", "d_model: 8", "d_model: 9"),
    "logs": lambda run: edit(run / "seed-0" / "metrics.jsonl", '"validation_loss": ', '"validation_loss": 1'),
    "weights": lambda run: save_tensors(run / "seed-2" / "checkpoint.safetensors", {}),
}


def found(findings: Findings) -> set[str]:
    return {fault.check for fault in findings.faults}


def test_the_rules_name_every_check_and_no_other() -> None:
    assert sorted(NAMED) == sorted([check.__name__ for check in CHECKS] + OF_FILES)
    assert set(NAMED) == {*BROKEN, *BROKEN_RUN, "retired", "checkpoint"}


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_rule_is_found_by_its_check(check: str, lstm: Made, tmp_path: Path) -> None:
    content = lstm.entry.content()
    assert verify_entry(lstm.path, track=lstm.track).faults == []
    BROKEN[check](content)
    path = store(content if check == "form" else seal(content), tmp_path)
    assert check in found(verify_entry(path, track=lstm.track))


@pytest.mark.parametrize("check", BROKEN_RUN)
def test_a_run_that_breaks_a_rule_is_found_by_its_check(check: str, lstm: Made, tmp_path: Path) -> None:
    run = lstm.copy(tmp_path / "run")
    assert verify_entry(lstm.path, track=lstm.track, run=run).faults == []
    BROKEN_RUN[check](run)
    assert check in found(verify_entry(lstm.path, track=lstm.track, run=run))


def test_a_retired_track_takes_no_entries(lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "retirement", lambda name, digest: "tiny-v2 has taken its place")
    monkeypatch.setattr(submitting, "verify_run", lambda run, track, *rest: VERIFY_RUN(run, lstm.track, *rest))
    made = submit(lstm.run, tmp_path)
    assert found(made.findings) == {"retired"}
    assert made.path is None
    assert list(tmp_path.iterdir()) == []


VERIFY_RUN = submitting.verify_run


def test_weights_that_predict_something_else(lstm: Made, tmp_path: Path) -> None:
    run = lstm.copy(tmp_path / "run")
    findings = Findings()
    repredict(run, findings, lstm.track)
    assert findings.faults == []
    assert len(findings.notes) == 3
    assert "0 apart at most" in findings.notes[0]  # the same weights on the same machine
    path = run / "seed-1" / "checkpoint.safetensors"
    tensors, notes = load_tensors(path)
    save_tensors(path, {name: 1.5 * tensor for name, tensor in tensors.items()}, notes)
    repredict(run, findings, lstm.track)
    assert found(findings) == {"checkpoint"}
    shutil.copy(lstm.run / "seed-0" / "metrics.jsonl", path)
    findings = Findings()
    repredict(run, findings, lstm.track)
    assert found(findings) == {"checkpoint"}


def test_undetectable_things_are_told() -> None:
    """What RULES.md says a machine cannot check speaks of the same things as the list that the attacks are held to."""
    section = RULES.partition("## What a machine cannot check")[2]
    for words in (
        "losses in the training curve",
        "SHA-256 of the predictions",
        "package versions",
        "peak memory",
        "seconds a baseline",
    ):
        assert words in section
