"""Instances: the packed arrays that a task makes and a predictor sees. Their fingerprint, batches and cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypedDict, overload

import numpy as np
from numpy.typing import NDArray

from regbench.utils.arrays import IntArray
from regbench.utils.files import cache_root, keep_arrays, kept_arrays


class Instance(TypedDict):
    """One sequence. A `DataLoader` of `Instances` puts such dictionaries into batches of the length L."""

    tokens: NDArray[Any]  # (L,) int64, padded on the right. Of vectors (L, D) float32
    targets: NDArray[Any]  # what is to be predicted, as the tokens
    scored: NDArray[np.bool_]  # (L,) bool, the positions that count
    length: int  # the number of real tokens


@dataclass(frozen=True, eq=False)  # arrays have no one truth value
class Instances:
    """N sequences, padded on the right to a common length L. `instances[0]` is one, `instances[:8]` are several."""

    tokens: NDArray[Any]  # (N, L) in the smallest unsigned integer type. Where a token is a vector, (N, L, D) float32.
    lengths: IntArray  # (N,) the number of real tokens of each instance. The rest of a row is padding.
    scored: np.ndarray[Any, np.dtype[np.bool_]]  # (N, L) bool, the positions that count
    generator: str  # name and version of the task that made them, e.g. "pfa/1"
    # the hidden values from which the task computes the true distributions, by name, each (N, ...). Instances may share
    # a problem, as queries share a prompt, or windows a document; see `problem`.
    truth: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    # the same, with a value for each position, each (N, L, ...)
    truth_at: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    # (N, L), the targets, where a task does not show them: in their place the tokens have a blank, and no predictor
    # ever sees them. None: the tokens are the targets.
    answers: NDArray[Any] | None = None

    @property
    def targets(self) -> NDArray[Any]:
        """What is to be predicted, of the shape of `tokens`."""
        return self.tokens if self.answers is None else self.answers

    @classmethod
    def unpadded(
        cls,
        tokens: NDArray[Any],
        scored: np.ndarray[Any, np.dtype[np.bool_]],
        generator: str,
        truth: Mapping[str, np.ndarray[Any, Any]],
    ) -> Self:
        """Instances that all have the length L. Arguments are as in the attributes."""
        return cls(tokens, np.full(len(tokens), tokens.shape[1], np.int32), scored, generator, truth)

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, rows: int) -> Instance: ...

    @overload
    def __getitem__(self, rows: slice | IntArray) -> Self: ...

    def __getitem__(self, rows: int | slice | IntArray) -> Instance | Self:
        """The chosen instances, without the padding that all of them share. For one number, that instance.

        Raises:
            IndexError: There is no such instance.
        """
        if isinstance(rows, int | np.integer):
            kind = np.float32 if self.tokens.ndim == 3 else np.int64  # types that PyTorch has
            tokens = self.tokens[rows].astype(kind)
            scored, length = self.scored[rows].copy(), int(self.lengths[rows])
            return {"tokens": tokens, "targets": self.targets[rows].astype(kind), "scored": scored, "length": length}
        lengths = self.lengths[rows]
        longest = int(lengths.max(initial=0))
        return replace(
            self,
            tokens=self.tokens[rows][:, :longest],
            answers=None if self.answers is None else self.answers[rows][:, :longest],
            lengths=lengths,
            scored=self.scored[rows][:, :longest],
            truth={k: v[rows] for k, v in self.truth.items()},
            truth_at={k: v[rows][:, :longest] for k, v in self.truth_at.items()},
        )

    @property
    def problem(self) -> IntArray | None:
        """The problem of each instance, (N,), counted from 0. None: each instance is a problem of its own.

        `truth["problem"]` numbers the problems, or else `truth["document"]`, if an instance is of one document. Instances of one
        problem do not vary by themselves. So standard errors are over problems.

        An instance of `text_mixture` is of two documents and shares each with other instances. So the instances do not divide
        into problems. Errors there are over instances, and they are too small. Problems of `classification` share documents in
        the same way, so errors over them are too small, too.
        """
        for name in ("problem", "document"):
            if (named := self.truth.get(name)) is not None and named.ndim == 1:
                return np.unique(named, return_inverse=True)[1]
        return None

    def units(self, row: NDArray[np.integer]) -> NDArray[np.integer]:
        """What standard errors are over, for each of some instances: their problem, or else the instance. (S,) -> (S,)."""
        problem = self.problem
        return row if problem is None else problem[row]

    @property
    def n_tokens(self) -> int:
        """The number of real tokens. Padding does not count."""
        return int(self.lengths.sum())

    def as_bytes(self) -> list[bytes]:
        """The real tokens of each instance as bytes, which are equal where the tokens are."""
        return [row[:length].tobytes() for row, length in zip(self.tokens, self.lengths, strict=True)]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of tokens, lengths, scored, answers and generator, in little-endian bytes."""
        digest = hashlib.sha256(self.generator.encode())
        for array in (self.tokens, self.lengths, self.scored, *([] if self.answers is None else [self.answers])):
            little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
            digest.update(f"{little.dtype.name}{little.shape}".encode())
            digest.update(little.tobytes())
        return digest.hexdigest()


def length_bucketed_batches(lengths: IntArray, batch_size: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Yields the row indices of one epoch's batches, in random order. The instances of a batch have similar lengths.

    Instances are shuffled, sorted by length within pools of 8 batches, and cut into batches. So batches have little padding, and
    still differ from epoch to epoch. One batch of an epoch may be smaller.
    """
    order = rng.permutation(len(lengths))
    pool = 8 * batch_size
    batches: list[IntArray] = []
    for start in range(0, len(order), pool):
        chunk = order[start : start + pool]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += [chunk[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    for i in rng.permutation(len(batches)):
        yield batches[i]


def cached(config: Mapping[str, Any], make: Callable[[], Instances]) -> Instances:
    """Takes instances from the cache, or makes and keeps them. A file that cannot be read is made again.

    The whole of `config` is the key: everything that decides the bytes.
    """
    key = hashlib.sha256(json.dumps(config, sort_keys=True, allow_nan=False).encode()).hexdigest()
    path = cache_root() / "instances" / f"{key}.npz"
    found = _read(path)
    if found is not None:
        return found
    instances = make()
    keep_arrays(path, _arrays(instances))
    return instances


def _arrays(instances: Instances) -> dict[str, Any]:
    return {
        "tokens": instances.tokens,
        "lengths": instances.lengths,
        "scored": instances.scored,
        **({} if instances.answers is None else {"answers": instances.answers}),
        "generator": np.array(instances.generator),
        **{f"truth.{k}": v for k, v in instances.truth.items()},
        **{f"truth_at.{k}": v for k, v in instances.truth_at.items()},
    }


def _read(path: Path) -> Instances | None:
    """The instances of a file; None if it is missing or damaged."""
    try:
        arrays = kept_arrays(path)
        truth, truth_at = (
            {k.removeprefix(group): v for k, v in arrays.items() if k.startswith(group)}
            for group in ("truth.", "truth_at.")
        )
        made = (arrays["tokens"], arrays["lengths"], arrays["scored"], str(arrays["generator"]))
    except (OSError, ValueError, KeyError):
        return None
    return Instances(*made, truth, truth_at, arrays.get("answers"))
