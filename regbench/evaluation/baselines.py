"""The default baselines of a track: what they predict, which the cache keeps, and how they score."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regbench.checks.baseline import blaming_baseline, check_predictions, examined
from regbench.checks.task import examine_task_once
from regbench.data.instances import Instances
from regbench.evaluation.predictions import CompactPredictions, Predictions, StoredPredictions, store
from regbench.metrics.scores import SCORING_VERSION, Scores, score, score_chance, score_records
from regbench.models.predictor import Baseline, rows_at_once
from regbench.results import BaselineRecord
from regbench.tracks import Track
from regbench.training.progress import now_and_then
from regbench.utils import registry, threads
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, nearest
from regbench.utils.files import cache_root, keep_arrays, keep_text, kept_arrays, kept_text

Progress = Callable[[int, int], None]
"""Is told how many instances are done, and how many there are."""

Announce = Callable[[str, int, int], None]
"""Is told which baseline predicts, how many instances are done, and how many there are."""

_AT_ONCE = 25
"""How many instances are predicted between two reports of progress."""

CHANCE = "chance"
"""What chance is called among the baselines."""

WORTH_KEEPING = 1.0
"""Seconds. Predictions that take less time are not kept: they are made again about as fast as they would be read."""


# --- Which baselines there are. ---


def default_baselines(track: Track, instances: Instances) -> list[Baseline]:
    """Every registered baseline that fits the track's task. A task without a known truth has no oracle.

    Where a model sees one vector alone, a baseline that reads the whole prompt says nothing about models. Then there are only the
    two baselines that fix the normalized score.
    """
    examine_task_once(track)
    built_on = {None, *(base.__module__.rpartition(".")[2] for base in type(track.task).__mro__)}
    names = [name for name, entry in registry.entries(registry.BASELINE).items() if entry.only_task in built_on]
    found = [baseline for name in names for baseline in defaults_of(name, track, instances)]
    if track.task.io.bottleneck is not None:
        found = [baseline for baseline in found if baseline.anchor is not None]
    anchors = [str(b.anchor) for b in found if b.anchor is not None]
    for what, names in (("called", [b.name for b in found]), ("the anchor", anchors)):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"two baselines on {track.name} are {what} '{twice}'")
    return sorted(found, key=lambda baseline: baseline.slow)


def defaults_of(name: str, track: Track, instances: Instances) -> list[Baseline]:
    """What one baseline class, registered or given as a file, adds to the default baselines. It may add several or none."""
    cls = registry.load(registry.BASELINE, name)
    if track.task.io.kind not in cls.takes or (cls.anchor == "end" and not track.task.knows_truth):
        return []
    if registry.is_built_in(registry.BASELINE, cls):
        made: list[Baseline] = cls.defaults(track.task, instances)
        return made
    return examined(cls, registry.short_name(name), track.task, instances)


# --- What they predict. ---


@dataclass(frozen=True)
class BaselinePredictions:
    """A baseline's predictions in float64, and what it cost to make them."""

    stored: StoredPredictions
    seconds: float
    processor_seconds: float
    """Processor time of all threads together. Other programs on the machine do not add to it."""
    threads: int

    @property
    def costs(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "processor_seconds": self.processor_seconds, "threads": self.threads}


def predict_baseline(
    baseline: Baseline, track: Track, instances: Instances, progress: Progress = lambda done, total: None
) -> BaselinePredictions:
    found = kept_predictions(baseline, track, instances)
    if found is not None:
        return found
    made = _make(baseline, track, instances, progress)
    if made.seconds >= WORTH_KEEPING:
        keep_arrays(_predictions_file(baseline, track, instances), made.stored.arrays | made.costs)
    return made


def kept_predictions(baseline: Baseline, track: Track, instances: Instances) -> BaselinePredictions | None:
    """Predictions from the cache, or None where it does not have them."""
    task = track.task
    try:
        arrays = kept_arrays(_predictions_file(baseline, track, instances))
        stored = (Predictions if task.knows_truth else CompactPredictions).from_arrays(arrays)
        costs = float(arrays["seconds"]), float(arrays["processor_seconds"]), int(arrays["threads"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    width = task.io.width
    return BaselinePredictions(stored, *costs) if stored.fits(instances, width) else None


def baseline_key(baseline: Baseline, track: Track, instances: Instances) -> str:
    """All that decides what a baseline predicts and which scores are wanted, as one digest.

    The version of built-in code stands for what it does. Other code may change without a new version, so that the digest of
    its source file is there too.
    """
    cls, task = type(baseline), track.task
    built_in = registry.is_built_in(registry.BASELINE, cls)
    content = {
        "baseline": [cls.__module__ if built_in else registry.source_digest(cls), cls.__name__, cls.version],
        "options": baseline.options,
        "instances": instances.fingerprint,
        "task": [track.definition.task, task.parameters.model_dump(mode="json"), task.version, track.task_code],
        "scores": [[name, task.group_scores.get(name, ())[:2] or None] for name in task.scores],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _predictions_file(baseline: Baseline, track: Track, instances: Instances) -> Path:
    return cache_root() / "baselines" / f"{baseline_key(baseline, track, instances)}.npz"


def _make(baseline: Baseline, track: Track, instances: Instances, progress: Progress) -> BaselinePredictions:
    """Predicts all instances, a few at once, and takes the time."""
    io = track.task.io
    at_once = rows_at_once(io, instances.tokens.shape[1], _AT_ONCE)
    seconds, processor_seconds = 0.0, 0.0

    def batches() -> Iterator[FloatArray]:
        nonlocal seconds, processor_seconds
        for first in range(0, len(instances), at_once):
            some = instances[first : first + at_once]
            with blaming_baseline(baseline):
                started, processor_started = time.perf_counter(), time.process_time()
                predicted = baseline.predict_instances(some)
                seconds += time.perf_counter() - started
                processor_seconds += time.process_time() - processor_started
                check_predictions(predicted, some.tokens, io)
            yield predicted
            progress(first + len(some), len(instances))

    with blaming_baseline(baseline):
        baseline.predict_instances(instances[:1])  # what is compiled is compiled before the clock runs
    stored = store(track.task, batches(), instances, np.float64)
    return BaselinePredictions(stored, round(seconds, 3), round(processor_seconds, 3), threads.available())


# --- How they score. ---


def score_stored(track: Track, instances: Instances, stored: StoredPredictions) -> Scores:
    rows = rows_at_once(track.task.io, instances.tokens.shape[1], len(instances))
    return score(track.task, instances, stored.batches(rows))


def score_baselines(
    track: Track,
    instances: Instances,
    announce: Callable[[str], None],
    *,
    anchors: bool = False,
    names: Sequence[str] | None = None,
) -> dict[str, BaselineRecord]:
    """Scores the default baselines, or those of these names in tables. The cache keeps their scores: they depend on no training.

    With `anchors` only the two are scored between which normalized scores lie. Without these two there are no normalized scores.
    """
    wanted = [b for b in named_baselines(track, instances, names) if b.anchor is not None or not anchors]
    if not wanted:
        return {}
    return with_chance({b.name: _record(b, track, instances, announce) for b in wanted}, track, instances)


def named_baselines(track: Track, instances: Instances, names: Sequence[str] | None) -> list[Baseline]:
    """The default baselines of these names in tables. None: all."""
    found = {b.name: b for b in default_baselines(track, instances)}
    for name in names or ():
        if name not in found:
            raise UserError(f"{track.name} has no baseline '{name}'{nearest(name, found)}")
    return [baseline for name, baseline in found.items() if names is None or name in names]


def with_chance(records: Mapping[str, BaselineRecord], track: Track, instances: Instances) -> dict[str, BaselineRecord]:
    """Baselines, and chance among them if the task says what it is. The normalized score is then 0 there."""
    chance = score_chance(track.task, instances)
    if chance is None:
        return dict(records)
    scores, curves = score_records(chance)
    others = {name: r.model_copy(update={"anchor": None}) if r.anchor == "start" else r for name, r in records.items()}
    return others | {
        CHANCE: BaselineRecord(scores=scores, curves=curves, options={}, seconds=0.0, anchor="start"),
    }


def _record(baseline: Baseline, track: Track, instances: Instances, announce: Callable[[str], None]) -> BaselineRecord:
    """A baseline's scores, from the cache or computed now."""
    path = cache_root() / "baselines" / f"{baseline_key(baseline, track, instances)}-{SCORING_VERSION}.json"
    with contextlib.suppress(OSError, ValueError):  # missing, damaged, or another one
        return BaselineRecord.model_validate_json(kept_text(path))
    what = f"scoring the baseline {baseline.name}"
    announce(what)
    made = predict_baseline(baseline, track, instances, now_and_then(what, announce))
    scores, curves = score_records(score_stored(track, instances, made.stored))
    record = BaselineRecord(
        scores=scores,
        curves=curves,
        options=json.loads(json.dumps(baseline.options)),  # tuples become lists, as in a record that is read
        seconds=made.seconds,
        anchor=baseline.anchor,
    )
    keep_text(path, record.model_dump_json())
    return record
