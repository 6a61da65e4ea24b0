"""RULES.md keeps its word: every check it names is there, is all there is, and fires when its rule is broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbench.leaderboard.against_run import repredict
from regbench.leaderboard.claim import Case, Findings, Reference
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.figures import copies, possible, seeds
from regbench.leaderboard.store import Stored, stored_in
from regbench.leaderboard.verify import CHECKS, verify_entry
from regbench.training.checkpoint import load_tensors, save_tensors
from tests.helpers.documents import ROOT
from tests.leaderboard.attacks import seal, store
from tests.leaderboard.conftest import Made

BOARD = ROOT / "leaderboard"
RULES = (BOARD / "RULES.md").read_text(encoding="utf-8")
NAMED = re.findall(r"^\|.*\| `(\w+)` \|$", RULES, flags=re.MULTILINE)
OF_FILES = ["schema", "form", "name", "checkpoint", "tier", "copies", "challenge"]
"""Checks that are about an entry's file, its name or its run, not about a claim."""

TESTED_ELSEWHERE = {"checkpoint", "tier", "copies", "challenge"}

Change = Callable[[dict[str, Any]], object]


def update(*path: str | int, **values: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        place: Any = content["result"]
        for key in path:
            place = place[key]
        place.update(values)

    return change


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
    "metrics, a curve at other positions": lambda c: c["result"]["seeds"][0]["curves"]["nll"]["position"].__setitem__(
        0, 1.5
    ),
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
    "baselines": update("baselines", "2-gram", "scores", "nll", stderr=0.5),
    "configuration": lambda c: c["configuration"].update(trials=9),
    "source": update("architecture", name="mine", source="mine.py"),
    "architecture": update("architecture", parameters=1),
    "code": update("code", dirty=True),
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


def case_of(made: Made, change: Change) -> Case:
    content = made.entry.content()
    change(content)
    entry = type(made.entry).model_validate(seal(content))
    return Case(entry.result, entry.configuration, Reference(made.track), entry.instances)


def nearly_the_same(content: dict[str, Any]) -> None:
    """A seed that is another one but for a few instances."""
    sums = content["instances"]["sums"]
    sums[1] = {metric: [*values[:-2], *sums[1][metric][-2:]] for metric, values in sums[0].items()}


def alike(sum_of_each: float) -> Change:
    def change(content: dict[str, Any]) -> None:
        for one in content["instances"]["sums"]:
            one.update({metric: [sum_of_each] * len(values) for metric, values in one.items()})

    return change


@pytest.mark.parametrize(
    ("change", "refused"), [(lambda c: None, False), (nearly_the_same, True), (alike(0.0), False), (alike(0.02), True)]
)
def test_seeds_that_are_alike_are_no_two_trainings(change: Change, refused: bool, lstm: Made) -> None:
    """Those that solve every instance may be, as delta rules do on bigram-outputs-small-v1. Their predictions differ."""
    said = "the seeds 0 and 1 are alike in nearly every instance: they are not two trainings"
    assert (said in seeds(case_of(lstm, change))) is refused


def of_each(metric: str, share: float, nats_above: float | None = None) -> Change:
    """So much of a score at every position, and an NLL that is so far above the truth's."""

    def change(content: dict[str, Any], truth: Any = None) -> None:
        counts = content["instances"]["counts"]
        for i, one in enumerate(content["instances"]["sums"]):
            one[metric] = [share * n * (0.9 + 0.01 * k) for k, n in enumerate(counts)]
            if nats_above is not None:
                nll = change.truth.sums["nll"]  # type: ignore[attr-defined]
                one["nll"] = [float(x) + (nats_above + 1e-3 * i) * n for x, n in zip(nll, counts, strict=True)]

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (of_each("token_accuracy", 0.9), "more right answers than answers that are allowed"),
        (of_each("token_accuracy", 1.1), "token_accuracy is better than that of the truth"),
        (of_each("tvd", 0.8, 1.0), "cannot go with a TVD of 0.8"),  # which takes 1.3 nats
        (of_each("tvd", 0.0, 0.2), "cannot go with a TVD of 0.000"),  # which is the truth
        (of_each("nll", 0.0), "nll is better than that of the truth"),
    ],
)
def test_what_cannot_be(lstm: Made, change: Change, fault: str) -> None:
    change.truth = Reference(lstm.track).truth  # type: ignore[attr-defined]
    assert list(possible(case_of(lstm, lambda _: None))) == []
    assert any(fault in line for line in possible(case_of(lstm, change)))


def test_an_entry_under_another_name_is_a_copy() -> None:
    """But not where every instance is solved: what is left is rounding, which is the same in all seeds."""
    entries = [stored.entry for stored in stored_in(BOARD)[:3]]
    entry = entries[0]
    assert copies(entries) == []
    assert (
        "one is a copy of the other" in copies([*entries, entry.model_copy(update={"name": f"{entry.name}-mine"})])[0]
    )

    def twice(sums: list[float]) -> list[Entry]:
        instances = entry.instances.model_copy(
            update={"sums": [dict.fromkeys(one, sums) for one in entry.instances.sums]}
        )
        return [entry.model_copy(update={"name": name, "instances": instances}) for name in ("one", "other")]

    rounding = [0.0005 * (i % 3) for i in range(len(entry.instances.counts))]
    assert copies(twice(rounding)) == []
    assert "one is a copy of the other" in copies(twice([value + 0.02 for value in rounding]))[0]


@pytest.mark.parametrize("check", BROKEN_RUN)
def test_a_run_that_breaks_a_rule_is_found_by_its_check(check: str, lstm: Made, tmp_path: Path) -> None:
    run = lstm.copy(tmp_path / "run")
    assert verify_entry(lstm.stored, track=lstm.track, run=run).faults == []
    BROKEN_RUN[check](run)
    assert check in found(verify_entry(lstm.stored, track=lstm.track, run=run))


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


def test_the_rules_are_short_and_begin_with_what_evidence_is_worth() -> None:
    assert len([word for word in RULES.split() if any(map(str.isalnum, word))]) <= 1000
    assert RULES.split("\n\n")[1].startswith("Evidence counts as much as the maintainer who commits it")
