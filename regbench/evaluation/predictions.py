"""Predictions for every token of a split, as they are scored and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from regbench.data.instances import Instances
from regbench.metrics.metric import TokenPrediction
from regbench.metrics.scores import check_distributions
from regbench.models.predictor import Predictor, predict_in_batches, rows_at_once
from regbench.results import SeedRecord
from regbench.tasks.base import Task, VectorIO
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write
from regbench.utils.folder import Folder
from regbench.utils.guard import Refused

_PART_BYTES = 1 << 22
_CHECKED_BYTES = 1 << 18
_ROW_SUM_TOLERANCE = 2e-3
"""Of a row of float16 probabilities: each is rounded by up to one part in 2048."""
_BATCH_BYTES = 32 << 20
"""The most memory that a batch of unpacked predictions takes. Beside it scoring needs several arrays of this size."""


class _Stored:
    """Predictions as arrays, by the names of fields, and by the names that they have in a file."""

    names_in_file: ClassVar[dict[str, str]]

    @property
    def arrays(self) -> dict[str, Any]:
        return {name: getattr(self, field) for field, name in self.names_in_file.items()}

    @property
    def digest(self) -> str:
        """SHA-256 of the numbers that were predicted."""
        digest = hashlib.sha256()
        for name, array in self.arrays.items():
            if name != "lengths":
                rows = max(1, _PART_BYTES // max(1, array[:1].nbytes))
                for start in range(0, len(array), rows):
                    part = array[start : start + rows]
                    digest.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).view(np.uint8).data)
        return digest.hexdigest()

    def save(self, path: Path) -> str:
        with atomic_write(path, "wb") as file:
            np.savez_compressed(file, **self.arrays)
        return self.digest

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        return cls(**{field: arrays[name] for field, name in cls.names_in_file.items()})


@dataclass(frozen=True)
class Predictions(_Stored):
    """Predicted distributions of the real tokens, or predicted vectors.

    Scores are computed from these very numbers, so that whoever has the file gets the same scores to the last bit.
    """

    packed: NDArray[np.floating[Any]]
    """(T, V), a row for each real token, instance after instance; of vectors (T, D_out). A trained model's distributions are
    float16 and its vectors float32. A baseline's predictions are float64.
    """
    lengths: NDArray[np.integer[Any]]
    """(N,), tokens of each instance."""

    names_in_file: ClassVar = {"packed": "packed", "lengths": "lengths"}

    @classmethod
    def pack(
        cls, batches: Iterable[FloatArray], instances: Instances, kind: DTypeLike, order: IntArray | None = None
    ) -> Self:
        """Packs consecutive batches (B, L, V) of predictions for the instances, as numbers of the given kind.

        `order` (N,) are the instances that the batches are of, if these are in another order.
        """
        ends, packed = np.cumsum(instances.lengths), np.empty((0, 0), kind)
        each = (row for batch in batches for row in batch)
        for i, row in zip(range(len(ends)) if order is None else order, each, strict=True):
            if not len(packed):  # all at once: a list of rows and what they are joined to would be twice as much
                packed = np.empty((int(ends[-1]), row.shape[-1]), kind)
            packed[ends[i] - instances.lengths[i] : ends[i]] = row[: instances.lengths[i]]
        return cls(packed, instances.lengths)

    def batches(self, batch_size: int | None = None, at: NDArray[np.bool_] | None = None) -> Iterator[FloatArray]:
        """Unpacks (B, L, V) float64 batches in order, or (B, L, D_out), each cut to its longest instance.

        Rows of float16 are divided by their sum. Padding is uniform.

        Args:
            batch_size: How many instances are unpacked at once; by default 64, or fewer where these take much memory.
            at: (N, L), the positions that are unpacked; by default all. The others are as padding.
        """
        ends = np.cumsum(self.lengths)
        width = self.packed.shape[1]
        if batch_size is None:
            batch_size = scored_at_once(int(self.lengths.max(initial=1)), width)
        for start in range(0, len(self.lengths), batch_size):
            lengths = self.lengths[start : start + batch_size]
            batch = np.empty((len(lengths), int(lengths.max()), width))
            for i, length in enumerate(lengths):
                rows = self.packed[ends[start + i] - length : ends[start + i]]
                wanted = slice(length) if at is None else np.flatnonzero(at[start + i, :length])
                if at is not None:
                    batch[i] = 1.0 / width
                unpacked = rows[wanted].astype(np.float64)
                if self.packed.dtype == np.float16:
                    unpacked /= unpacked.sum(-1, keepdims=True)
                batch[i, wanted] = unpacked
                batch[i, length:] = 1.0 / width
            yield batch

    @property
    def fault(self) -> str | None:
        """What is wrong with a row, if anything: it is not finite, or it is no distribution."""
        import torch  # it loads slowly

        rows, largest = max(1, _CHECKED_BYTES // max(1, self.packed[:1].nbytes)), 0.0
        for start in range(0, len(self.packed), rows):
            # PyTorch turns float16 into float32 in a third of NumPy's time.
            part = torch.from_numpy(self.packed[start : start + rows]).float().numpy()
            with np.errstate(all="ignore"):
                sums = part.sum(1)  # not finite if anything in the row is not
            if not np.isfinite(part if self.of_vectors else sums).all():
                return "NaN or infinity among the predictions"
            if self.of_vectors:
                continue
            if part.min(initial=0.0) < 0:
                return "negative probabilities"
            largest = max(largest, float(np.abs(sums - 1.0).max()))
        return None if largest <= _ROW_SUM_TOLERANCE else f"a row of probabilities is off 1 by {largest:.3g}"

    @property
    def of_vectors(self) -> bool:
        """Whether these are a trained model's vectors, and not its distributions over tokens."""
        return self.packed.dtype == np.float32

    def fits(self, instances: Instances, width: int) -> bool:
        """Whether these can be predictions for these instances, of the given width V or D_out."""
        return self.packed.shape == (instances.n_tokens, width) and np.array_equal(self.lengths, instances.lengths)


@dataclass(frozen=True)
class CompactPredictions(_Stored):
    """Of each real token the probability that it was given, and the most likely token.

    Tasks that do not know their truth need no more for their scores. A trained model's scores are computed from these very
    numbers.
    """

    probability: NDArray[np.floating[Any]]
    """(T,), instance after instance; float32 of a trained model, float64 of a baseline."""
    most_likely: NDArray[np.int32]
    lengths: NDArray[np.integer[Any]]
    """(N,), tokens of each instance."""

    names_in_file: ClassVar = {"probability": "given", "most_likely": "best", "lengths": "lengths"}

    @classmethod
    def pack(cls, batches: Iterable[FloatArray], instances: Instances, kind: DTypeLike, vocab_size: int) -> Self:
        """Packs consecutive batches (B, L, V) of predictions for the instances, with probabilities of the given kind."""
        probability, most_likely, start = [], [], 0
        for batch in batches:
            some = instances[start : start + len(batch)]
            check_distributions(batch, (*some.tokens.shape, vocab_size))
            prediction = TokenPrediction.of(batch, some.targets)
            real = np.arange(some.tokens.shape[1]) < some.lengths[:, None]
            probability.append(prediction.probability[real].astype(kind))
            most_likely.append(prediction.most_likely[real].astype(np.int32))
            start += len(batch)
        return cls(np.concatenate(probability), np.concatenate(most_likely), instances.lengths)

    def batches(self, batch_size: int = 64, at: NDArray[np.bool_] | None = None) -> Iterator[TokenPrediction]:
        """Unpacks batches of (B, L) float64 and int32, each cut to its longest instance. Padding is token 0, certain.

        Args:
            batch_size: How many instances are unpacked at once.
            at: (N, L), the positions that are unpacked; by default all. The others are as padding.
        """
        ends = np.cumsum(self.lengths)
        for start in range(0, len(self.lengths), batch_size):
            lengths = self.lengths[start : start + batch_size]
            real = np.arange(int(lengths.max())) < lengths[:, None]
            rows = slice(int(ends[start] - lengths[0]), int(ends[start + len(lengths) - 1]))
            probability, most_likely = np.ones(real.shape), np.zeros(real.shape, np.int32)
            probability[real], most_likely[real] = self.probability[rows], self.most_likely[rows]
            if at is not None:
                other = ~at[start : start + len(lengths), : real.shape[1]]
                probability[other], most_likely[other] = 1.0, 0
            yield TokenPrediction(probability, most_likely)

    @property
    def fault(self) -> str | None:
        """What is wrong with a number, if anything: it is no probability."""
        inside = (self.probability >= 0) & (self.probability <= 1 + 1e-3)  # a NaN is neither
        return None if inside.all() else "numbers that are no probabilities"

    def fits(self, instances: Instances, width: int) -> bool:
        """Whether these can be predictions for these instances, over a vocabulary of the given width V."""
        token = self.most_likely
        whole = self.probability.shape == token.shape == (instances.n_tokens,)
        inside = whole and (not token.size or (int(token.min()) >= 0 and int(token.max()) < width))
        return inside and np.array_equal(self.lengths, instances.lengths)


StoredPredictions = Predictions | CompactPredictions


def scored_at_once(length: int, width: int) -> int:
    """How many instances of a length are unpacked and scored at once: 64, or fewer where V or D_out is large."""
    return max(1, min(64, _BATCH_BYTES // (8 * length * width)))


def predict(task: Task, predictor: Predictor, instances: Instances) -> StoredPredictions:
    """Asks a trained model for its predictions, in the form that the task's scores need."""
    batch_size = rows_at_once(task.io, instances.tokens.shape[1], 64)
    # The shortest first: a batch is as long as its longest instance.
    order = np.argsort(instances.lengths, kind="stable") if task.knows_truth else None
    some = instances if order is None else instances[order]
    return store(task, predict_in_batches(predictor, some, batch_size), instances, order=order)


def store(
    task: Task,
    batches: Iterable[FloatArray],
    instances: Instances,
    kind: DTypeLike | None = None,
    order: IntArray | None = None,
) -> StoredPredictions:
    """Packs predictions in the form that the task's scores need.

    The numbers are those of a trained model's predictions where `kind` is None. `order` is as in `Predictions.pack`.
    """
    if not task.knows_truth:
        return CompactPredictions.pack(batches, instances, kind or np.float32, task.io.vocab_size)
    kind = kind or (np.float32 if isinstance(task.io, VectorIO) else np.float16)
    return Predictions.pack(batches, instances, kind, order)


def expected_arrays(task: Task, instances: Instances) -> dict[str, NDArray[Any]]:
    """Arrays of the types and shapes that a trained model's stored predictions have, by their names in the file.

    Those that are predicted take no memory.
    """
    tokens, io = instances.n_tokens, task.io
    predicted: dict[str, tuple[tuple[int, ...], type[np.generic]]]
    if isinstance(io, VectorIO):
        predicted = {"packed": ((tokens, io.d_out), np.float32)}
    elif task.knows_truth:
        predicted = {"packed": ((tokens, io.vocab_size), np.float16)}
    else:
        predicted = {"given": ((tokens,), np.float32), "best": ((tokens,), np.int32)}
    arrays: dict[str, NDArray[Any]] = {
        name: np.broadcast_to(np.zeros((), kind), shape) for name, (shape, kind) in predicted.items()
    }
    return {**arrays, "lengths": instances.lengths}


def read_stored(folder: Folder, name: str, task: Task, instances: Instances) -> StoredPredictions:
    """Reads a file of predictions, which may be a stranger's: within bounds, and no link is followed. Every row is checked."""
    arrays = folder.arrays(name, expected_arrays(task, instances))
    if not np.array_equal(arrays["lengths"], instances.lengths):
        raise Refused(f"{name}: its lengths are not those of the instances")
    kind: type[StoredPredictions] = Predictions if task.knows_truth else CompactPredictions
    stored = kind.from_arrays(arrays)
    fault = stored.fault
    if fault is None and not stored.fits(instances, task.io.width):
        fault = "a most likely token is outside the vocabulary"
    if fault is not None:
        raise Refused(f"{name}: {fault}")
    return stored


def read_predictions(run: Path, seed: int, task: Task, instances: Instances) -> StoredPredictions:
    """Reads a seed's predictions from a run folder, as `read_stored` does."""
    name = f"seed-{seed}/predictions.npz"
    try:
        return read_stored(Folder(run), name, task, instances)
    except Refused as error:
        raise Refused(f"cannot read predictions from {run / name}: {str(error).removeprefix(f'{name}: ')}") from None


def read_scored(run: Path, seed: SeedRecord, task: Task, instances: Instances) -> StoredPredictions:
    """Reads the predictions from which the scores of a seed in `result.json` were computed."""
    found = read_predictions(run, seed.seed, task, instances)
    if found.digest != seed.predictions_sha256:
        raise UserError(f"{run}: the stored predictions of seed {seed.seed} are not those that result.json scored")
    return found
