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
from regbench.leaderboard.against_run import repredict
from regbench.leaderboard.claim import Case, Findings, Reference
from regbench.leaderboard.figures import seeds
from regbench.leaderboard.store import Stored
from regbench.leaderboard.verify import CHECKS, submit, verify_entry
from regbench.tracks import load_track
from regbench.training.checkpoint import load_tensors, save_tensors
from tests.leaderboard.attacks import seal, store
from tests.leaderboard.conftest import Made

RULES = (Path(__file__).resolve().parents[2] / "leaderboard" / "RULES.md").read_text(encoding="utf-8")
NAMED = re.findall(r"^\|.*\| `(\w+)` \|$", RULES, flags=re.MULTILINE)
OF_FILES = ["schema", "form", "name", "retired", "checkpoint", "tier", "copies", "challenge"]
"""Checks that are about an entry's file, its name or its run, not about a claim."""

TESTED_ELSEWHERE = {"retired", "checkpoint", "tier", "copies", "challenge"}

Change = Callable[[dict[str, Any]], object]


def update(*path: str | int, **values: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        place: Any = content["result"]
        for key in path:
            place = place[key]
        place.update(values)

    return change


def spread(curve: dict[str, Any]) -> None:
    """One value far too high, and the next as much too low: the average stays."""
    curve["value"][0] += 2 / curve["count"][0] * curve["count"][1]
    curve["value"][1] -= 2


def without_tvd(content: dict[str, Any]) -> None:
    """One score less, everywhere."""
    for record in (*content["result"]["seeds"], *content["result"]["baselines"].values()):
        del record["curves"]["tvd"], record["scores"]["tvd"]
    for one in content["instances"]["sums"]:
        del one["tvd"]


BROKEN: dict[str, Change] = {
    "schema": update("selection", split="test"),
    "form": lambda c: c.update(digest="0" * 64),
    "name": lambda c: c.update(name="best-of-all"),
    "track": update("track", "fingerprints", test="0" * 64),
    "metrics": without_tvd,
    "seeds": lambda c: (c["result"]["seeds"].pop(0), c["instances"]["sums"].pop(0)),
    "seeds, the same twice": lambda c: c["result"]["seeds"].__setitem__(1, {**c["result"]["seeds"][0], "seed": 1}),
    "training": update("seeds", 2, best_step=1),
    "training, a validation left out": lambda c: c["result"]["seeds"][0]["training_curve"].pop(0),
    "training, beyond the budget": update("training", train_tokens=10**7),
    "training, more tokens than asked": update("seeds", 0, tokens=10**7),
    "training, too fast": update("seeds", 0, tokens_per_second=1e6),
    "scores": update("seeds", 1, "scores", "tvd", value=0.001),
    "scores, out of range": update("seeds", 1, "scores", "legal_accuracy", value=1.01),
    "scores, normalized": update("seeds", 0, "share_of_the_way", tvd=1.0),
    "possible": lambda c: c["instances"]["sums"][0].update(nll=[0.0] * len(c["instances"]["counts"])),
    "curves": lambda c: c["result"]["seeds"][0]["curves"]["nll"]["value"].__setitem__(0, 0.01),
    "curves, out of range": lambda c: spread(c["result"]["seeds"][0]["curves"]["legal_accuracy"]),
    "plausible": lambda c: [
        row.update(validation_loss=row["validation_loss"] + 2) for row in c["result"]["seeds"][0]["training_curve"]
    ],
    "baselines": update("baselines", "2-gram", "scores", "nll", stderr=0.5),
    "configuration": lambda c: c["configuration"].update(trials=9),
    "source": update("architecture", name="mine", source="mine.py"),
    "architecture": update("architecture", parameters=1),
    "code": update("code", dirty=True),
    "environment": update("environment", threads=0),
}
"""How an entry breaks a rule, by the check that finds it; the digest is made anew except where that is the rule."""


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
    "configuration": lambda run: edit(run / "config.yaml", "d_model: 8", "d_model: 9"),
    "logs": lambda run: edit(run / "seed-0" / "metrics.jsonl", '"validation_loss": ', '"validation_loss": 1'),
    "weights": lambda run: save_tensors(run / "seed-2" / "checkpoint.safetensors", {}),
}


def found(findings: Findings) -> set[str]:
    return {fault.check for fault in findings.faults}


def test_the_rules_name_every_check_and_no_other() -> None:
    assert sorted(NAMED) == sorted([check.__name__ for check in CHECKS] + OF_FILES)
    assert set(NAMED) == {*(name.partition(",")[0] for name in BROKEN), *BROKEN_RUN, *TESTED_ELSEWHERE}


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_rule_is_found_by_its_check(check: str, lstm: Made, tmp_path: Path) -> None:
    content = lstm.entry.content()
    assert verify_entry(lstm.stored, track=lstm.track).faults == []
    BROKEN[check](content)
    path = store(content if check == "form" else seal(content), tmp_path)
    assert check.partition(",")[0] in found(verify_entry(Stored(path), track=lstm.track))


@pytest.mark.parametrize(("sum_of_each", "refused"), [(0.0, False), (0.02, True)])
def test_seeds_that_solve_every_instance_may_score_alike(sum_of_each: float, refused: bool, lstm: Made) -> None:
    """As delta rules do on bigram-outputs-small-v1, where every NLL is 0. Their predictions differ."""
    content = lstm.entry.content()
    for one in content["instances"]["sums"]:
        one.update({metric: [sum_of_each] * len(values) for metric, values in one.items()})
    entry = type(lstm.entry).model_validate(seal(content))
    case = Case(entry.result, entry.configuration, Reference(lstm.track), entry.instances)
    assert ("two seeds have the same predictions" in seeds(case)) is refused


@pytest.mark.parametrize("check", BROKEN_RUN)
def test_a_run_that_breaks_a_rule_is_found_by_its_check(check: str, lstm: Made, tmp_path: Path) -> None:
    run = lstm.copy(tmp_path / "run")
    assert verify_entry(lstm.stored, track=lstm.track, run=run).faults == []
    BROKEN_RUN[check](run)
    assert check in found(verify_entry(lstm.stored, track=lstm.track, run=run))


def test_a_retired_track_takes_no_entries(lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "retirement", lambda name, digest: "tiny-v2 has taken its place")
    monkeypatch.setattr(submitting, "verify_run", lambda run, track, *rest: VERIFY_RUN(run, lstm.track, *rest))
    made = submit(lstm.run, tmp_path)
    assert found(made.findings) == {"retired"}
    assert made.path is None
    assert list(tmp_path.iterdir()) == []
    other = load_track("pfa-small-v1")
    assert found(submit(lstm.run, tmp_path, track=other).findings) == {"retired"}, (
        "another track's file changes nothing"
    )


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


def test_figures_of_the_weights_in_a_log_are_not_of_the_training_curve() -> None:
    from regbench.leaderboard.against_run import _row

    row = {"step": 5, "tokens": 9, "cross_entropy": 1.0, "validation_loss": 2.0}
    assert _row({**row, "learning_rate": 0.1, "tokens_per_second": 3, "measured.recall.o2": 0.5}) == row
    assert _row({**row, "pull": 1.0}) != row
