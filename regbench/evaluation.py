"""Scoring a trained model and the baselines on the test split, and keeping what was predicted."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench import registry
from regbench.data import Instances, cache_root
from regbench.errors import UserError
from regbench.files import atomic_write
from regbench.predictor import Baseline, FloatArray, Predictor
from regbench.registry import blame
from regbench.results import BaselineRecord, Curve, ScoreRecord
from regbench.scoring import Scores, Steps, bin_width, predict_in_batches, score
from regbench.tracks import Track


@dataclass(frozen=True)
class Predictions:
    """Predicted distributions of real tokens only: (T, V) float16, instance after instance. Of vectors: (T, D_out) float32.

    Scores are computed from these very numbers, so that whoever has the file gets the same scores to the last bit.
    """

    packed: NDArray[np.float16] | NDArray[np.float32]
    lengths: NDArray[np.integer[Any]]

    @classmethod
    def of(cls, predictor: Predictor, instances: Instances) -> Predictions:
        """What `predictor` says of every position of `instances`."""
        parts = []
        lengths = iter(instances.lengths)
        kind = np.float32 if instances.tokens.ndim == 3 else np.float16
        for batch in predict_in_batches(predictor, instances):
            for row in batch:
                parts.append(row[: next(lengths)].astype(kind))
        return cls(np.concatenate(parts), instances.lengths)

    def batches(self, batch_size: int = 64) -> Iterator[FloatArray]:
        """(B, L, V) float64 batches whose rows sum to 1; padding is uniform. Of vectors (B, L, D_out), as they are."""
        ends = np.cumsum(self.lengths)
        width = self.packed.shape[1]
        for start in range(0, len(self.lengths), batch_size):
            lengths = self.lengths[start : start + batch_size]
            batch = np.full((len(lengths), int(lengths.max()), width), 1.0 / width)
            for i, length in enumerate(lengths):
                end = ends[start + i]
                rows = self.packed[end - length : end].astype(np.float64)
                batch[i, :length] = rows if self.of_vectors else rows / rows.sum(-1, keepdims=True)
            yield batch

    @property
    def of_vectors(self) -> bool:
        """Whether these are vectors, and not distributions over tokens."""
        return self.packed.dtype == np.float32

    def save(self, path: Path) -> str:
        """Writes the file and returns the SHA-256 of the numbers in it."""
        with atomic_write(path, "wb") as file:
            np.savez_compressed(file, packed=self.packed, lengths=self.lengths)
        return self.digest

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.packed.astype("<f4" if self.of_vectors else "<f2").tobytes()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> Predictions:
        """Raises:
        UserError: the file cannot be read as predictions.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(file["packed"], file["lengths"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"cannot read predictions from {path}: {blame(error)}") from None


def score_records(scores: Scores) -> tuple[dict[str, ScoreRecord], dict[str, Curve]]:
    """The scores and their curves by position, as the result keeps them; by progress, where the task tells its own."""
    width = bin_width(len(scores.position_counts))
    curves = {}
    for metric in scores.sums:
        if metric in scores.steps:
            curves[metric] = _curve_by_step(scores.steps[metric])
            continue
        position, value, count = scores.curve(metric, width)
        curves[metric] = Curve(position=position.round(2).tolist(), value=value.round(6).tolist(), count=count.tolist())
    return {m: ScoreRecord(value=s.value, stderr=s.stderr) for m, s in scores.table().items()}, curves


def _curve_by_step(steps: Steps) -> Curve:
    step, scores, count = steps.curve()
    return Curve(
        position=step.astype(float).tolist(),
        value=[round(s.value, 6) for s in scores],
        count=count.tolist(),
        stderr=[round(s.stderr, 6) for s in scores],
        axis=steps.label,
    )


def lineup(track: Track, instances: Instances) -> list[Baseline]:
    """Every registered baseline that fits the track's task."""
    found: list[Baseline] = []
    for name in registry.entries(registry.BASELINE):
        cls = registry.load(registry.BASELINE, name)
        if track.task.io.kind in cls.takes:
            found += cls.lineup(track.task, instances)
    return found


def score_baselines(track: Track, instances: Instances, announce: Callable[[str], None]) -> dict[str, BaselineRecord]:
    """Scores of the whole lineup, by name. They depend on nothing that is trained, so they are kept in the cache.

    The key is the split's fingerprint, the baseline's options and the source it was computed by.
    """
    records = {}
    for baseline in lineup(track, instances):
        path = cache_root() / "baselines" / f"{_baseline_key(baseline, track, instances)}.json"
        record = _read_record(path)
        if record is None:
            announce(baseline.name)
            started = time.perf_counter()
            scores, curves = score_records(
                score(track.task, instances, predict_in_batches(baseline, instances, len(instances)))
            )
            text = BaselineRecord(
                scores=scores,
                curves=curves,
                options=baseline.options,
                seconds=round(time.perf_counter() - started, 3),
                anchor=baseline.anchor,
            ).model_dump_json()
            record = BaselineRecord.model_validate_json(
                text
            )  # as it will be read: tuples among the options become lists
            try:
                with atomic_write(path) as file:
                    file.write(text)
            except OSError:
                pass  # a cache that cannot be written is done without
        records[baseline.name] = record
    return records


def _baseline_key(baseline: Baseline, track: Track, instances: Instances) -> str:
    """All that decides its scores: its source and what that imports from its own package, the scoring, the options, the split."""
    sources = [*registry.source_files(type(baseline)), Path(inspect.getfile(score))]
    content = {
        "sources": [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources],
        "class": type(baseline).__name__,
        "options": baseline.options,
        "split": instances.fingerprint,
        "task": [track.definition.task, track.task.parameters.model_dump()],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _read_record(path: Path) -> BaselineRecord | None:
    try:
        return BaselineRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
