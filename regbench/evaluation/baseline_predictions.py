"""What a baseline says of every position of some instances: kept in the cache, since some take minutes to say it."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.checks.baseline import blaming_baseline, check_predictions
from regbench.data.instances import Instances
from regbench.evaluation.predictions import CompactPredictions, brief_of_real, padded_batches
from regbench.metrics.batching import rows_at_once
from regbench.models.predictor import Baseline
from regbench.tasks.base import Task
from regbench.tracks import Track
from regbench.utils import registry, threads
from regbench.utils.arrays import FloatArray
from regbench.utils.cache import cache_root
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, read_arrays

Progress = Callable[[int, int], None]
"""Is told how many instances are done, and of how many."""

_AT_ONCE = 25


@dataclass(frozen=True)
class BaselinePredictions:
    """packed: (T, V) float64, a row for each real token, instance after instance; of vectors (T, D_out).  lengths: (N,).

    seconds: of wall time on so many `threads` when they were made; processor_seconds: of all threads together, without what
    the machine spent on other programs.
    """

    packed: NDArray[np.float64]
    lengths: NDArray[np.integer[Any]]
    seconds: float
    processor_seconds: float
    threads: int

    def batches(self, batch_size: int = 64) -> Iterator[FloatArray]:
        """(B, L, V) float64 batches in order, each cut to its longest instance; padding is uniform."""
        return padded_batches(self.packed, self.lengths, batch_size, lambda rows: rows)


@dataclass(frozen=True)
class CompactBaselinePredictions(CompactPredictions):
    """The same of a task that does not know its truth: of each real token its probability, float64, and the most likely one."""

    seconds: float
    processor_seconds: float
    threads: int


def baseline_predictions(
    baseline: Baseline, track: Track, instances: Instances, progress: Progress | None = None
) -> BaselinePredictions | CompactBaselinePredictions:
    """From the cache, or made and kept; brief where the task does not know its truth."""
    found = _cached(baseline, track, instances)
    if found is not None:
        return found
    made = _make(baseline, track, instances, progress or (lambda done, total: None))
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in vars(made).items()}
    try:
        with atomic_write(_path(baseline, track, instances), "wb") as file:
            np.savez_compressed(file, **arrays)
    except OSError:
        pass  # a cache that cannot be written is done without
    return made


def whole_baseline_predictions(
    baseline: Baseline, track: Track, instances: Instances, progress: Progress | None = None
) -> BaselinePredictions:
    """As `baseline_predictions`, for those who need whole distributions.

    Raises:
        UserError: the task does not know its truth, and they are not kept.
    """
    said = baseline_predictions(baseline, track, instances, progress)
    if not isinstance(said, BaselinePredictions):
        raise UserError(f"of the baselines on {track.name} no whole distributions are kept")
    return said


def cached_baseline_predictions(baseline: Baseline, track: Track, instances: Instances) -> BaselinePredictions | None:
    """Whole distributions from the cache, or None where it does not have them."""
    found = _cached(baseline, track, instances)
    return found if isinstance(found, BaselinePredictions) else None


def _cached(
    baseline: Baseline, track: Track, instances: Instances
) -> BaselinePredictions | CompactBaselinePredictions | None:
    kind = BaselinePredictions if track.task.knows_truth else CompactBaselinePredictions
    tokens = ("packed",) if track.task.knows_truth else ("probability", "most_likely")
    try:
        arrays = read_arrays(_path(baseline, track, instances))
        found = kind(
            **{name: arrays[name] for name in (*tokens, "lengths")},
            seconds=float(arrays["seconds"]),
            processor_seconds=float(arrays["processor_seconds"]),
            threads=int(arrays["threads"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    real = all(len(arrays[name]) == instances.n_tokens for name in tokens)
    return found if real and np.array_equal(found.lengths, instances.lengths) else None


def _path(baseline: Baseline, track: Track, instances: Instances) -> Path:
    return cache_root() / "baseline-predictions" / f"{baseline_key(baseline, track, instances)}.npz"


def baseline_key(baseline: Baseline, track: Track, instances: Instances, **more: str) -> str:
    """All that decides what is kept of a baseline, as one digest: its code and options, the task's, and the instances.

    more: what it depends on besides, by name.
    """
    task = track.task
    content = {
        "code": code_digest(type(baseline)),
        "class": type(baseline).__name__,
        "options": baseline.options,
        "instances": instances.fingerprint,
        "task": [track.definition.task, task.parameters.model_dump()],
        "task_code": _task_digest(type(task)),
        "scores": [[name, task.group_scores.get(name)] for name in task.scores],
        **more,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _task_digest(cls: type[Task]) -> str:
    """Of the code of a task and of those it is built on; of what is built in only the folder of the tasks.

    The engine below says no truth, no group and no progress, and what it makes of the instances is in their fingerprint.
    """
    files: set[Path] = set()
    for base in cls.__mro__:
        if issubclass(base, Task):
            folder, built_in = Path(inspect.getfile(base)).parent, registry.is_built_in(registry.TASK, base)
            files |= {path for path in registry.source_files(base) if not built_in or path.parent == folder}
    return files_digest(sorted(files))


def _make(
    baseline: Baseline, track: Track, instances: Instances, progress: Progress
) -> BaselinePredictions | CompactBaselinePredictions:
    parts: list[FloatArray] = []
    given, best = [], []
    seconds, processor_seconds = 0.0, 0.0
    at_once = rows_at_once(track.task.io, instances.tokens.shape[1], _AT_ONCE)
    with blaming_baseline(baseline):
        baseline.predict(instances[:1].tokens)  # what is compiled is compiled before the clock runs
    for first in range(0, len(instances), at_once):
        some = instances[first : first + at_once]
        started, processor_started = time.perf_counter(), time.process_time()
        with blaming_baseline(baseline):
            predicted = baseline.predict(some.tokens)
        seconds += time.perf_counter() - started
        processor_seconds += time.process_time() - processor_started
        with blaming_baseline(baseline):
            check_predictions(predicted, some.tokens, track.task.io)
        if track.task.knows_truth:
            parts += [row[:length].astype(np.float64) for row, length in zip(predicted, some.lengths, strict=True)]
        else:
            brief = brief_of_real(predicted, some, track.task.io.vocab_size)
            given.append(brief[0].astype(np.float64))
            best.append(brief[1])
        progress(first + len(some), len(instances))
    times = round(seconds, 3), round(processor_seconds, 3), threads.available()
    if track.task.knows_truth:
        return BaselinePredictions(np.concatenate(parts), instances.lengths, *times)
    return CompactBaselinePredictions(np.concatenate(given), np.concatenate(best), instances.lengths, *times)


def code_digest(cls: type[Any]) -> str:
    """SHA-256 of what a class's source files say to Python, comments and docstrings left out: prose decides no score."""
    return files_digest(registry.source_files(cls))


def files_digest(files: Iterable[Path]) -> str:
    """The same of the files given, in their order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(json.dumps(_code(ast.parse(path.read_bytes()))).encode())
    return digest.hexdigest()


def _code(node: Any) -> Any:
    """A syntax tree as lists. What is empty is left out, so that a newer Python's new fields change nothing."""
    if isinstance(node, list):
        return [_code(child) for child in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        fields["body"] = [child for child in node.body if not _is_prose(child)]
    return [type(node).__name__, *([name, _code(value)] for name, value in fields.items() if value not in (None, []))]


def _is_prose(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
