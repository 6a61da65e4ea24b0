"""Predicting again from a run's weights: whether the stored predictions are those of the stored model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from regbench.evaluation.predictions import Predictions
from regbench.leaderboard.case import Findings, Note
from regbench.leaderboard.examine import find_reference
from regbench.leaderboard.guard import Refused
from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.run_folder import RunFolder, read_predictions
from regbench.models.build import build
from regbench.models.model import Model, ModelPredictor
from regbench.results import ArchitectureRecord
from regbench.tasks.base import IO
from regbench.tracks import Track
from regbench.utils import registry

MEAN_TOLERANCE = 1e-3
LARGEST_TOLERANCE = 0.05
"""Of probabilities, or of vectors in units of their standard deviation: float16 and other kernels stay far below."""


def repredict(run: Path, findings: Findings, track: Track | None = None) -> None:
    """Adds what is found; asks for findings without a fault so far, as what is built here is bounded by what they compared.

    Only built-in architectures are built, from this repository's source.
    """
    try:
        findings.take("checkpoint", _compare(RunFolder(run), track))
    except Refused as error:
        findings.take("checkpoint", [str(error)])


def _compare(run: RunFolder, track: Track | None) -> Iterator[str]:
    record = run.result.architecture
    if not is_built_in(record):
        yield Note("only the weights of built-in architectures are loaded")
        return
    if registry.source_digest(registry.load(registry.ARCHITECTURE, record.name)) != record.source_sha256:
        yield Note(f"{record.source} has changed since, so the weights may mean something else")
        return
    reference = find_reference(run.result.track.name, track)
    for seed in run.result.seeds:
        model = _load(run, seed.seed, record, reference.track.task.io)
        again = Predictions.of(ModelPredictor(model, torch.device("cpu")), reference.test)
        stored = read_predictions(run.folder, f"seed-{seed.seed}/predictions.npz", reference)
        scale = float(stored.packed.std(dtype=np.float64)) if stored.of_vectors else 1.0
        apart = np.abs(again.packed.astype(np.float64) - stored.packed.astype(np.float64)) / scale
        how_far = f"{apart.max():.2g} apart at most, {apart.mean():.2g} on average"
        line = f"seed {seed.seed}: predicted again from its weights: {how_far}"
        yield Note(line) if apart.mean() <= MEAN_TOLERANCE and apart.max() <= LARGEST_TOLERANCE else line


def _load(run: RunFolder, seed: int, record: ArchitectureRecord, io: IO) -> Model:
    """The model with the weights of a seed.

    Raises:
        Refused: the checkpoint is not of this model.
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
