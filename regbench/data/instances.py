"""Instances: the packed arrays every task makes and every predictor sees; their fingerprint, batches and cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regbench.utils.arrays import IntArray
from regbench.utils.cache import cache_root
from regbench.utils.files import atomic_write, read_arrays


def smallest_integer_type(largest: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds 0..largest."""
    return np.min_scalar_type(largest)


@dataclass(frozen=True)
class Instances:
    """N sequences, padded on the right to a common length L.

    tokens: (N, L) in the smallest unsigned type; where a token is a vector, (N, L, D) float32.  lengths: (N,) real tokens of
    each.  scored: (N, L) bool, the positions that count.  truth: what the task needs to say the true distributions, by name,
    each (N, ...); truth_at: the same, a value for each position, each (N, L, ...).  generator: name and version of the code
    that made them, e.g. "pfa/1".
    """

    tokens: NDArray[Any]
    lengths: IntArray
    scored: np.ndarray[Any, np.dtype[np.bool_]]
    generator: str
    truth: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    truth_at: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | IntArray) -> Self:
        """The chosen instances, cut to the longest of them."""
        lengths = self.lengths[rows]
        longest = int(lengths.max(initial=0))
        return replace(
            self,
            tokens=self.tokens[rows][:, :longest],
            lengths=lengths,
            scored=self.scored[rows][:, :longest],
            truth={k: v[rows] for k, v in self.truth.items()},
            truth_at={k: v[rows][:, :longest] for k, v in self.truth_at.items()},
        )

    @property
    def n_tokens(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.lengths.sum())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of tokens, lengths, scored and the generator's version; little-endian, so the same on any machine."""
        digest = hashlib.sha256(self.generator.encode())
        for array in (self.tokens, self.lengths, self.scored):
            little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
            digest.update(f"{little.dtype.name}{little.shape}".encode())
            digest.update(little.tobytes())
        return digest.hexdigest()


def length_bucketed_batches(lengths: IntArray, batch_size: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Row indices of one epoch's batches, each of `batch_size` instances of similar length, in random order.

    Instances are shuffled, sorted by length within pools of 8 batches, and cut; so little of a batch is padding,
    while which instances meet still changes from epoch to epoch. The last batch of an epoch may be smaller.
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
    """The instances of `config` from the cache, or made and kept.

    `config` must hold everything that decides the bytes: the whole of it is the key. A file that cannot be read, or whose
    content does not match its recorded fingerprint, is made again; a cache that cannot be written is done without.
    """
    key = hashlib.sha256(json.dumps(config, sort_keys=True, allow_nan=False).encode()).hexdigest()
    path = cache_root() / "instances" / f"{key}.npz"
    found = _read(path)
    if found is not None:
        return found
    instances = make()
    try:
        with atomic_write(path, "wb") as file:
            np.savez_compressed(file, **_arrays(instances))
    except OSError:
        pass  # a full or read-only cache costs time, never the run
    return instances


def _arrays(instances: Instances) -> dict[str, Any]:
    return {
        "tokens": instances.tokens,
        "lengths": instances.lengths,
        "scored": instances.scored,
        "generator": np.array(instances.generator),
        "fingerprint": np.array(instances.fingerprint),
        **{f"truth.{k}": v for k, v in instances.truth.items()},
        **{f"truth_at.{k}": v for k, v in instances.truth_at.items()},
    }


def _read(path: Path) -> Instances | None:
    try:
        arrays = read_arrays(path)
    except (OSError, ValueError):
        return None
    truths = {
        group: {k.removeprefix(group + "."): v for k, v in arrays.items() if k.startswith(group + ".")}
        for group in ("truth", "truth_at")
    }
    try:
        instances = Instances(arrays["tokens"], arrays["lengths"], arrays["scored"], str(arrays["generator"]), **truths)
        intact = instances.fingerprint == str(arrays["fingerprint"])
    except KeyError:
        return None
    return instances if intact else None
