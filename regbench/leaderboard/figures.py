"""Checks on the figures of a claim: they are of the track, keep its rules, follow from its instances, and can be.

`STRUCTURE` comes first: the other checks rely on it. No check here reads a file of the claim.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.leaderboard.claim import Case, Check, Note
from regbench.leaderboard.entry import DIGITS, Entry, InstanceScores, canonical, rounded
from regbench.metrics.metric import NLL_FLOOR, Metric
from regbench.metrics.scores import by_problem, normalized_scores
from regbench.results import BaselineRecord, Curve, ScoreRecord, SeedRecord
from regbench.training.options import TrainingOptions, evaluation_steps
from regbench.utils.errors import UserError, describe_validation

FEWEST_SEEDS = 3
PROPER = ("nll", "mse")
"""The scores in which no predictor can be expected to beat the truth."""

SOLVED = 0.01
"""An instance with a smaller sum is solved: what is left is the rounding of stored predictions, and alike in all who solve it."""

MOST_ERRORS = 5
"""Standard errors by which figures that belong together may differ, paired where they can be. Honest entries stay below."""

_SHA256 = re.compile("[0-9a-f]{64}")
_BASELINE_TOLERANCE = 1e-4
"""Below the digits that are published, and above what the rounding of another machine does to a baseline."""
_ROUNDING = 1e-3
"""More than the float16 of stored predictions moves a mean NLL."""
_EXACT = 1e-9
"""Relative, of figures computed twice from the same numbers: only the order of a sum may differ."""
_CURVE_DIGIT = 1e-6
"""Curves are kept to six decimals. An NLL at its floor is rounded up."""
_HALF_DIGIT = 0.5 * 10.0 ** (1 - DIGITS)
"""How far an instance's sum may be from the exact one, relative to it."""
_EQUAL, _MOST_EQUAL = 1e-4, 0.9
"""The relative difference up to which sums of an instance count as equal, and the share of instances where they may be."""
_FEW = 3
"""Errors, each as bad as can be, that one split may have and the other not."""
_CONTINUOUS = ("nll", "mse", "truth_mse", "tvd")
"""Scores that two trainings give alike on an instance only by chance. Accuracies are whole numbers and often alike."""


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
    """Every seed, baseline and instance has exactly the track's scores."""
    wanted = set(case.reference.track.task.scores)
    for where, record in _records(case):
        if set(record.scores) != wanted or set(record.curves) != wanted:
            yield f"{where} does not have exactly the scores {', '.join(sorted(wanted))}"
        for curve in record.curves.values():
            if len({len(curve.position), len(curve.value), len(curve.count), len(curve.stderr or curve.value)}) != 1:
                yield f"{where}: a curve's columns differ in length"
                break
    if case.instances is None:
        return
    test, sums = case.reference.test, case.instances.sums
    if len(sums) != len(case.result.seeds) or any(set(one) != wanted for one in sums):
        yield "instances: not exactly the scores of every seed"
    n = len(by_problem(test.lengths, test.problem))
    columns = [case.instances.counts, *case.instances.group_counts.values()]
    if {*map(len, columns), *(len(column) for one in sums for column in one.values())} != {n}:
        yield f"instances: the test split has {n}"


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
    unsolved = [] if case.instances is None else [one for one in case.instances.sums if not _solves(one)]
    sums = [str(sorted(one.items())) for one in unsolved]
    if len(set(digests)) < len(digests) or len(set(sums)) < len(sums):
        yield "two seeds have the same predictions"


def _solves(sums: Mapping[str, Sequence[float]]) -> bool:
    """Whether a seed solves every instance, by a score that is zero only for it."""
    proper = [sums[metric] for metric in PROPER if metric in sums]
    return bool(proper) and all(max(column) < SOLVED for column in proper)


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
    for seed in case.result.seeds:
        if seed.seed in plans:
            plan = plans[seed.seed]
            instances = options.train_instances or case.reference.track.definition.splits.train
            evaluated = evaluation_steps(len(plan), instances, options) - {0}
            yield from (f"seed {seed.seed}: {fault}" for fault in _training_faults(seed, plan, evaluated))


def scores(case: Case) -> Iterator[str]:
    """Scores, standard errors and normalized scores follow from the instances, which count where the test split does."""
    instances, frame = case.instances, case.reference.frame
    for i, seed in enumerate(case.result.seeds):
        given, wanted = seed.share_of_the_way, normalized_scores(seed.scores, case.result.baselines)
        if given.keys() != wanted.keys() or any(
            abs(given[m] - wanted[m]) > _EXACT * (1 + abs(wanted[m])) for m in given
        ):
            yield f"seed {seed.seed}: share_of_the_way is not what the scores and the baselines give"
        for metric, record in seed.scores.items() if instances is not None else ():
            sums, counts = np.array(instances.sums[i][metric], np.float64), frame.counts_of(metric)
            fault = sums_fault(case.reference.track.metrics[metric], sums, counts) or mean_fault(record, sums, counts)
            if fault:
                yield f"seed {seed.seed}: {metric}: {fault}"
    if instances is not None:
        groups = {metric: counts.tolist() for metric, counts in frame.group_counts.items()}
        if instances.counts != frame.counts.tolist() or instances.group_counts != groups:
            yield "instances: the counts are not how many positions the test split scores"


def possible(case: Case) -> Iterator[str]:
    """No seed predicts better than the truth, which has the lowest expected NLL and squared error."""
    if case.instances is None or (truth := case.reference.truth) is None:
        return
    for metric in sorted({*PROPER} & {*case.reference.track.task.scores}):
        for seed, sums in zip(case.result.seeds, case.instances.sums, strict=True):
            given = np.array(sums[metric], np.float64)
            if beyond_measure(given):  # `scores` says so
                continue
            ahead = ScoreRecord.of(truth.sums[metric] - given, truth.counts_of(metric))
            if ahead.value > MOST_ERRORS * ahead.stderr + _ROUNDING:
                yield (
                    f"seed {seed.seed}: {metric} is {ahead.value:.3f} below that of the truth, by {MOST_ERRORS} standard errors "
                    "and more: it has seen what it predicts"
                )


def curves(case: Case) -> Iterator[str]:
    """Curves have the track's positions and possible values, and average to the score.

    Positions that are in no curve leave some room.
    """
    for where, record in _records(case):
        for metric, curve in record.curves.items():
            positions = int(case.reference.frame.counts_of(metric).sum())
            limits = case.reference.track.metrics[metric].limits
            fault = _curve_fault(curve, case.reference.curves[metric], record.scores[metric].value, positions, limits)
            if fault:
                yield f"{where}: the curve of {metric} {fault}"


def baselines(case: Case) -> Iterator[str]:
    """Every baseline is what comes out when it is computed here.

    Parameters of the task are among the options of some. What is older than a parameter does not have it: its default must hold.
    """
    fields = type(case.reference.track.task).Parameters.model_fields
    defaults = {name: field.default for name, field in fields.items() if not field.is_required()}
    real = case.reference.baselines(case.announce) if case.baselines is None else case.baselines
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
            yield from (f"{name}: {fault}" for fault in _baseline_faults(given, wanted))


def _options_differ(one: Mapping[str, Any], other: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Whether options differ, each with the defaults of what it does not have and the other has. 1 is not true."""
    late = {name: default for name, default in defaults.items() if name in one or name in other}
    return canonical({**late, **one}) != canonical({**late, **other})


def plausible(case: Case) -> Iterator[str]:
    """Validation and test losses agree, and the scores of an instance can belong to one prediction."""
    if case.instances is None:
        return
    for seed, sums in zip(case.result.seeds, case.instances.sums, strict=True):
        found = {metric: np.array(values, np.float64) for metric, values in sums.items()}
        if any(beyond_measure(values) for values in found.values()):  # `scores` says so
            return
        counts = {metric: case.reference.frame.counts_of(metric) for metric in found}
        faults = [*_loss_gap(case, seed, found, counts), *_impossible(case, found, counts)]
        yield from (f"seed {seed.seed}: {fault}" for fault in faults)
    pairs = itertools.combinations(range(len(case.instances.sums)), 2)
    for a, b in pairs:
        if _alike(case.instances, a, case.instances, b):
            yield f"the seeds {a} and {b} are alike in nearly every instance: they are not two trainings"


STRUCTURE: tuple[Check, ...] = (track, metrics)
ALONE: tuple[Check, ...] = (seeds, training)
FIGURES: tuple[Check, ...] = (scores, possible, curves, plausible)
COSTLY: tuple[Check, ...] = (baselines,)


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


# --- What the checks are made of. ---


def _records(case: Case) -> Iterator[tuple[str, SeedRecord | BaselineRecord]]:
    for seed in case.result.seeds:
        yield f"seed {seed.seed}", seed
    for name, record in case.result.baselines.items():
        yield f"the baseline {name}", record


def _training_faults(seed: SeedRecord, plan: NDArray[np.int64], evaluated: Set[int]) -> Iterator[str]:
    """What is wrong with a training that should have seen `plan` (S,) tokens after its steps, and been scored after some."""
    rows = seed.training_curve
    if (seed.steps, seed.tokens) != (len(plan), plan[-1]):
        yield f"{seed.steps:,} steps of {seed.tokens:,} tokens, and the options give {len(plan):,} of {plan[-1]:,}"
        return
    steps = [row.step for row in rows]
    if steps != sorted(evaluated):
        yield "the steps of the training curve are not those at which the options score the validation split"
        return
    if any(row.tokens != plan[row.step - 1] for row in rows):
        yield "the training curve has other tokens than its steps"
    if any(set(row.loss) != set(rows[0].loss) or not row.loss for row in rows):
        yield "the training curve has other losses in some rows"
    best = min(rows, key=lambda row: row.validation_loss)
    if seed.best_step != best.step:
        yield f"step {seed.best_step} was kept, and step {best.step} has the best validation loss"
    if seed.seconds <= 0 or seed.tokens_per_second <= 0 or seed.peak_memory_bytes <= 0:
        yield "seconds, tokens_per_second and peak_memory_bytes must be above 0"
        return
    if abs(seed.tokens - seed.seconds * seed.tokens_per_second) > 0.001 * seed.tokens_per_second + 0.01 * seed.tokens:
        yield f"{seed.tokens:,} tokens in {seed.seconds} s are not {seed.tokens_per_second:,} tokens/s"


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


def sums_fault(metric: Metric, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> str | None:
    """What is impossible about the (N,) sums of instances, if anything."""
    most = np.where(counts > 0, metric.limits[1], 0.0) * np.maximum(counts, 1)
    if not (sums <= most * (1 + 2 * _HALF_DIGIT)).all():
        return "an instance's sum is more than its positions can give"
    if metric.over.endswith("accuracy") and (sums != np.floor(sums)).any():
        return "an instance has a fraction of a right answer"
    if any(rounded(value) != value for value in sums.tolist()):
        return f"an instance's sum has more than {DIGITS} digits"
    return None


def beyond_measure(sums: NDArray[np.float64]) -> bool:
    """Whether squares of them would overflow."""
    return not np.abs(sums).max(initial=0.0) < 1e100


def mean_fault(record: ScoreRecord, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> str | None:
    """Whether score and standard error can come from sums that were rounded to these. The bounds are exact."""
    if beyond_measure(sums):
        return "an instance's sum is beyond all measure"
    own = ScoreRecord.of(sums, counts)
    off = _HALF_DIGIT * sums * (1 + 1e-6)
    value_off = off.sum() / counts.sum() + 1e-12
    if not abs(own.value - record.value) <= value_off:
        return f"{record.value:.7g}, and the instances give {own.value:.7g}"
    n = len(counts)
    if n > 1:
        residual_off = np.linalg.norm(off + value_off * counts)
        if not abs(own.stderr - record.stderr) <= residual_off / math.sqrt(n * (n - 1)) / counts.mean() + 1e-12:
            return f"standard error {record.stderr:.7g}, and the instances give {own.stderr:.7g}"
    return None


def _curve_fault(curve: Curve, frame: Curve, value: float, positions: int, limits: tuple[float, float]) -> str | None:
    """What is wrong with a curve, if anything.

    Args:
        curve: The curve that is claimed.
        frame: A curve with the positions and counts it must have.
        value: The score that it must average to.
        positions: How many positions the score is over. Those that are in no curve (`Task.progress` below 0) can be anything.
        limits: The lowest and the highest value that the metric can have.
    """
    if (curve.position, curve.count, curve.axis) != (frame.position, frame.count, frame.axis):
        return "has other positions than the test split"
    if (curve.stderr is None) != (frame.stderr is None) or min(curve.stderr or [0.0]) < 0:
        return "has standard errors of its own"
    (lowest, highest), slack = limits, _CURVE_DIGIT / 2 + 1e-9
    if strange := [drawn for drawn in curve.value if not lowest - slack <= drawn <= highest + slack]:
        return f"has a value of {strange[0]:g}, outside {lowest:g} to {highest:g}"
    total, left_out = sum(v * c for v, c in zip(curve.value, curve.count, strict=True)), positions - sum(curve.count)
    rest, off = value * positions - total, 1.5 * _CURVE_DIGIT * positions
    if not -off <= rest <= (highest * left_out if left_out else 0.0) + off:
        return f"averages to {total / sum(curve.count):.6f}, and the score is {value:.6f}"
    return None


def _baseline_faults(given: BaselineRecord, wanted: BaselineRecord) -> Iterator[str]:
    """How a claimed baseline differs from the one computed here."""
    yield from rescored(given.scores, wanted.scores, _BASELINE_TOLERANCE)
    for metric, curve in wanted.curves.items():
        if _apart(given.curves[metric], curve) > _BASELINE_TOLERANCE:
            yield f"the curve of {metric} is not what is computed here"


def _apart(a: Curve, b: Curve) -> float:
    """How far two curves, or their standard errors, are from each other, averaged over positions."""
    if len(a.value) != len(b.value) or (a.stderr is None) != (b.stderr is None):
        return math.inf
    weights = np.array(b.count) / max(1, sum(b.count))
    pairs = [(a.value, b.value), (a.stderr or [], b.stderr or [])]
    return max(float(np.abs(np.subtract(x, y)) @ weights[: len(x)]) for x, y in pairs)


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
    case: Case, seed: SeedRecord, sums: Mapping[str, NDArray[np.float64]], counts: Mapping[str, NDArray[np.int64]]
) -> Iterator[str]:
    """The loss on the validation split is one more measurement of the loss on the test split.

    Where the test split is harder by design, its loss may be higher. Losses of other names, as a stranger's model can have, are
    not compared. A model that nearly solves a track errs at a few positions, and all of them can be in one split: then the
    other has no standard error.
    """
    losses = seed.training_curve[0].loss if seed.training_curve else {}
    pairs = (("nll", "cross_entropy"), ("mse", "mse"))
    metric = next((metric for metric, loss in pairs if metric in sums and loss in losses), None)
    if metric is None:
        return
    test, track = ScoreRecord.of(sums[metric], counts[metric]), case.reference.track
    validation = track.definition.splits.validation
    gap = min(row.validation_loss for row in seed.training_curve) - test.value
    error = test.stderr * math.sqrt(1.0 + len(sums[metric]) / validation)  # as if both splits varied alike
    worst = max(sums[metric].max(), -math.log(NLL_FLOOR) if metric == "nll" else 0.0)
    rare = _FEW * worst / (validation * counts[metric].mean())
    if (gap if track.task.test_is_harder else abs(gap)) > MOST_ERRORS * error + rare + _ROUNDING:
        yield (
            f"the kept validation loss is {gap + test.value:.3f} and the {metric} on the test split {test.value:.3f}, "
            f"{abs(gap) / max(error, 1e-12):.0f} standard errors apart"
        )


def _impossible(
    case: Case, sums: Mapping[str, NDArray[np.float64]], counts: Mapping[str, NDArray[np.int64]]
) -> Iterator[str]:
    """Relations between the scores of one prediction, in an instance or in the mean."""
    legal, token, truth = sums.get("legal_accuracy"), sums.get("token_accuracy"), case.reference.truth
    if legal is not None and token is not None and (token > legal + 1e-6).any():
        yield "an instance has more right answers than answers that are allowed"
    if truth is None:
        return
    if "nll" in sums and "tvd" in sums and np.array_equal(counts["nll"], counts["tvd"]):
        tvd = sums["tvd"].sum() / counts["tvd"].sum()
        # E[NLL] - E[truth's] is a mean KL divergence. It is at least twice the mean square of TVD (Pinsker, Jensen), and at most
        # what it costs to move that much probability to the floor.
        excess = ScoreRecord.of(sums["nll"] - truth.sums["nll"], counts["nll"])
        least, most, slack = 2.0 * tvd**2, -tvd * math.log(NLL_FLOOR), MOST_ERRORS * excess.stderr + _ROUNDING
        if not least - slack <= excess.value <= most + slack:
            yield (
                f"an NLL of {excess.value:.3f} above the truth's cannot go with a TVD of {tvd:.3f}: by Pinsker's inequality "
                f"and the floor of probabilities it is from {least:.3f} to {most:.3f}"
            )
    if token is not None and "token_accuracy" in truth.sums:
        ahead = ScoreRecord.of(token - truth.sums["token_accuracy"], counts["token_accuracy"])
        if ahead.value > MOST_ERRORS * ahead.stderr + _ROUNDING:
            yield f"token accuracy is {ahead.value:.3f} above that of the truth, whose choice is the most probable"
    if "nll" in sums and (bayes := case.result.baselines.get("Bayes")) is not None:
        best, own = bayes.scores["nll"], ScoreRecord.of(sums["nll"], counts["nll"])
        if own.value + MOST_ERRORS * math.hypot(own.stderr, best.stderr) < best.value:
            yield f"an NLL of {own.value:.3f} is far below that of the Bayes baseline, {best.value:.3f}"
