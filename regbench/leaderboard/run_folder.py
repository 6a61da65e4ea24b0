"""A run folder or published predictions, read as someone else's files: see `guard`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.config import Config
from regbench.evaluation.predictions import Predictions
from regbench.leaderboard.guard import (
    YAML_BYTES,
    Folder,
    Refused,
    describe_schema,
    parse_arrays,
    parse_json,
    tensor_sizes,
)
from regbench.leaderboard.recipe import Recipe, parse_config
from regbench.leaderboard.reference import Reference
from regbench.metrics.scores import Scores, score
from regbench.results import Result, SeedRecord
from regbench.tasks.base import VectorIO
from regbench.utils.errors import UserError

RESULT_BYTES = 4 << 20
LOG_BYTES = 4 << 20
LOG_ROWS = 20_000
_HEADER_BYTES = 1 << 20
_ROW_SUM_TOLERANCE = 2e-3
"""Of a row of float16 probabilities: each is rounded by up to one part in 2048."""


@dataclass(frozen=True)
class Scored:
    """Stored predictions: the SHA-256 of the numbers, and the scores that they have."""

    digest: str
    scores: Scores


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The files of one run. Every property is read when it is first asked for, and raises `Refused` where it cannot be."""

    path: Path

    @property
    def folder(self) -> Folder:
        return Folder(self.path)

    @cached_property
    def result(self) -> Result:
        return parse_result(self.folder.read("result.json", RESULT_BYTES), "result.json")

    @cached_property
    def config(self) -> Config:
        return parse_config(self.folder.read("config.yaml", YAML_BYTES), "config.yaml")

    @property
    def recipe(self) -> Recipe:
        """What was asked for. A track given as a file is called what the result calls it."""
        track = self.config.track
        return Recipe.of(self.config, self.result.track.name if track.endswith((".yaml", ".yml")) else track)

    def seed_record(self, seed: int) -> SeedRecord:
        name = f"seed-{seed}/scores.json"
        try:
            return SeedRecord.model_validate(parse_json(self.folder.read(name, RESULT_BYTES), name))
        except pydantic.ValidationError as error:
            raise describe_schema(error, name, SeedRecord.model_fields) from None

    def evaluations(self, seed: int) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl` at which the validation split was scored."""
        name = f"seed-{seed}/metrics.jsonl"
        lines = self.folder.read(name, LOG_BYTES).splitlines()
        if len(lines) > LOG_ROWS:
            raise Refused(f"{name}: {len(lines):,} rows, more than the {LOG_ROWS:,} it can need")
        rows = [parse_json(line, name) for line in lines]
        if not all(isinstance(row, dict) for row in rows):
            raise Refused(f"{name}: a row is no object")
        return [row for row in rows if "validation_loss" in row]

    def weights(self, seed: int) -> dict[str, int]:
        """The number of elements of each tensor of the checkpoint, from its header alone."""
        name = f"seed-{seed}/checkpoint.safetensors"
        head, size = self.folder.head(name, _HEADER_BYTES)
        return tensor_sizes(head, size, name)[0]

    def scored(self, seed: int, reference: Reference) -> Scored:
        return read_scored(self.folder, f"seed-{seed}/predictions.npz", reference)


def read_scored(folder: Folder, name: str, reference: Reference) -> Scored:
    """Stored predictions and their scores.

    Raises:
        Refused: the file is not predictions of the reference's test split.
    """
    predictions = read_predictions(folder, name, reference)
    try:
        scores = score(reference.track.task, reference.test, predictions.batches())
    except UserError as error:
        raise Refused(f"{name}: {error}") from None
    return Scored(predictions.digest, scores)


def read_predictions(folder: Folder, name: str, reference: Reference) -> Predictions:
    """The numbers themselves.

    Raises:
        Refused: the file is not predictions of the reference's test split.
    """
    expected = {"packed": reference.packed, "lengths": reference.test.lengths}
    size = sum(array.nbytes for array in expected.values())
    arrays = parse_arrays(folder.read(name, size + size // 64 + (1 << 16)), expected, name)
    if not np.array_equal(arrays["lengths"], reference.test.lengths):
        raise Refused(f"{name}: the lengths are not those of the test split")
    fault = _row_fault(arrays["packed"], isinstance(reference.track.task.io, VectorIO))
    if fault:
        raise Refused(f"{name}: {fault}")
    return Predictions(arrays["packed"], reference.test.lengths)


def parse_result(content: bytes, name: str) -> Result:
    """A result from the bytes of its file.

    Raises:
        Refused: it is not of the schema, or beyond the bounds of `guard`.
    """
    try:
        return Result.model_validate(parse_json(content, name))
    except pydantic.ValidationError as error:
        raise describe_schema(error, name, Result.model_fields) from None


def _row_fault(packed: NDArray[Any], vectors: bool) -> str | None:
    if not np.isfinite(packed).all():
        return "NaN or infinity among the predictions"
    if vectors:
        return None
    if (packed < 0).any():
        return "negative probabilities"
    off = np.abs(packed.sum(1, dtype=np.float64) - 1.0).max()
    return None if off <= _ROW_SUM_TOLERANCE else f"a row of probabilities is off 1 by {off:.3g}"
