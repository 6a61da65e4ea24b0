"""Checks on the figures of a claim: they are of the track, keep its rules, follow from its instances, and can be.

`STRUCTURE` comes first: the other checks rely on it. No check here reads a file of the claim.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.evaluation.baselines import CHANCE
from regbench.leaderboard.claim import Case, Check, Note
from regbench.leaderboard.entry import DIGITS, Entry, InstanceScores, canonical
from regbench.metrics.metric import NLL_FLOOR, Metric
from regbench.metrics.reach import reach_of, tokens_to_learn
from regbench.metrics.scores import by_problem
from regbench.results import BaselineRecord, Curve, ScoreRecord, SeedRecord, normalized_scores
from regbench.training.options import TrainingOptions, evaluation_steps
from regbench.utils.errors import UserError, describe_validation

FEWEST_SEEDS = 3

SOLVED = 0.01
"""An instance with a smaller sum is solved: what is left is the rounding of stored predictions, and alike in all who solve it."""

MOST_ERRORS = 5
"""Paired standard errors by which figures that belong together may differ. Honest entries stay below."""

_SHA256 = re.compile("[0-9a-f]{64}")
_BASELINE_TOLERANCE = 1e-4
"""Below the digits that are published, and above what the rounding of another machine does to a baseline."""
_ROUNDING = 1e-3
"""More than the float16 of stored predictions moves a mean NLL."""
_EXACT = 1e-9
"""Relative, of figures computed twice from the same numbers: only the order of a sum may differ."""
_HALF_DIGIT = 0.5 * 10.0 ** (1 - DIGITS)
"""How far an instance's sum may be from the exact one, relative to it."""
_EQUAL, _MOST_EQUAL = 1e-4, 0.9
"""The relative difference up to which sums of an instance count as equal, and the share of instances where they may be."""


def track(case: Case) -> Iterator[str]:
    """Name, version, digest, main score and the fingerprints of all splits are those of the track today."""
    claimed, real = case.result.track, case.reference.record
    for field in ("name", "version", "digest", "main_score"):
        if getattr(claimed, field) != getattr(real, field):
            yield f"{field} is {getattr(claimed, field)!r}, and that of {real.name} is {getattr(real, field)!r}"
    for split in sorted({*claimed.fingerprints, *real.fingerprints}):
        given, wanted = claimed.fingerprints.get(split, "missing"), real.fingerprints.get(split, "no split")
        if given != wanted:
            yield f"the {split} split was {given[:12]!r}; that of {real.name} is {wanted[:12]!r}"


def metrics(case: Case) -> Iterator[str]:
    """Every seed, baseline and instance has exactly the track's scores, and curves at its positions."""
    wanted, frames = set(case.reference.track.task.scores), case.reference.curves
    if set(case.result.metrics) != wanted:  # the schema says that all records have the same ones
        yield f"the seeds and baselines do not have exactly the scores {', '.join(sorted(wanted))}"
        return
    records: list[tuple[str, SeedRecord | BaselineRecord]] = [(f"seed {seed.seed}", seed) for seed in case.result.seeds]
    for where, record in [*records, *((f"the baseline {name}", one) for name, one in case.result.baselines.items())]:
        if any(_places(curve) != _places(frames[metric]) for metric, curve in record.curves.items()):
            yield f"{where}: a curve has other positions than the test split"
    if case.instances is None:
        return
    test, sums = case.reference.test, case.instances.sums
    if len(sums) != len(case.result.seeds) or any(set(one) != wanted for one in sums):
        yield "instances: not exactly the scores of every seed"
    n = len(by_problem(test.lengths, test.problem))
    columns = [case.instances.counts, *case.instances.group_counts.values()]
    if {*map(len, columns), *(len(column) for one in sums for column in one.values())} != {n}:
        yield f"instances: the test split has {n}"


def _places(curve: Curve) -> tuple[Any, ...]:
    return curve.position, curve.count, curve.axis, curve.stderr and len(curve.stderr)


def seeds_needed(given: Sequence[int]) -> tuple[int, ...]:
    """The seeds that an entry has in the place of these; the same ones where it takes these."""
    return tuple(range(max(FEWEST_SEEDS, len(given))))


def seeds(case: Case) -> Iterator[str]:
    """Seeds are 0, 1, 2, ... without a gap, at least three, and no two have the same predictions.

    Seeds that solve every instance have different predictions, whose scores can be equal.
    """
    given = [seed.seed for seed in case.result.seeds]
    if given != list(range(len(given))):
        yield f"seeds must be 0, 1, 2, ... in order, not {' '.join(map(str, given[:10]))}"
    if len(given) < FEWEST_SEEDS:
        yield f"at least {FEWEST_SEEDS} seeds, not {len(given)}"
    digests = [seed.predictions_sha256 for seed in case.result.seeds]
    if not all(_SHA256.fullmatch(digest) for digest in digests):
        yield "predictions_sha256 is no SHA-256"
    if len(set(digests)) < len(digests):
        yield "two seeds have the same predictions"
    for a, b in itertools.combinations(range(len(case.instances.sums) if case.instances is not None else 0), 2):
        if case.instances is not None and _alike(case.instances, a, case.instances, b):
            yield f"the seeds {a} and {b} are alike in nearly every instance: they are not two trainings"


def training(case: Case) -> Iterator[str]:
    """Steps and tokens follow from the training options within the track's budget; the best step was kept."""
    try:
        options = TrainingOptions.model_validate(case.result.training, strict=True)
        plans = {seed.seed: case.reference.plan(options, seed.seed) for seed in case.result.seeds if seed.seed >= 0}
    except pydantic.ValidationError as error:
        yield describe_validation(error, "training", TrainingOptions.model_fields)
        return
    except UserError as error:
        yield str(error)
        return
    instances = options.train_instances or case.reference.track.definition.splits.train
    for seed in case.result.seeds:
        if (plan := plans.get(seed.seed)) is not None:
            evaluated = sorted(evaluation_steps(len(plan), instances, options) - {0})
            yield from (f"seed {seed.seed}: {fault}" for fault in _training_faults(seed, plan, evaluated))


def _training_faults(seed: SeedRecord, plan: NDArray[np.int64], evaluated: Sequence[int]) -> Iterator[str]:
    """What is wrong with a training that should have seen `plan` (S,) tokens after its steps, and been scored after some."""
    rows = seed.training_curve
    if (seed.steps, seed.tokens) != (len(plan), plan[-1]):
        yield f"{seed.steps:,} steps of {seed.tokens:,} tokens, and the options give {len(plan):,} of {plan[-1]:,}"
    elif [(row.step, row.tokens) for row in rows] != [(step, plan[step - 1]) for step in evaluated]:
        yield "the training curve is not of the steps and tokens at which the options score the validation split"
    elif seed.best_step != (best := min(rows, key=lambda row: row.validation_loss)).step:
        yield f"step {seed.best_step} was kept, and step {best.step} has the best validation loss"
    elif seed.seconds <= 0 or seed.tokens_per_second <= 0 or seed.peak_memory_bytes <= 0:
        yield "seconds, tokens_per_second and peak_memory_bytes must be above 0"
    elif abs(seed.tokens - seed.seconds * seed.tokens_per_second) > 0.001 * seed.tokens_per_second + 0.01 * seed.tokens:
        yield f"{seed.tokens:,} tokens in {seed.seconds} s are not {seed.tokens_per_second:,} tokens/s"


def scores(case: Case) -> Iterator[str]:
    """Scores, standard errors and normalized scores follow from the instances, which count where the test split does."""
    instances, frame = case.instances, case.reference.frame
    for i, seed in enumerate(case.result.seeds):
        given, wanted = seed.share_of_the_way, normalized_scores(seed.scores, case.result.baselines)
        if given.keys() != wanted.keys() or any(
            abs(given[m] - wanted[m]) > _EXACT * (1 + abs(wanted[m])) for m in given
        ):
            yield f"seed {seed.seed}: share_of_the_way is not what the scores and the baselines give"
        task = case.reference.track.task
        learned = tokens_to_learn(seed.training_curve) if task.sizes and seed.training_curve else None
        if (seed.reach, seed.tokens_to_learn) != (reach_of(task, seed.curves), learned):
            yield f"seed {seed.seed}: reach or tokens_to_learn is not what its curves give"
        for metric, record in seed.scores.items():
            if instances is None:
                break
            sums, counts = np.array(instances.sums[i][metric], np.float64), frame.counts_of(metric)
            if fault := _sums_fault(record, case.reference.track.metrics[metric], sums, counts):
                yield f"seed {seed.seed}: {metric}: {fault}"
    if instances is not None:
        groups = {metric: counts.tolist() for metric, counts in frame.group_counts.items()}
        if instances.counts != frame.counts.tolist() or instances.group_counts != groups:
            yield "instances: the counts are not how many positions the test split scores"


def _sums_fault(
    record: ScoreRecord, metric: Metric, sums: NDArray[np.float64], counts: NDArray[np.int64]
) -> str | None:
    """What is wrong with the (N,) sums of instances that should give a score, or with the score."""
    least, most = (min(limit, 1e100) * counts for limit in metric.limits)
    if not ((least - 1e-6 <= sums) & (sums <= most * (1 + _HALF_DIGIT))).all():
        return "an instance's sum is not what its positions can give"
    own = ScoreRecord.of(sums, counts)
    off = 2 * _HALF_DIGIT  # a mean of rounded sums is off by at most as much as they are
    size = float(np.abs(sums).sum() / counts.sum())
    if not abs(own.value - record.value) <= off * size + 1e-12:
        return f"{record.value:.7g}, and the instances give {own.value:.7g}"
    if not abs(own.stderr - record.stderr) <= off * (own.stderr + size) + 1e-12:
        return f"standard error {record.stderr:.7g}, and the instances give {own.stderr:.7g}"
    return None


def possible(case: Case) -> Iterator[str]:
    """The scores of a seed can belong to one prediction, and none is better than the truth."""
    for seed, sums in zip(case.result.seeds, case.instances.sums if case.instances is not None else (), strict=False):
        found = {metric: np.array(values, np.float64) for metric, values in sums.items()}
        if all(np.abs(values).max(initial=0.0) < 1e100 for values in found.values()):  # else `scores` says so
            yield from (f"seed {seed.seed}: {fault}" for fault in _impossible(case, found))


def _impossible(case: Case, sums: Mapping[str, NDArray[np.float64]]) -> Iterator[str]:
    """Relations between the scores of one prediction, and to those of the truth, in an instance or in the mean."""
    legal, token, truth = sums.get("legal_accuracy"), sums.get("token_accuracy"), case.reference.truth
    if legal is not None and token is not None and (token > legal + 1e-6).any():
        yield "an instance has more right answers than answers that are allowed"
    if truth is None:
        return
    for metric, sign in (("nll", -1), ("mse", -1), ("token_accuracy", 1)):
        if metric in sums and metric in truth.sums:
            ahead = ScoreRecord.of(sign * (sums[metric] - truth.sums[metric]), truth.counts_of(metric))
            if ahead.value > MOST_ERRORS * ahead.stderr + _ROUNDING:
                yield (
                    f"{metric} is better than that of the truth by {ahead.value:.3f}, {MOST_ERRORS} standard errors and more: "
                    "it has seen what it predicts"
                )
    counts = truth.counts_of("nll")
    if {"nll", "tvd"} <= sums.keys() and np.array_equal(counts, truth.counts_of("tvd")):
        tvd = float(sums["tvd"].sum() / counts.sum())
        # E[NLL] - E[truth's] is a mean KL divergence. It is at least twice the mean square of TVD (Pinsker, Jensen), and at most
        # what it costs to take that much probability down to the floor.
        excess = ScoreRecord.of(sums["nll"] - truth.sums["nll"], counts)
        least, most, slack = 2.0 * tvd**2, -tvd * math.log(NLL_FLOOR), MOST_ERRORS * excess.stderr + _ROUNDING
        if not least - slack <= excess.value <= most + slack:
            yield (
                f"an NLL of {excess.value:.3f} above the truth's cannot go with a TVD of {tvd:.3f}: by Pinsker's inequality "
                f"and the floor of probabilities it is from {least:.3f} to {most:.3f}"
            )


def baselines(case: Case) -> Iterator[str]:
    """Every baseline is what comes out when it is computed here.

    Parameters of the task are among the options of some. What is older than a parameter does not have it: its default must hold.
    """
    fields = type(case.reference.track.task).Parameters.model_fields
    defaults = {name: field.default for name, field in fields.items() if not field.is_required()}
    real = case.reference.baselines(case.announce) if case.baselines is None else case.baselines
    if (
        CHANCE in real and CHANCE not in case.result.baselines
    ):  # before December 2026 the normalized score began at unigram
        real = {n: r.model_copy(update={"anchor": "start"}) if n == "unigram" else r for n, r in real.items()}
        del real[CHANCE]
    for name in sorted({*case.result.baselines, *real}):
        given, wanted = case.result.baselines.get(name), real.get(name)
        if wanted is None:
            yield f"there is no baseline '{name[:60]}'"
        elif given is None:
            late = f"the baseline {name} is newer than this result"
            yield late if wanted.anchor else Note(late)
        elif given.anchor != wanted.anchor or _options_differ(given.options, wanted.options, defaults):
            yield f"{name} has other options"
        elif given.seconds < 0:
            yield f"{name} took {given.seconds} s"
        else:
            yield from (f"{name}: {fault}" for fault in rescored(given.scores, wanted.scores, _BASELINE_TOLERANCE))
            for metric, curve in wanted.curves.items():
                weights = np.array(curve.count) / sum(curve.count)
                if (apart(given.curves[metric], curve) @ weights).max() > _BASELINE_TOLERANCE:
                    yield f"{name}: the curve of {metric} is not what is computed here"


def _options_differ(one: Mapping[str, Any], other: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Whether options differ, each with the defaults of what it does not have and the other has. 1 is not true."""
    late = {name: default for name, default in defaults.items() if name in one or name in other}
    return canonical({**late, **one}) != canonical({**late, **other})


def apart(a: Curve, b: Curve) -> NDArray[np.float64]:
    """How far two curves of the same P positions, and their standard errors, are from each other: (2, P)."""
    one, other = ([curve.value, curve.stderr or [0.0] * len(curve.value)] for curve in (a, b))
    return np.abs(np.subtract(one, other))


STRUCTURE: tuple[Check, ...] = (track, metrics)
ALONE: tuple[Check, ...] = (training,)
FIGURES: tuple[Check, ...] = (seeds, scores, possible)
COSTLY: tuple[Check, ...] = (baselines,)


def rescored(
    claimed: Mapping[str, ScoreRecord], real: Mapping[str, ScoreRecord], slack: float = _EXACT
) -> Iterator[str]:
    """Where claimed scores or their standard errors are not those that are computed here, relative to their size."""
    for metric, record in real.items():
        for what, one, other in (
            (metric, claimed[metric].value, record.value),
            (f"the standard error of {metric}", claimed[metric].stderr, record.stderr),
        ):
            if not abs(one - other) <= slack * max(1.0, abs(other)):
                yield f"{what} is {one:.7g}, and computed here {other:.7g}"


def copies(entries: Sequence[Entry]) -> list[str]:
    """A line for each pair of entries of one track whose seeds score alike in nearly every instance."""
    found = []
    for first, second in itertools.combinations(entries, 2):
        if first.result.track != second.result.track or first.instances.counts != second.instances.counts:
            continue
        pairs = itertools.product(range(len(first.instances.sums)), range(len(second.instances.sums)))
        if alike := [(a, b) for a, b in pairs if _alike(first.instances, a, second.instances, b)]:
            found.append(
                f"{first.file_name}, seed {alike[0][0]}, and {second.file_name}, seed {alike[0][1]}, are alike in nearly every "
                "instance: one is a copy of the other"
            )
    return found


def _alike(first: InstanceScores, a: int, second: InstanceScores, b: int) -> bool:
    """Whether two seeds have equal sums in nearly all instances, in a score that is not counted in whole numbers."""
    for metric in ("nll", "mse", "truth_mse", "tvd"):
        if metric in first.sums[a] and metric in second.sums[b]:
            x, y = np.array(first.sums[a][metric]), np.array(second.sums[b][metric])
            telling = np.maximum(x, y) >= SOLVED
            x, y = x[telling], y[telling]
            if len(x) >= 10 and (np.abs(x - y) <= _EQUAL * np.maximum(np.abs(x), np.abs(y))).mean() >= _MOST_EQUAL:
                return True
    return False
