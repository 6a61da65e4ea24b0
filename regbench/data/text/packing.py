"""Tokens of many documents, packed into shards on disk: written as they are made, so that a killed tokenisation goes on.

A shard is a run of documents with about a mebibyte of text. One that is missing, damaged or of another encoding is made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.utils.arrays import IntArray
from regbench.utils.files import atomic_write, read_arrays

SHARD_SIZE = 1 << 20
"""Characters of text after which a shard ends."""

Encode = Callable[[Sequence[str]], Sequence[NDArray[Any]]]


@dataclass(frozen=True)
class Packed:
    """Tokens of D documents, one after the other: document d is tokens[starts[d] : starts[d + 1]].

    made: how many shards had to be tokenised; the others were there.
    """

    tokens: NDArray[Any]
    starts: IntArray
    made: int

    def __len__(self) -> int:
        return len(self.starts) - 1


def plan(sizes: IntArray, shard_size: int = SHARD_SIZE) -> list[tuple[int, int]]:
    """Cuts documents of these sizes (D,) into runs (first, end), each ended by the document that fills it."""
    shards = []
    first = filled = 0
    for document, size in enumerate(sizes.tolist()):
        filled += size
        if filled >= shard_size:
            shards.append((first, document + 1))
            first, filled = document + 1, 0
    if first < len(sizes):
        shards.append((first, len(sizes)))
    return shards


def pack(
    folder: Path,
    stamp: str,
    shards: Sequence[tuple[int, int]],
    read: Callable[[NDArray[Any]], Iterator[str]],
    encode: Encode,
    advance: Callable[[int], None] = lambda _: None,
) -> Packed:
    """The tokens of all documents, from `folder` or made and kept there.

    stamp: what the tokens depend on besides the plan; shards with another are made again.  read: the texts of the documents with
    the numbers given, rising.  advance: told the documents done.  A folder that cannot be written is done without.
    """
    found = [_read(_path(folder, i), f"{stamp}/{first}/{end}", end - first) for i, (first, end) in enumerate(shards)]
    missing = [i for i, shard in enumerate(found) if shard is None]
    advance(sum(end - first for i, (first, end) in enumerate(shards) if found[i] is not None))
    wanted = np.array([d for i in missing for d in range(*shards[i])], np.int64)
    texts = read(wanted)
    for i in missing:
        first, end = shards[i]
        encoded = encode([next(texts) for _ in range(end - first)])
        shard = np.concatenate(encoded), np.array([len(one) for one in encoded], np.int64)
        _write(_path(folder, i), f"{stamp}/{first}/{end}", *shard)
        found[i] = shard
        advance(end - first)
    whole = [shard for shard in found if shard is not None]
    lengths = np.concatenate([lengths for _, lengths in whole])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Packed(np.concatenate([tokens for tokens, _ in whole]), starts, len(missing))


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.npz"


def _digest(stamp: str, tokens: NDArray[Any], lengths: IntArray) -> str:
    digest = hashlib.sha256(f"{stamp}/{tokens.dtype}".encode())
    digest.update(tokens.tobytes())
    digest.update(lengths.tobytes())
    return digest.hexdigest()


def _read(path: Path, stamp: str, documents: int) -> tuple[NDArray[Any], IntArray] | None:
    """A shard's tokens and lengths; None where it is not there, not whole, or not of this stamp."""
    try:
        arrays = read_arrays(path)
        tokens, lengths, digest = arrays["tokens"], arrays["lengths"], str(arrays["digest"])
    except (OSError, ValueError, KeyError):
        return None
    if len(lengths) != documents or digest != _digest(stamp, tokens, lengths):
        return None
    return tokens, lengths


def _write(path: Path, stamp: str, tokens: NDArray[Any], lengths: IntArray) -> None:
    try:
        with atomic_write(path, "wb") as file:
            np.savez(file, tokens=tokens, lengths=lengths, digest=np.array(_digest(stamp, tokens, lengths)))
    except OSError:
        pass  # a full or read-only cache costs time, never the run
