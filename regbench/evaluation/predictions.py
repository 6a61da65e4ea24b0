"""What a predictor said of every token of a split, as it is scored and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.metrics.batching import predict_in_batches, rows_at_once
from regbench.metrics.metric import TokenPrediction
from regbench.metrics.scores import check_distributions
from regbench.models.predictor import Predictor
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, read_arrays

Prepare = Callable[[NDArray[Any]], FloatArray]


def padded_batches(
    packed: NDArray[Any], lengths: NDArray[np.integer[Any]], batch_size: int, prepare: Prepare
) -> Iterator[FloatArray]:
    """Rows (T, V) of real tokens, instance after instance, as (B, L, V) float64 batches, each cut to its longest instance.

    prepare: what is done to an instance's rows, (length, V).  Padding is uniform.
    """
    ends = np.cumsum(lengths)
    width = packed.shape[1]
    for start in range(0, len(lengths), batch_size):
        some = lengths[start : start + batch_size]
        batch = np.full((len(some), int(some.max()), width), 1.0 / width)
        for i, length in enumerate(some):
            end = ends[start + i]
            batch[i, :length] = prepare(packed[end - length : end])
        yield batch


def brief_of_real(predicted: FloatArray, instances: Instances, vocab_size: int) -> tuple[FloatArray, IntArray]:
    """Of distributions (B, L, V) what `TokenPrediction` has of each real token, instance after instance.

    Raises:
        UserError: they are not distributions, or not of these instances.
    """
    check_distributions(predicted, (*instances.tokens.shape, vocab_size))
    brief = TokenPrediction.of(predicted, instances.tokens)
    real = np.arange(instances.tokens.shape[1]) < instances.lengths[:, None]
    return brief.probability[real], brief.most_likely[real].astype(np.int32)


@dataclass(frozen=True)
class Predictions:
    """Predicted distributions of real tokens only: (T, V) float16, instance after instance. Of vectors: (T, D_out) float32.

    Scores are computed from these very numbers, so that whoever has the file gets the same scores to the last bit.
    """

    packed: NDArray[np.float16] | NDArray[np.float32]
    lengths: NDArray[np.integer[Any]]

    @classmethod
    def of(cls, predictor: Predictor, instances: Instances, batch_size: int = 64) -> Predictions:
        """What `predictor` says of every position of `instances`."""
        parts = []
        lengths = iter(instances.lengths)
        kind = np.float32 if instances.tokens.ndim == 3 else np.float16
        for batch in predict_in_batches(predictor, instances, batch_size):
            for row in batch:
                parts.append(row[: next(lengths)].astype(kind))
        return cls(np.concatenate(parts), instances.lengths)

    def batches(self, batch_size: int = 64) -> Iterator[FloatArray]:
        """(B, L, V) float64 batches whose rows sum to 1; padding is uniform. Of vectors (B, L, D_out), as they are."""

        def prepare(rows: NDArray[Any]) -> FloatArray:
            rows = rows.astype(np.float64)
            return rows if self.of_vectors else rows / rows.sum(-1, keepdims=True)

        return padded_batches(self.packed, self.lengths, batch_size, prepare)

    @property
    def of_vectors(self) -> bool:
        """Whether these are vectors, and not distributions over tokens."""
        return self.packed.dtype == np.float32

    def fits(self, instances: Instances, width: int) -> bool:
        """Whether these can be predictions of these instances. width: V, or D_out."""
        return self.packed.shape == (instances.n_tokens, width) and np.array_equal(self.lengths, instances.lengths)

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
        UserError: the file cannot be read as whole predictions.
        """
        arrays = _arrays(path)
        if "packed" not in arrays and "given" in arrays:
            raise UserError(
                f"{path} holds no whole distributions: of each token its probability, and the most likely one"
            )
        return cls(*_chosen(arrays, path, "packed", "lengths"))


@dataclass(frozen=True)
class CompactPredictions:
    """Of each real token the probability it was given, and the most likely token: (T,) each, instance after instance.

    For tasks that do not know their truth, whose scores need no more. A trained model's are float32 and int32: its scores are
    computed from these very numbers.
    """

    probability: NDArray[np.floating[Any]]
    most_likely: NDArray[np.int32]
    lengths: NDArray[np.integer[Any]]

    @classmethod
    def of(
        cls, predictor: Predictor, instances: Instances, vocab_size: int, batch_size: int = 64
    ) -> CompactPredictions:
        """What `predictor` says of every position of `instances`.

        Raises:
            UserError: that is not distributions over `vocab_size` tokens.
        """
        given, best, start = [], [], 0
        for batch in predict_in_batches(predictor, instances, batch_size):
            of_batch = brief_of_real(batch, instances[start : start + len(batch)], vocab_size)
            given.append(of_batch[0].astype(np.float32))
            best.append(of_batch[1])
            start += len(batch)
        return cls(np.concatenate(given), np.concatenate(best), instances.lengths)

    def batches(self, batch_size: int = 64) -> Iterator[TokenPrediction]:
        """Batches of (B, L) float64 and int32; padding is token 0, certain."""
        ends = np.cumsum(self.lengths)
        for start in range(0, len(self.lengths), batch_size):
            lengths = self.lengths[start : start + batch_size]
            inside = np.arange(int(lengths.max())) < lengths[:, None]
            rows = slice(int(ends[start] - lengths[0]), int(ends[start + len(lengths) - 1]))
            given, best = np.ones(inside.shape), np.zeros(inside.shape, np.int32)
            given[inside], best[inside] = self.probability[rows], self.most_likely[rows]
            yield TokenPrediction(given, best)

    def fits(self, instances: Instances, width: int) -> bool:
        """Whether these can be predictions of these instances. width: V."""
        best = self.most_likely
        whole = self.probability.shape == best.shape == (instances.n_tokens,)
        inside = whole and (not best.size or (int(best.min()) >= 0 and int(best.max()) < width))
        return inside and np.array_equal(self.lengths, instances.lengths)

    def save(self, path: Path) -> str:
        """Writes the file and returns the SHA-256 of the numbers in it."""
        with atomic_write(path, "wb") as file:
            np.savez_compressed(file, given=self.probability, best=self.most_likely, lengths=self.lengths)
        return self.digest

    @property
    def digest(self) -> str:
        content = self.probability.astype("<f4").tobytes() + self.most_likely.astype("<i4").tobytes()
        return hashlib.sha256(content).hexdigest()

    @classmethod
    def read(cls, path: Path) -> CompactPredictions:
        """Raises:
        UserError: the file cannot be read as brief predictions.
        """
        return cls(*_chosen(_arrays(path), path, "given", "best", "lengths"))


StoredPredictions = Predictions | CompactPredictions


def keep(task: Task, predictor: Predictor, instances: Instances) -> StoredPredictions:
    """What `predictor` says of every position, in the form that the task's scores need.

    Raises:
        UserError: the task does not know its truth, and that is not distributions; others are checked when they are scored.
    """
    batch_size = rows_at_once(task.io, instances.tokens.shape[1], 64)
    if task.knows_truth:
        return Predictions.of(predictor, instances, batch_size)
    return CompactPredictions.of(predictor, instances, task.io.vocab_size, batch_size)


def read_predictions(path: Path, task: Task) -> StoredPredictions:
    """The predictions in a file, in the form that `keep` has for the task.

    Raises:
        UserError: the file cannot be read as such.
    """
    return (Predictions if task.knows_truth else CompactPredictions).read(path)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError(f"cannot read predictions from {path}: {reason}") from None


def _chosen(arrays: dict[str, NDArray[Any]], path: Path, *names: str) -> list[NDArray[Any]]:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise UserError(f"cannot read predictions from {path}: it holds no '{missing[0]}'")
    return [arrays[name] for name in names]
