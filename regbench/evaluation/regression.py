"""Score regression: what an architecture scored once is kept in a small file, and compared with what it scores now.

The record is a JSON file beside the test that asks for it, and is committed with the test. It holds the track, the settings, the
score and the curves of each seed, and for each test instance the score summed over its positions.
`regbench.metrics.significance` decides whether the change counts. `RegressionOutcome.explain` tells it to people, and where the
two runs begin to differ.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic

from regbench.config import plain
from regbench.evaluation.predictions import read_scored
from regbench.metrics.metric import METRICS, Metrics
from regbench.metrics.scores import score
from regbench.metrics.significance import (
    LEVEL,
    Change,
    Prior,
    Sample,
    compare,
    default_prior,
    seed_error,
    student_quantile,
    worst_seed,
)
from regbench.results import Environment, Result, SeedRecord, read_result
from regbench.tracks import Track
from regbench.utils.errors import UserError, explain_validation, nearest
from regbench.utils.files import atomic_write, read_text
from regbench.utils.settings import Strict

UPDATE = "--regbench-update"
"""The flag with which tests record scores. Messages that it helps with name it."""


class SeedMeasurement(Strict):
    seed: int
    score: float
    training: list[tuple[int, float, float]]  # step, training loss and validation loss of each evaluation
    by_position: list[float]  # the score in each bin


class Measurement(Strict):
    """The part of a run's outcome that later runs are compared with. A record file holds one measurement."""

    schema_version: Literal[1] = 1
    track: str
    track_digest: str
    test_fingerprint: str
    architecture: str
    source_sha256: str
    settings: dict[str, Any] | None  # None where a finished run was scored
    metric: str
    seeds: list[SeedMeasurement] = pydantic.Field(min_length=1)
    position: list[float]  # the mean of each bin
    position_count: list[int]
    instances: list[float]  # (N,), the score summed over an instance's positions, averaged over seeds
    counts: list[int]  # (N,), the number of those positions
    environment: dict[str, str]

    @property
    def sample(self) -> Sample:
        return Sample([seed.score for seed in self.seeds], np.array(self.instances))


def plain_settings(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Turns settings into the form in which a record keeps and compares them."""
    try:
        kept: dict[str, Any] = json.loads(json.dumps(plain(dict(settings or {})), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserError(f"settings cannot be recorded: {error}") from None
    return kept


def choose_metric(track: Track, metric: str | None) -> str:
    if metric is None:
        return track.definition.main_score
    if metric not in track.task.scores:
        raise UserError(f"{track.name} has no score '{metric}'{nearest(metric, track.task.scores)}")
    return metric


def measure(folder: Path, track: Track, metric: str, settings: Mapping[str, Any] | None) -> Measurement:
    """Scores the stored predictions of a finished run. Nothing is trained."""
    result = read_result(folder)
    _check_track(result.track.name, result.track.digest, result.track.fingerprints["test"], track, str(folder))
    if result.split != "test":  # where all instances have one length, predictions for both splits have one form
        raise UserError(f"{folder} is of the {result.split} split; scores of the test split are recorded")
    totals = []
    for seed in result.seeds:
        predictions = read_scored(folder, seed, track.task, track.instances("test"))
        scores = score(track.task, track.instances("test"), predictions.batches())
        totals.append(scores.sums[metric])
    curve = result.seeds[0].curves[metric]
    return Measurement(
        track=result.track.name,
        track_digest=result.track.digest,
        test_fingerprint=result.track.fingerprints["test"],
        architecture=result.architecture.name,
        source_sha256=result.architecture.source_sha256,
        settings=None if settings is None else plain_settings(settings),
        metric=metric,
        seeds=[_measure_seed(seed, metric) for seed in result.seeds],
        position=curve.position,
        position_count=curve.count,
        instances=np.mean(totals, axis=0).round(6).tolist(),
        counts=scores.counts_of(metric).tolist(),
        environment=_environment(result),
    )


def read_record(path: Path) -> Measurement:
    with explain_validation(str(path), Measurement.model_fields):
        return Measurement.model_validate_json(read_text(path))


def write_record(path: Path, measurement: Measurement) -> None:
    """Writes a record with one field in each line, so that a diff shows which fields changed."""
    fields = measurement.model_dump(mode="json").items()
    lines = [f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields]
    with atomic_write(path) as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def check_record(
    record: Measurement,
    where: Path,
    track: Track,
    architecture: str | None,
    metric: str,
    settings: dict[str, Any] | None,
) -> None:
    """Checks that a record is of what is asked for now; `architecture` and `settings` are None where any will do."""
    _check_track(record.track, record.track_digest, record.test_fingerprint, track, str(where))
    if architecture is not None and record.architecture != architecture:
        raise UserError(
            f"{where} is of the architecture {record.architecture}, not {architecture}; record with {UPDATE}"
        )
    if record.metric != metric:
        raise UserError(f"{where} is of {record.metric}, not {metric}; record with {UPDATE}")
    if settings is not None and record.settings is not None and record.settings != settings:
        keys = sorted(settings.keys() | record.settings.keys())
        changed = [
            f"{key}={record.settings.get(key, 'default')} is now {settings.get(key, 'default')}"
            for key in keys
            if record.settings.get(key, ...) != settings.get(key, ...)
        ]
        raise UserError(f"{where} is of other settings: {', '.join(changed)}; record with {UPDATE}")


@dataclass(frozen=True)
class RegressionOutcome:
    """A measurement beside its record, how they differ, and how the worst seed differs from the recorded ones."""

    expected: Measurement
    got: Measurement
    change: Change
    worst: Change
    prior: Prior

    @classmethod
    def of(
        cls,
        expected: Measurement,
        got: Measurement,
        metrics: Metrics = METRICS,
        level: float = LEVEL,
        prior: Prior | None = None,
    ) -> RegressionOutcome:
        """Compares two measurements of one metric.

        `level` is the probability with which chance alone may be called worse.
        """
        metric, counts, sample = metrics[got.metric], np.array(got.counts), expected.sample
        prior, higher = prior or default_prior(metric), metric.higher_is_better
        # Half of the level for each of the two.
        change = compare(sample, got.sample, counts, prior, higher_is_better=higher, level=level / 2, same=True)
        worst = worst_seed(sample, got.sample.seeds, counts, prior, higher_is_better=higher, level=level / 2)
        return cls(expected, got, change, worst, prior)

    @property
    def verdict(self) -> str:
        return "worse" if self.is_worse else "better" if self.change.better else "the same"

    @property
    def is_worse(self) -> bool:
        """Whether the mean fell by more than chance explains, or a single seed did."""
        return self.change.worse or self.worst.worse

    def headline(self) -> str:
        e, g = self.expected, self.got
        return (
            f"{g.metric} of {g.architecture} on {g.track}: expected {e.sample.mean:.4f}, got {g.sample.mean:.4f}, "
            f"{self.verdict} (noise {self.change.noise:.4f}, allowed {self.change.allowed:.4f})"
        )

    def explain(self) -> str:
        """Tells the outcome in several lines: both scores, the noise, where the curves begin to differ, and what else changed."""
        change, worst = self.change, self.worst
        allowed = f"{-worst.allowed:+.4f} is allowed for the worst of {len(self.got.seeds)}"
        rows = [
            ("expected", _seeds(self.expected)),
            ("got", _seeds(self.got)),
            ("change", f"{change.change:+.4f} where + is better; {-change.allowed:+.4f} is allowed"),
            (
                "noise",
                f"{change.noise:.4f}, one standard error: {change.instances:.4f} from instances, {change.seeds:.4f} from seeds; "
                f"allowed are {change.allowed / change.noise if change.noise else 0:.2f} of them "
                f"(level {change.level:g}, {change.freedom:.3g} degrees of freedom)",
            ),
            *([("one seed", f"{worst.change:+.4f} from the recorded mean; {allowed}")] if worst.worse else []),
            ("training", self.training()),
            ("positions", self.positions()),
            ("changed", ", ".join(self.changed()) or "nothing that the record knows of"),
        ]
        return "\n".join([self.headline(), *(f"  {name:10}{text}" for name, text in rows)])

    def training(self) -> str:
        """Tells the first evaluation at which a loss is further from the record than seeds explain.

        Evaluations are counted. Their steps differ a little between seeds, since the batches do.
        """
        # Of each evaluation that every seed has, the row of each seed.
        then, now = (
            list(zip(*(seed.training for seed in one.seeds), strict=False)) for one in (self.expected, self.got)
        )
        number = min(len(then), len(now))
        if not number:
            return "nothing was trained"
        for i in range(number):
            for column, name in ((2, "validation"), (1, "training")):
                old, new = ([row[column] for row in rows[i]] for rows in (then, now))
                apart = self._apart(old, new, default_prior(METRICS["nll"]))
                if apart is not None:
                    step = round(statistics.fmean(row[0] for row in now[i]))
                    return (
                        f"the {name} loss is first apart at evaluation {i + 1} of {number}, step {step}: "
                        f"expected {statistics.fmean(old):.4f}, got {statistics.fmean(new):.4f}, noise {apart:.4f}"
                    )
        last = [statistics.fmean(row[2] for row in rows[number - 1]) for rows in (then, now)]
        return f"no loss is apart by more than the noise; the last validation loss: expected {last[0]:.4f}, got {last[1]:.4f}"

    def positions(self) -> str:
        """Tells the first bin of positions whose score is further from the record than instances and seeds explain.

        The noise of a bin that comes from instances is computed from that of the whole score, as if all positions had the same.
        """
        e, g = self.expected, self.got
        if e.position != g.position:
            return "the bins are others than recorded"
        total = sum(e.position_count)
        for i, (position, count) in enumerate(zip(e.position, e.position_count, strict=True)):
            old, new = ([seed.by_position[i] for seed in m.seeds] for m in (e, g))
            apart = self._apart(old, new, self.prior, self.change.instances * (total / count) ** 0.5)
            if apart is not None:
                return (
                    f"the score is first apart around position {position:g} (bin {i + 1} of {len(e.position)}): "
                    f"expected {statistics.fmean(old):.4f}, got {statistics.fmean(new):.4f}, noise {apart:.4f}"
                )
        return "no bin by itself is apart by more than chance explains with so few seeds"

    def _apart(self, old: Sequence[float], new: Sequence[float], prior: Prior, instances: float = 0.0) -> float | None:
        """The standard error of the difference of two means over seeds, or None where chance explains the difference."""
        seeds, freedom = seed_error((old, new), prior, len(self.got.counts), same=True)
        noise = float(np.hypot(seeds, instances))
        away = abs(statistics.fmean(new) - statistics.fmean(old))
        return noise if away > student_quantile(self.change.level, freedom) * noise else None

    def changed(self) -> list[str]:
        """Tells what changed since the record was made: the architecture's source, packages, the machine."""
        found = []
        if self.expected.source_sha256 != self.got.source_sha256:
            found.append("the architecture's source")
        then, now = self.expected.environment, self.got.environment
        for name in sorted(then.keys() | now.keys()):
            old, new = then.get(name, "absent"), now.get(name, "absent")
            if old != new:
                found.append(f"{name} from {old} to {new}")
        return found


def _check_track(name: str, digest: str, fingerprint: str, track: Track, where: str) -> None:
    if name != track.name:
        raise UserError(f"{where} is of the track {name}, not {track.name}")
    if digest != track.definition.digest:
        raise UserError(
            f"{where} is of another {name}: the track was edited since (digest {digest[:12]}, now "
            f"{track.definition.digest[:12]}), and scores do not compare; record with {UPDATE}"
        )
    if fingerprint != (now := track.instances("test").fingerprint):
        raise UserError(
            f"{where} is of other test instances of {name} (fingerprint {fingerprint[:12]}, now {now[:12]}), "
            f"and scores do not compare; record with {UPDATE}"
        )


def _measure_seed(seed: SeedRecord, metric: str) -> SeedMeasurement:
    return SeedMeasurement(
        seed=seed.seed,
        score=seed.scores[metric].value,
        training=[(row.step, sum(row.loss.values()), row.validation_loss) for row in seed.training_curve],
        by_position=seed.curves[metric].value,
    )


def _environment(result: Result) -> dict[str, str]:
    found: Environment = result.environment
    backends = {f"backend of {op}": name for op, name in found.backend.items()}
    trained = {f"backend of {op} in training": name for op, name in (found.training_backend or {}).items()}
    machine = {"processor": found.processor, "device": found.device, "python": found.python}
    return {**machine, "precision": found.precision, **backends, **trained, **found.packages}


def _seeds(measurement: Measurement) -> str:
    each = ", ".join(f"{seed.seed}: {seed.score:.4f}" for seed in measurement.seeds)
    return f"{measurement.sample.mean:.4f} (by seed {each})"
