"""Checks on the figures of an entry: that they are of the track, within the rules, and follow from one another.

`STRUCTURE` comes first: what the others rely on. None of them reads a file of the claim's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.leaderboard.case import Case, Check, Note
from regbench.leaderboard.entry import DIGITS, canonical, rounded
from regbench.metrics.metric import Metric
from regbench.metrics.scores import Score, normalized_scores
from regbench.results import BaselineRecord, Curve, ScoreRecord, SeedRecord
from regbench.training.options import TrainingOptions
from regbench.utils.errors import UserError, describe_validation

FEWEST_SEEDS = 3
_Record = SeedRecord | BaselineRecord
_SHA256 = re.compile("[0-9a-f]{64}")
_BASELINE_TOLERANCE = 1e-4
"""Far below the published digits, and far above what another machine's rounding does to a baseline."""
PROPER = ("nll", "mse")
"""Scores that nobody can expect to be better at than the truth."""
_CHANCE = 5
"""Paired standard errors by which a seed may be ahead of it: one honest seed in three million is, were it the truth itself."""
_ROUNDING = 1e-3
"""More than the float16 of stored predictions moves a mean of nats."""
_CURVE_DIGIT = 1e-6
"""Curves are kept to six decimals: nats at the floor are rounded up."""
_CURVE_TOLERANCE = 1.5 * _CURVE_DIGIT
_HALF_DIGIT = 0.5 * 10.0 ** (1 - DIGITS)
"""How far an instance's sum may be from the exact one, relative to it."""


def track(case: Case) -> Iterator[str]:
    """Name, version, digest, main score and the fingerprints of all splits are those of the track as it is now."""
    claimed, real = case.result.track, case.reference.record
    for field in ("name", "version", "digest", "main_score"):
        if getattr(claimed, field) != getattr(real, field):
            yield f"{field} is {getattr(claimed, field)!r}, and that of {real.name} is {getattr(real, field)!r}"
    for split in sorted({*claimed.fingerprints, *real.fingerprints}):
        given, wanted = claimed.fingerprints.get(split, "missing"), real.fingerprints.get(split, "no split")
        if given != wanted:
            yield f"the {split} split was {given[:12]!r}; that of {real.name} is {wanted[:12]!r}"


def metrics(case: Case) -> Iterator[str]:
    """Every seed and every baseline has exactly the track's scores, their curves, and a value for each instance."""
    wanted = set(case.reference.metrics)
    for seed in case.result.seeds:
        shares = set(seed.share_of_the_way) or wanted
        if any(found != wanted for found in (set(seed.scores), set(seed.curves), shares)):
            yield f"seed {seed.seed} does not have exactly the scores {', '.join(sorted(wanted))}"
    for name, baseline in case.result.baselines.items():
        if set(baseline.scores) != wanted or set(baseline.curves) != wanted:
            yield f"the baseline {name} does not have exactly the scores {', '.join(sorted(wanted))}"
    for where, record in _records(case):
        for curve in record.curves.values():
            if len({len(curve.position), len(curve.value), len(curve.count), len(curve.stderr or curve.value)}) != 1:
                yield f"{where}: a curve's columns differ in length"
                break
    if case.instances is None:
        return
    n, sums = len(case.reference.test), case.instances.sums
    if len(sums) != len(case.result.seeds) or any(set(one) != wanted for one in sums):
        yield "instances: not exactly the scores of every seed"
    lengths = {len(case.instances.counts), *map(len, case.instances.group_counts.values())}
    if (lengths | {len(column) for one in sums for column in one.values()}) != {n}:
        yield f"instances: the test split has {n}"


def seeds(case: Case) -> Iterator[str]:
    """Seeds are 0, 1, 2, ... without a gap, at least three: nobody can choose among them."""
    given = [seed.seed for seed in case.result.seeds]
    if given != list(range(len(given))):
        yield f"seeds must be 0, 1, 2, ... in order, not {' '.join(map(str, given[:10]))}"
    if len(given) < FEWEST_SEEDS:
        yield f"at least {FEWEST_SEEDS} seeds, not {len(given)}"


def distinct(case: Case) -> Iterator[str]:
    """No two seeds have the same predictions."""
    digests = [seed.predictions_sha256 for seed in case.result.seeds]
    if not all(_SHA256.fullmatch(digest) for digest in digests):
        yield "predictions_sha256 is no SHA-256"
    sums = [] if case.instances is None else [str(sorted(one.items())) for one in case.instances.sums]
    if len(set(digests)) < len(digests) or len(set(sums)) < len(sums):
        yield "two seeds have the same predictions"


def budget(case: Case) -> Iterator[str]:
    """Training saw no more tokens than the track allows."""
    allowed = case.reference.budget
    asked = case.result.training.get("train_tokens")
    most = max([seed.tokens for seed in case.result.seeds] + ([asked] if isinstance(asked, int) else []))
    if most > allowed:
        yield f"{most:,} training tokens, and the track allows {allowed:,}"


def learning(case: Case) -> Iterator[str]:
    """Steps and tokens are what the training options give, and the kept weights are the best by validation loss."""
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
            yield from _learning(seed, plans[seed.seed])


def ranges(case: Case) -> Iterator[str]:
    """Every score lies where its metric can."""
    for where, record in _records(case):
        values = [(m, s.value, 1e-9) for m, s in record.scores.items()]
        values += [(m, value, _CURVE_DIGIT / 2 + 1e-9) for m, curve in record.curves.items() for value in curve.value]
        for metric, value, slack in values:
            low, high = case.reference.track.metrics[metric].limits
            if not low - slack <= value <= high + slack:
                yield f"{where}: {metric} is {value:g}, outside {low:g} to {high:g}"
                break


def means(case: Case) -> Iterator[str]:
    """Scores and standard errors are those of the instances, which are scored where the test split is."""
    instances, frame = case.instances, case.reference.frame
    if instances is None:
        return
    groups = {metric: counts.tolist() for metric, counts in frame.group_counts.items()}
    if instances.counts != frame.counts.tolist() or instances.group_counts != groups:
        yield "instances: the counts are not how many positions the test split scores"
        return
    for i, seed in enumerate(case.result.seeds):
        for metric, record in seed.scores.items():
            sums = np.array(instances.sums[i][metric], np.float64)
            fault = _sums_fault(case.reference.track.metrics[metric], sums, frame.counts_of(metric))
            fault = fault or _mean_fault(record, sums, frame.counts_of(metric))
            if fault:
                yield f"seed {seed.seed}: {metric}: {fault}"


def possible(case: Case) -> Iterator[str]:
    """No seed predicts better than the truth: its nats, or squared error, are the least that can be expected of anyone."""
    if case.instances is None or (truth := case.reference.truth) is None:
        return
    for metric in sorted({*PROPER} & {*case.reference.metrics}):
        for seed, sums in zip(case.result.seeds, case.instances.sums, strict=True):
            given = np.array(sums[metric], np.float64)
            if _beyond_measure(given):  # `means` says so
                continue
            ahead = Score.of(truth.sums[metric] - given, truth.counts_of(metric))
            if ahead.value > _CHANCE * ahead.stderr + _ROUNDING:
                yield (
                    f"seed {seed.seed}: {metric} is {ahead.value:.3f} below that of the truth, by {_CHANCE} standard errors "
                    "and more: it has seen what it predicts"
                )


def curves(case: Case) -> Iterator[str]:
    """Curves have the track's positions and counts, and average to the score, but for what positions in no curve leave open."""
    for where, record in _records(case):
        for metric, curve in record.curves.items():
            positions = int(case.reference.frame.counts_of(metric).sum())
            highest = case.reference.track.metrics[metric].limits[1]
            fault = _curve_fault(curve, case.reference.curves[metric], record.scores[metric].value, positions, highest)
            if fault:
                yield f"{where}: the curve of {metric} {fault}"


def shares(case: Case) -> Iterator[str]:
    """The share of the way follows from the scores and the baselines."""
    for seed in case.result.seeds:
        shares = normalized_scores(seed.scores, case.result.baselines)
        if seed.share_of_the_way and not shares:
            yield f"seed {seed.seed}: share_of_the_way without baselines to measure it by"
        for metric, wanted in shares.items():
            given = seed.share_of_the_way.get(metric, math.inf)
            if not abs(given - wanted) <= 1e-9 * max(1.0, abs(wanted)):
                yield f"seed {seed.seed}: share_of_the_way of {metric} is {given:g}, and the scores give {wanted:g}"


def speeds(case: Case) -> Iterator[str]:
    """Seconds, tokens and tokens per second agree; memory was used."""
    for seed in case.result.seeds:
        if seed.seconds <= 0 or seed.tokens_per_second <= 0 or seed.peak_memory_bytes <= 0:
            yield f"seed {seed.seed}: seconds, tokens_per_second and peak_memory_bytes must be above 0"
            continue
        slowest, fastest = (seed.tokens / max(seed.seconds + off, 1e-9) for off in (0.0006, -0.0006))
        if not slowest - 0.06 <= seed.tokens_per_second <= fastest + 0.06:
            yield f"seed {seed.seed}: {seed.tokens:,} tokens in {seed.seconds} s are not {seed.tokens_per_second:,} tokens/s"
    for name, record in case.result.baselines.items():
        if record.seconds < 0:
            yield f"the baseline {name} took {record.seconds} s"


def baselines(case: Case) -> Iterator[str]:
    """Every baseline is what it comes out as when it is computed here."""
    real = case.reference.baselines(case.announce)
    for name in sorted({*case.result.baselines, *real}):
        given, wanted = case.result.baselines.get(name), real.get(name)
        if wanted is None:
            yield f"there is no baseline '{name[:60]}'"
        elif given is None:
            late = f"the baseline {name} is newer than this result"
            yield late if wanted.anchor else Note(late)
        elif canonical(given.options) != canonical(wanted.options) or given.anchor != wanted.anchor:  # True == 1
            yield f"{name} has other options"
        else:
            yield from (f"{name}: {fault}" for fault in _baseline_faults(given, wanted))


STRUCTURE: tuple[Check, ...] = (track, metrics)
ALONE: tuple[Check, ...] = (seeds, distinct, budget, learning, speeds)
FIGURES: tuple[Check, ...] = (ranges, means, possible, curves, shares)
COSTLY: tuple[Check, ...] = (baselines,)


def _records(case: Case) -> Iterator[tuple[str, _Record]]:
    for seed in case.result.seeds:
        yield f"seed {seed.seed}", seed
    for name, record in case.result.baselines.items():
        yield f"the baseline {name}", record


def _learning(seed: SeedRecord, plan: NDArray[np.int64]) -> Iterator[str]:
    rows, where = seed.training_curve, f"seed {seed.seed}"
    if (seed.steps, seed.tokens) != (len(plan), plan[-1]):
        yield f"{where}: {seed.steps:,} steps of {seed.tokens:,} tokens, and the options give {len(plan):,} of {plan[-1]:,}"
        return
    steps = [row.step for row in rows]
    if not steps or steps != sorted(set(steps)) or steps[0] < 1 or steps[-1] != seed.steps:
        yield f"{where}: the steps of the training curve do not rise to the last"
        return
    if any(row.tokens != plan[row.step - 1] for row in rows):
        yield f"{where}: the training curve has other tokens than its steps"
    if any(set(row.loss) != set(rows[0].loss) or not row.loss for row in rows):
        yield f"{where}: the training curve has other losses in some rows"
    best = min(rows, key=lambda row: row.validation_loss)
    if seed.best_step != best.step:
        yield f"{where}: step {seed.best_step} was kept, and step {best.step} has the best validation loss"


def _sums_fault(metric: Metric, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> str | None:
    """What is impossible about an instance's sums, if anything."""
    most = np.where(counts > 0, metric.limits[1], 0.0) * np.maximum(counts, 1)
    if not (sums <= most * (1 + 2 * _HALF_DIGIT)).all():
        return "an instance's sum is more than its positions can give"
    if metric.over.endswith("accuracy") and (sums != np.floor(sums)).any():
        return "an instance has a fraction of a right answer"
    if any(rounded(value) != value for value in sums.tolist()):
        return f"an instance's sum has more than {DIGITS} digits"
    return None


def _beyond_measure(sums: NDArray[np.float64]) -> bool:
    """Whether squares of them would overflow."""
    return not np.abs(sums).max(initial=0.0) < 1e100


def _mean_fault(record: ScoreRecord, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> str | None:
    """Whether score and standard error can come from sums that were rounded to these; the bounds are exact, not guesses."""
    if _beyond_measure(sums):
        return "an instance's sum is beyond all measure"
    own = Score.of(sums, counts)
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


def _curve_fault(curve: Curve, frame: Curve, value: float, positions: int, highest: float) -> str | None:
    """positions: how many the score is over. Those that are in no curve (`Task.progress` below 0) can be anything."""
    if (curve.position, curve.count, curve.axis) != (frame.position, frame.count, frame.axis):
        return "has other positions than the test split"
    if (curve.stderr is None) != (frame.stderr is None) or min(curve.stderr or [0.0]) < 0:
        return "has standard errors of its own"
    drawn = sum(v * c for v, c in zip(curve.value, curve.count, strict=True))
    left_out = positions - sum(curve.count)
    rest = value * positions - drawn
    most = highest * left_out if left_out else 0.0
    if not -_CURVE_TOLERANCE * positions <= rest <= most + _CURVE_TOLERANCE * positions:
        return f"averages to {drawn / sum(curve.count):.6f}, and the score is {value:.6f}"
    return None


def _baseline_faults(given: BaselineRecord, wanted: BaselineRecord) -> Iterator[str]:
    for metric, score in wanted.scores.items():
        pair: Mapping[str, tuple[float, float]] = {
            metric: (given.scores[metric].value, score.value),
            f"the standard error of {metric}": (given.scores[metric].stderr, score.stderr),
        }
        for what, (claimed, real) in pair.items():
            if not abs(claimed - real) <= _BASELINE_TOLERANCE * max(1.0, abs(real)):
                yield f"{what} is {claimed:.6g}, and computed here {real:.6g}"
        if _apart(given.curves[metric], wanted.curves[metric]) > _BASELINE_TOLERANCE:
            yield f"the curve of {metric} is not what is computed here"


def _apart(a: Curve, b: Curve) -> float:
    """How far two curves, or their standard errors, are from each other, averaged over positions."""
    if len(a.value) != len(b.value) or (a.stderr is None) != (b.stderr is None):
        return math.inf
    weights = np.array(b.count) / max(1, sum(b.count))
    pairs = [(a.value, b.value), (a.stderr or [], b.stderr or [])]
    return max(float(np.sum(np.abs(np.subtract(x, y)) * weights[: len(x)])) for x, y in pairs)
