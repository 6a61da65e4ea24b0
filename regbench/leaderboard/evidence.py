"""Checks against what a run left: its logs, its weights and above all its predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from regbench.evaluation.predictions import Predictions
from regbench.leaderboard.case import Case, Check, Findings, Note, RunFolder, read_predictions
from regbench.leaderboard.entry import InstanceScores
from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.reference import Reference, find_reference
from regbench.metrics.scores import score, score_records
from regbench.models.backbone import build
from regbench.models.model import Model, ModelPredictor
from regbench.models.predictor import predict_in_batches
from regbench.results import ArchitectureRecord, Curve, SeedRecord
from regbench.tasks.base import IO
from regbench.tracks import Track
from regbench.training.progress import MEASURED
from regbench.utils import registry
from regbench.utils.guard import Refused

MEAN_TOLERANCE = 1e-3
LARGEST_TOLERANCE = 0.05
"""Of probabilities, or of vectors in units of their standard deviation. Float16 and other kernels stay far below."""

SCORE_TOLERANCE = 2e-3
"""Between a claimed score and that of what the weights predict now: absolute, of scores above 1 relative."""

_EXACT = 1e-9
"""Relative, of figures computed twice from the same numbers: only the order of a sum may differ."""


def predictions(case: Case) -> Iterator[str]:
    """Scores, standard errors, curves and instance scores are computed again from the stored predictions."""
    if case.scored is None:
        return
    for seed, one in zip(case.result.seeds, case.scored, strict=True):
        if one.digest != seed.predictions_sha256:
            yield f"seed {seed.seed}: the predictions are not those that were scored: their SHA-256 is {one.digest[:12]}"
        scores, curves = score_records(one.scores)
        for metric, record in scores.items():
            given = seed.scores[metric]
            for what, claimed, real in (
                (metric, given.value, record.value),
                (f"the standard error of {metric}", given.stderr, record.stderr),
            ):
                if not abs(claimed - real) <= _EXACT * max(1.0, abs(real)):
                    yield f"seed {seed.seed}: {what} is {claimed:.7g}, and the predictions give {real:.7g}"
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
    for seed in _recorded(case):
        assert case.run is not None
        try:
            if case.run.seed_record(seed.seed) != seed:
                yield f"seed-{seed.seed}/scores.json differs from the result"
            rows = [_row(row) for row in case.run.evaluations(seed.seed)]
        except Refused as error:
            yield str(error)
        else:
            if rows != [_row({**c.loss, **c.model_dump(exclude={"loss"})}) for c in seed.training_curve]:
                yield f"seed-{seed.seed}/metrics.jsonl has another training curve than the result"


def weights(case: Case) -> Iterator[str]:
    """The checkpoint of every seed holds as many parameters as are claimed."""
    for seed in _recorded(case):
        assert case.run is not None
        try:
            elements = sum(case.run.weights(seed.seed).values())
        except Refused as error:
            yield str(error)
        else:
            if elements < case.result.architecture.parameters:
                yield (
                    f"seed-{seed.seed}/checkpoint.safetensors holds {elements:,} numbers, fewer than the "
                    f"{case.result.architecture.parameters:,} parameters"
                )


CHECKS: tuple[Check, ...] = (logs, weights, predictions)


def repredict(run: Path, findings: Findings, track: Track | None = None) -> None:
    """Predicts again with a run's weights, compares with the stored predictions, and adds what is found.

    Only built-in architectures are built, from this repository's source.

    Args:
        run: The run folder.
        findings: What `verify` found before. It must hold no fault: the size of what is built here is bounded by its checks.
        track: A track of one's own, if the run is of that.
    """
    try:
        findings.take("checkpoint", _compare(RunFolder(run), track))
    except Refused as error:
        findings.take("checkpoint", [str(error)])


def _recorded(case: Case) -> list[SeedRecord]:
    """The seeds whose folders can be there."""
    return [] if case.run is None else [seed for seed in case.result.seeds if 0 <= seed.seed < 2**32]


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


def _compare(run: RunFolder, track: Track | None) -> Iterator[str]:
    record = run.result.architecture
    if not is_built_in(record):
        yield Note("only the weights of built-in architectures are loaded")
        return
    changed = registry.source_digest(registry.load(registry.ARCHITECTURE, record.name)) != record.source_sha256
    by = f" ({record.source} has changed since the run)" if changed else ""
    reference = find_reference(run.result.track.name, track)
    for seed in run.result.seeds:
        model = load_model(run, seed.seed, record, reference.track.task.io)
        stored = read_predictions(run.folder, f"seed-{seed.seed}/predictions.npz", reference)
        batches = predict_in_batches(ModelPredictor(model, torch.device("cpu")), reference.test)
        again = Predictions.pack(batches, reference.test, stored.packed.dtype)
        scale = float(stored.packed.std(dtype=np.float64)) if stored.of_vectors else 1.0
        apart = np.abs(again.packed.astype(np.float64) - stored.packed.astype(np.float64)) / scale
        how_far = f"{apart.max():.2g} apart at most, {apart.mean():.2g} on average"
        line = f"seed {seed.seed}: predicted again from its weights: {how_far}{by}"
        yield Note(line) if apart.mean() <= MEAN_TOLERANCE and apart.max() <= LARGEST_TOLERANCE else line
        yield from (f"{fault}{by}" for fault in score_faults(seed, again, reference))


def score_faults(seed: SeedRecord, again: Predictions, reference: Reference) -> Iterator[str]:
    """Where a claimed score is not that of what the weights of a seed predict now for the test split."""
    scores = score(reference.track.task, reference.test, again.batches())
    for metric, claimed in seed.scores.items():
        real = scores[metric].value
        if not abs(claimed.value - real) <= SCORE_TOLERANCE * max(1.0, abs(real)):
            yield f"seed {seed.seed}: {metric} is {claimed.value:.4f}, and that of the weights {real:.4f}"


def load_model(run: RunFolder, seed: int, record: ArchitectureRecord, io: IO) -> Model:
    """The model with the weights of a seed.

    Raises:
        Refused: The checkpoint is not of this model.
    """
    cls = registry.load(registry.ARCHITECTURE, record.name)
    options = cls.Options.model_validate_json(json.dumps(record.options))
    name = f"seed-{seed}/checkpoint.safetensors"
    with torch.device("meta"):
        shapes = {key: tensor.numel() for key, tensor in build(cls, options, io).state_dict().items()}
    if run.weights(seed) != shapes:
        raise Refused(f"{name}: not the weights of this architecture with these options")
    content = run.folder.read(name, 8 * sum(shapes.values()) + (1 << 20))
    tensors: dict[str, Tensor] = safetensors.torch.load(content)
    model = build(cls, options, io)
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise Refused(f"{name}: not the weights of this architecture with these options") from None
    return model
