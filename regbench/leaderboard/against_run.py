"""Checks of a claim against what its run left: its logs, its weights and above all its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from regbench.data.instances import Instances
from regbench.evaluation.predictions import Predictions, predict
from regbench.leaderboard.case import Case, Check, Findings, Note
from regbench.leaderboard.entry import InstanceScores
from regbench.leaderboard.figures import rescored
from regbench.leaderboard.isolated import predict_isolated
from regbench.leaderboard.job import Job
from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.past import Past, past_of
from regbench.leaderboard.reference import Reference, find_reference
from regbench.leaderboard.run_folder import RunFolder
from regbench.metrics.scores import score, score_records
from regbench.models.model import ModelPredictor
from regbench.results import Curve, SeedRecord
from regbench.tasks.base import Task
from regbench.tracks import Track
from regbench.training.checkpoint import load_model
from regbench.training.progress import MEASURED
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused

MEAN_TOLERANCE = 1e-3
LARGEST_TOLERANCE = 0.05
"""Of probabilities, or of vectors in units of their standard deviation. Float16 and other kernels stay far below."""

SCORE_TOLERANCE = 2e-3
"""Between a claimed score and that of what the weights predict now: absolute, of scores above 1 relative."""

_MOST_NUMBERS = 1 << 20
"""Of a checkpoint that are no parameters: buffers. Beside these it may have eight for each parameter."""


def predictions(case: Case) -> Iterator[str]:
    """Scores, standard errors, curves and instance scores are computed again from the stored predictions."""
    if case.scored is None:
        return
    for seed, one in zip(case.result.seeds, case.scored, strict=True):
        if one.digest != seed.predictions_sha256:
            yield f"seed {seed.seed}: the predictions are not those that were scored: their SHA-256 is {one.digest[:12]}"
        scores, curves = score_records(one.scores)
        yield from (f"seed {seed.seed}: {fault}" for fault in rescored(seed.scores, scores))
        for metric in scores:
            if not _same_curve(seed.curves[metric], curves[metric]):
                yield f"seed {seed.seed}: the curve of {metric} is not that of the predictions"
    if case.instances is not None:
        own = InstanceScores.of([one.scores for one in case.scored])
        for seed, claimed_sums, sums in zip(case.result.seeds, case.instances.sums, own.sums, strict=True):
            for metric in sums:
                if not np.allclose(claimed_sums[metric], sums[metric], rtol=1.1e-6, atol=1e-12):
                    yield f"seed {seed.seed}: instances: {metric} is not that of the predictions"


def logs(case: Case) -> Iterator[str]:
    """`scores.json` and `metrics.jsonl` of every seed say what the result says."""
    for run, seed in _recorded(case):
        try:
            if run.seed_record(seed.seed) != seed:
                yield f"seed-{seed.seed}/scores.json differs from the result"
            rows = [_row(row) for row in run.evaluations(seed.seed)]
        except Refused as error:
            yield str(error)
        else:
            if rows != [_row({**c.loss, **c.model_dump(exclude={"loss"})}) for c in seed.training_curve]:
                yield f"seed-{seed.seed}/metrics.jsonl has another training curve than the result"


def weights(case: Case) -> Iterator[str]:
    """The checkpoint of every seed holds as many parameters as are claimed."""
    for run, seed in _recorded(case):
        try:
            elements = sum(run.weights(seed.seed).values())
        except Refused as error:
            yield str(error)
        else:
            if elements < case.result.architecture.parameters:
                yield (
                    f"seed-{seed.seed}/checkpoint.safetensors holds {elements:,} numbers, fewer than the "
                    f"{case.result.architecture.parameters:,} parameters"
                )


CHECKS: tuple[Check, ...] = (logs, weights, predictions)


def repredict(
    run: Path,
    findings: Findings,
    track: Track | None,
    commit: str | None = None,
    source: bytes | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> None:
    """Predicts again with a run's weights, compares with the stored predictions, and adds what is found.

    A built-in architecture is built from today's source or that of the run's commit.

    Args:
        run: The run folder.
        findings: What `verify` found before. It must hold no fault: the size of what is built here is bounded by its checks.
        track: A track of your own, if the run is of that.
        commit: Whose source is run where it has changed since; by default the commit that the run names.
        source: The file of an architecture that is not built in. It is run isolated. Without it nothing is run.
        announce: Called with a line before something that takes long.
    """
    try:
        findings.take("checkpoint", _compare(RunFolder(run), track, commit, source, announce))
    except UserError as error:
        findings.take("checkpoint", [str(error)])


def _recorded(case: Case) -> Iterator[tuple[RunFolder, SeedRecord]]:
    """The run folder, if there is one, with each seed that can be in it."""
    if case.run is not None:
        yield from ((case.run, seed) for seed in case.result.seeds if 0 <= seed.seed < 2**32)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a log without what the training curve of a result leaves out."""
    left_out = ("learning_rate", "tokens_per_second")
    return {key: value for key, value in row.items() if key not in left_out and not key.startswith(MEASURED)}


def _same_curve(claimed: Curve, real: Curve) -> bool:
    if (claimed.position, claimed.count, claimed.axis) != (real.position, real.count, real.axis):
        return False
    pairs = [(claimed.value, real.value)]
    if real.stderr is not None:
        pairs.append((claimed.stderr or [], real.stderr))
    return all(len(a) == len(b) and np.allclose(a, b, rtol=0.0, atol=1.5e-6) for a, b in pairs)


def _compare(
    run: RunFolder,
    track: Track | None,
    commit: str | None,
    source: bytes | None,
    announce: Callable[[str], None],
) -> Iterator[str]:
    record = run.result.architecture
    built_in = is_built_in(record)
    if not built_in and source is None:
        yield Note("only the weights of built-in architectures are loaded")
        return
    reference = find_reference(run.result.track.name, track)
    with past_of(record, commit or run.result.code.commit) if built_in else nullcontext() as past:
        by = "" if past is None else f" by {record.source} of commit {past.commit[:12]}"
        predicted = predict_again(run, past, source, reference.track.task, [reference.test], announce)
        for seed, again in zip(run.result.seeds, predicted, strict=True):
            yield from weight_faults(run, seed, again, reference, by)


def _apart(again: Predictions, stored: Predictions) -> tuple[float, float]:
    """How far two predictions for the same instances are apart: on average, and at most. Vectors in standard deviations."""
    scale = float(stored.packed.std(dtype=np.float64)) if stored.of_vectors else 1.0
    total, largest, rows = 0.0, 0.0, max(1, (1 << 20) // stored.packed.shape[1])
    for start in range(0, len(stored.packed), rows):
        parts = (one.packed[start : start + rows].astype(np.float64) for one in (again, stored))
        apart = np.abs(next(parts) - next(parts)) / scale
        total, largest = total + float(apart.sum()), max(largest, float(apart.max()))
    return total / stored.packed.size, largest


def predict_again(
    run: RunFolder,
    past: Past | None,
    source: bytes | None,
    task: Task,
    asked: Sequence[Instances],
    announce: Callable[[str], None],
) -> Iterator[Predictions]:
    """What the weights of a run predict: for each seed all that it is asked.

    Args:
        run: The run folder.
        past: Of a built-in architecture the repository whose source is run. None: today's, in this process.
        source: The file of an architecture that is not built in: it has a process of its own.
        task: The task.
        asked: What the model of each seed is asked, one after the other.
        announce: Called with a line before something that takes long.

    Raises:
        Refused: A checkpoint is not of this model, or a process failed.
        UserError: A process cannot be isolated here.
    """
    record = run.result.architecture
    if is_built_in(record) and registry.files_in(record.options):
        raise Refused("no file that an option names is run")
    if past is not None or not is_built_in(record):
        weights = [read_weights(run, seed.seed) for seed in run.result.seeds]
        if past is not None:
            yield from past.predict(Job(record.name, record.options, task), weights, asked)
        else:
            _, class_name = registry.as_file(run.configuration.architecture)
            yield from predict_isolated(Job(class_name or "", record.options, task, source), weights, asked, announce)
        return
    for seed in run.result.seeds:
        model = load_model(run.folder, f"seed-{seed.seed}/checkpoint.safetensors", record, task.io)
        for instances in asked:
            found = predict(task, ModelPredictor(model), instances)
            assert isinstance(found, Predictions)  # the task knows its truth
            yield found


def read_weights(run: RunFolder, seed: int) -> bytes:
    """A checkpoint that holds about as many numbers as the result claims parameters.

    Raises:
        Refused: It is no checkpoint, or holds far more.
    """
    name, parameters = f"seed-{seed}/checkpoint.safetensors", run.result.architecture.parameters
    numbers = sum(run.weights(seed).values())
    if numbers > _MOST_NUMBERS + 8 * parameters:
        raise Refused(f"{name}: {numbers:,} numbers, and a model of {parameters:,} parameters")
    return run.folder.read(name, 8 * numbers + (1 << 20))


def weight_faults(
    run: RunFolder, seed: SeedRecord, again: Predictions, reference: Reference, by: str = ""
) -> Iterator[str]:
    """Where what the weights of a seed predict now for the test split is not what was stored, or scores otherwise."""
    mean, largest = _apart(again, run.predictions(seed.seed, reference))
    line = f"seed {seed.seed}: predicted again from its weights{by}: {largest:.2g} apart at most, {mean:.2g} on average"
    yield Note(line) if mean <= MEAN_TOLERANCE and largest <= LARGEST_TOLERANCE else line
    scores = score(reference.track.task, reference.test, again.batches())
    for metric, claimed in seed.scores.items():
        real = scores[metric].value
        if not abs(claimed.value - real) <= SCORE_TOLERANCE * max(1.0, abs(real)):
            yield f"seed {seed.seed}: {metric} is {claimed.value:.4f}, and that of the weights {real:.4f}"
