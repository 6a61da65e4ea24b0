"""Plausibility: forgeries that keep every other rule are named, and honest entries are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbench.evaluation.predictions import Predictions
from regbench.leaderboard.claim import Case, Reference
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.figures import copies, plausible
from regbench.leaderboard.store import stored_entries
from regbench.leaderboard.verify import verify_run
from regbench.utils.files import read_arrays
from tests.leaderboard.attacks import claim, seal
from tests.leaderboard.conftest import Made

BOARD = Path(__file__).resolve().parents[2] / "leaderboard"


def found(made: Made, change: Callable[[dict[str, Any]], object]) -> list[str]:
    content = copy.deepcopy(made.entry.content())
    change(content)
    entry = type(made.entry).model_validate(seal(content))
    return list(plausible(Case(entry.result, entry.configuration, Reference(made.track), entry.instances)))


def test_an_honest_entry_is_plausible(lstm: Made, stranger: Made) -> None:
    assert found(lstm, lambda _: None) == found(stranger, lambda _: None) == []

    def worse_at_the_end(content: dict[str, Any]) -> None:
        content["result"]["seeds"][1]["training_curve"][-1]["validation_loss"] += 1.5

    assert len(lstm.entry.result.seeds[1].training_curve) > 1
    assert found(lstm, worse_at_the_end) == [], "the best weights are kept, not the last"


@pytest.mark.parametrize(("errors", "refused"), [(2.5, False), (4.0, True)])
def test_a_model_that_nearly_solves_a_track_may_err_in_one_split_alone(
    errors: float, refused: bool, lstm: Made
) -> None:
    """The test split then has no standard error to speak of. Errors cost 16 nats each."""

    def rarely_wrong(content: dict[str, Any]) -> None:
        counts = content["instances"]["counts"]
        for one in content["instances"]["sums"]:
            one["nll"] = [1e-6 * (1 + i) for i in range(len(counts))]
        loss = errors * -np.log(1e-7) / (lstm.track.definition.splits.validation * np.mean(counts))
        for row in content["result"]["seeds"][1]["training_curve"]:
            row["validation_loss"] = float(loss)

    assert any("seed 1: the kept validation loss is" in line for line in found(lstm, rarely_wrong)) is refused


def test_an_entry_under_another_name_is_a_copy() -> None:
    entries = [stored.entry for stored in stored_entries(BOARD)[:3]]
    renamed = entries[0].model_copy(update={"name": f"{entries[0].name}-mine"})
    assert copies(entries) == []
    assert "one is a copy of the other" in copies([*entries, renamed])[0]


def test_who_solves_every_instance_is_no_copy() -> None:
    """As Gated DeltaNet does on assoc-recall-small-v1: what is left is rounding, which is the same in all seeds."""
    entry = stored_entries(BOARD)[0].entry
    rounding = [0.0005 * (i % 3) for i in range(len(entry.instances.counts))]

    def twice(sums: list[float]) -> list[Entry]:
        every = [dict.fromkeys(one, sums) for one in entry.instances.sums]
        instances = entry.instances.model_copy(update={"sums": every})
        return [entry.model_copy(update={"name": name, "instances": instances}) for name in ("one", "other")]

    assert copies(twice(rounding)) == []
    assert "one is a copy of the other" in copies(twice([value + 0.02 for value in rounding]))[0]


def nearly_the_same(content: dict[str, Any]) -> None:
    """A seed that is another one but for a few instances."""
    sums = content["instances"]["sums"]
    sums[1] = {metric: [*values[:-2], *sums[1][metric][-2:]] for metric, values in sums[0].items()}


def lower_losses(content: dict[str, Any]) -> None:
    for row in content["result"]["seeds"][1]["training_curve"]:
        row["validation_loss"] -= 1.5


def set_sums(metric: str, factor: float) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for one in content["instances"]["sums"]:
            one[metric] = [factor * count * (0.9 + 0.01 * i) for i, count in enumerate(content["instances"]["counts"])]

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (nearly_the_same, "the seeds 0 and 1 are alike in nearly every instance"),
        (
            lambda c: [
                row.update(validation_loss=row["validation_loss"] - 1.5)
                for row in c["result"]["seeds"][1]["training_curve"]
            ],
            "seed 1: the kept validation loss is",
        ),
        (set_sums("token_accuracy", 0.9), "more right answers than answers that are allowed"),
        (set_sums("tvd", 0.8), "by Pinsker's inequality"),
        (set_sums("token_accuracy", 1.1), "above that of the truth, whose choice is the most probable"),
    ],
)
def test_what_cannot_be(lstm: Made, change: Callable[[dict[str, Any]], object], fault: str) -> None:
    def alone(content: dict[str, Any]) -> None:
        if "Pinsker" in fault:  # one nat above the truth's NLL, beside a distance of 0.8, which takes 1.3 nats
            truth = Reference(lstm.track).truth
            assert truth is not None
            counts = content["instances"]["counts"]
            for i, one in enumerate(content["instances"]["sums"]):
                one["nll"] = [float(x) + (1 + 1e-3 * i) * n for x, n in zip(truth.sums["nll"], counts, strict=True)]
        change(content)

    assert any(fault in line for line in found(lstm, alone))


def test_where_the_test_split_is_harder_its_loss_may_be_higher_but_not_lower(
    lstm: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in state tracking, whose test walks are four times as long as those of training."""

    def shift(by: float) -> Callable[[dict[str, Any]], object]:
        def change(content: dict[str, Any]) -> None:
            for row in content["result"]["seeds"][1]["training_curve"]:
                row["validation_loss"] += by

        return change

    monkeypatch.setattr(type(lstm.track.task), "test_is_harder", True)
    assert found(lstm, shift(-1.5)) == []
    assert any("the kept validation loss is" in line for line in found(lstm, shift(1.5)))


def test_nearly_the_truth_is_far_below_the_bayes_baseline(lstm: Made) -> None:
    """Where the track has one."""

    def with_bayes(content: dict[str, Any]) -> None:
        content["result"]["baselines"]["Bayes"] = content["result"]["baselines"]["uniform"]
        truth = Reference(lstm.track).truth
        assert truth is not None
        for i, one in enumerate(content["instances"]["sums"]):
            one["nll"] = [float(x) * (1 + 1e-3 * i) for x in truth.sums["nll"]]

    assert any("far below that of the Bayes baseline" in line for line in found(lstm, with_bayes))


def test_invented_predictions_do_not_pass(lstm: Made, tmp_path: Path) -> None:
    """Three quarters truth, for all seeds, with the validation losses of the honest run."""
    run, test = lstm.copy(tmp_path / "run"), lstm.track.instances("test")
    true = lstm.track.task.truth(test)
    truth = np.concatenate([row[:length] for row, length in zip(true, test.lengths, strict=True)])
    kept = [Predictions.from_arrays(read_arrays(run / f"seed-{seed}" / "predictions.npz")) for seed in (0, 1, 2)]
    known = truth.sum(-1, keepdims=True) > 0
    forged = [
        Predictions(np.where(known, 0.25 * one.packed + 0.75 * truth, one.packed).astype(np.float16), one.lengths)
        for one in kept
    ]
    claim(run, lstm.track, forged, losses=False)
    faults = verify_run(run, lstm.track)[1].faults
    assert {fault.check for fault in faults} == {"plausible"}
