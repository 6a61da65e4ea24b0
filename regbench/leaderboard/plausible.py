"""Plausibility on the figures alone: what no honest training leaves, and a forger easily forgets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from regbench.leaderboard.case import Case
from regbench.leaderboard.entry import Entry, InstanceScores
from regbench.leaderboard.figures import SOLVED, beyond_measure
from regbench.metrics.metric import NLL_FLOOR
from regbench.results import ScoreRecord

MOST_ERRORS = 5.0
"""Standard errors. Honest entries stay below."""

_EQUAL = 1e-4
"""Relative difference of an instance's sums up to which they count as equal."""
_MOST_EQUAL = 0.9
_FEW = 3
"""Errors, each as bad as can be, that one split may have and the other not."""
_ROUNDING = 1e-3
_CONTINUOUS = ("nll", "mse", "truth_mse", "tvd")
"""Scores that two trainings give alike on an instance only by chance. Accuracies are whole numbers and often alike."""


def plausible(case: Case) -> Iterator[str]:
    """Validation and test losses agree, and the scores of an instance can belong to one prediction."""
    if case.instances is None:
        return
    for seed, sums in zip(case.result.seeds, case.instances.sums, strict=True):
        found = {metric: np.array(values, np.float64) for metric, values in sums.items()}
        if any(beyond_measure(values) for values in found.values()):  # `scores` says so
            return
        counts = {metric: case.reference.frame.counts_of(metric) for metric in found}
        faults = [*_loss_gap(case, seed.seed, found, counts), *_impossible(case, found, counts)]
        yield from (f"seed {seed.seed}: {fault}" for fault in faults)
    pairs = itertools.combinations(range(len(case.instances.sums)), 2)
    for a, b in pairs:
        if _alike(case.instances, a, case.instances, b):
            yield f"the seeds {a} and {b} are alike in nearly every instance: they are not two trainings"


def copies(entries: Sequence[Entry]) -> list[str]:
    """A line for each pair of entries of one track whose seeds score alike in nearly every instance."""
    found = []
    for first, second in itertools.combinations(entries, 2):
        if first.result.track != second.result.track or first.instances.counts != second.instances.counts:
            continue
        pairs = itertools.product(range(len(first.instances.sums)), range(len(second.instances.sums)))
        alike = [(a, b) for a, b in pairs if _alike(first.instances, a, second.instances, b)]
        if alike:
            a, b = alike[0]
            found.append(
                f"{first.file_name}, seed {a}, and {second.file_name}, seed {b}, are alike in nearly every instance: "
                "one is a copy of the other"
            )
    return found


def _alike(first: InstanceScores, a: int, second: InstanceScores, b: int) -> bool:
    """Whether two seeds have equal sums in nearly all instances, in a score that is not counted in whole numbers."""
    metrics = [m for m in _CONTINUOUS if m in first.sums[a] and m in second.sums[b]]
    for metric in metrics:
        x, y = np.array(first.sums[a][metric]), np.array(second.sums[b][metric])
        telling = np.maximum(x, y) >= SOLVED
        x, y = x[telling], y[telling]
        if len(x) >= 10 and (np.abs(x - y) <= _EQUAL * np.maximum(np.abs(x), np.abs(y))).mean() >= _MOST_EQUAL:
            return True
    return False


def _loss_gap(
    case: Case, seed: int, sums: dict[str, NDArray[np.float64]], counts: dict[str, NDArray[np.int64]]
) -> Iterator[str]:
    """The loss on the validation split is one more measurement of the loss on the test split.

    Where the test split is harder by design, its loss may be higher. Losses of other names, as a stranger's model can have, are
    not compared. A model that nearly solves a track errs at a few positions, and all of them can be in one split: then the
    other has no standard error.
    """
    record = next(s for s in case.result.seeds if s.seed == seed)
    losses = record.training_curve[0].loss if record.training_curve else {}
    pairs = (("nll", "cross_entropy"), ("mse", "mse"))
    metric = next((metric for metric, loss in pairs if metric in sums and loss in losses), None)
    if metric is None:
        return
    test = ScoreRecord.of(sums[metric], counts[metric])
    validation = case.reference.track.definition.splits.validation
    kept = min(row.validation_loss for row in record.training_curve)
    error = test.stderr * np.sqrt(1.0 + len(sums[metric]) / validation)  # as if both splits varied alike
    gap = (kept - test.value) / max(error, 1e-12)
    apart = kept - test.value if case.reference.track.task.test_is_harder else abs(kept - test.value)
    worst = max(sums[metric].max(), -math.log(NLL_FLOOR) if metric == "nll" else 0.0)
    rare = _FEW * worst / (validation * counts[metric].mean())
    if apart > MOST_ERRORS * error + rare + _ROUNDING:
        yield (
            f"the kept validation loss is {kept:.3f} and the {metric} on the test split {test.value:.3f}, "
            f"{abs(gap):.0f} standard errors apart"
        )


def _impossible(
    case: Case, sums: dict[str, NDArray[np.float64]], counts: dict[str, NDArray[np.int64]]
) -> Iterator[str]:
    """Relations between the scores of one prediction, in an instance or in the mean."""
    reference = case.reference
    legal, token = sums.get("legal_accuracy"), sums.get("token_accuracy")
    if legal is not None and token is not None and (token > legal + 1e-6).any():
        yield "an instance has more right answers than answers that are allowed"
    truth = reference.truth
    if truth is None:
        return
    if "nll" in sums and "tvd" in sums and np.array_equal(counts["nll"], counts["tvd"]):
        n = counts["nll"]
        tvd = sums["tvd"].sum() / n.sum()
        # E[NLL] - E[truth's] is a mean KL divergence, which is at least twice the mean square of TVD (Pinsker, Jensen).
        excess = ScoreRecord.of(sums["nll"] - truth.sums["nll"], n)
        if excess.value < 2.0 * tvd**2 - MOST_ERRORS * excess.stderr - _ROUNDING:
            yield (
                f"an NLL of {excess.value:.3f} above the truth's cannot go with a TVD of {tvd:.3f}: by Pinsker's inequality "
                f"it is at least {2.0 * tvd**2:.3f}"
            )
    if token is not None and "token_accuracy" in truth.sums:
        ahead = ScoreRecord.of(token - truth.sums["token_accuracy"], counts["token_accuracy"])
        if ahead.value > MOST_ERRORS * ahead.stderr + _ROUNDING:
            yield f"token accuracy is {ahead.value:.3f} above that of the truth, whose choice is the most probable"
    if "nll" in sums:
        bayes, own = case.result.baselines.get("Bayes"), ScoreRecord.of(sums["nll"], counts["nll"])
        best = None if bayes is None else bayes.scores["nll"]
        if best is not None and own.value + MOST_ERRORS * np.hypot(own.stderr, best.stderr) < best.value:
            yield f"an NLL of {own.value:.3f} is far below that of the Bayes baseline, {best.value:.3f}"
