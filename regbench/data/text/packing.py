"""Tokens of many documents, packed into shards on disk. A tokenisation that was interrupted goes on where it stopped.

A shard holds consecutive documents with about one mebibyte of text. A shard that is missing, damaged or of another encoding is
made again.
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
from regbench.utils.files import keep, read_arrays

SHARD_SIZE = 1 << 20
"""Characters of text after which a shard ends."""

Encode = Callable[[Sequence[str]], Sequence[NDArray[Any]]]


@dataclass(frozen=True)
class Packed:
    """Tokens of D documents, one after the other. Document d is `tokens[starts[d] : starts[d + 1]]`.

    Attributes:
        tokens: (T,) all tokens.
        starts: (D + 1,) where each document begins, and the end of the last.
        made: The number of shards that were tokenised now. The others were on disk.
    """

    tokens: NDArray[Any]
    starts: IntArray
    made: int

    def __len__(self) -> int:
        return len(self.starts) - 1


def plan(sizes: IntArray, shard_size: int = SHARD_SIZE) -> list[tuple[int, int]]:
    """Divides documents into shards.

    Args:
        sizes: (D,) characters of each document.
        shard_size: A shard ends with the document that brings it to so many characters.

    Returns:
        (first, end) of each shard: the number of its first document, and the number after its last.
    """
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
    """The tokens of all documents. Shards that are not in the folder are made and kept there.

    Args:
        folder: The folder of the shards. If it cannot be written, nothing is kept.
        stamp: What the tokens depend on besides the plan. Shards with another stamp are made again.
        shards: What `plan` returned.
        read: Gives the texts of documents, whose numbers it gets in rising order.
        encode: Gives the tokens of each text.
        advance: Is told the number of documents that are done.
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
    """SHA-256 of a shard's content and of its stamp."""
    digest = hashlib.sha256(f"{stamp}/{tokens.dtype}".encode())
    digest.update(tokens.tobytes())
    digest.update(lengths.tobytes())
    return digest.hexdigest()


def _read(path: Path, stamp: str, documents: int) -> tuple[NDArray[Any], IntArray] | None:
    """A shard's tokens and lengths; None if it is missing, damaged or of another stamp."""
    try:
        arrays = read_arrays(path)
        tokens, lengths, digest = arrays["tokens"], arrays["lengths"], str(arrays["digest"])
    except (OSError, ValueError, KeyError):
        return None
    if len(lengths) != documents or digest != _digest(stamp, tokens, lengths):
        return None
    return tokens, lengths


def _write(path: Path, stamp: str, tokens: NDArray[Any], lengths: IntArray) -> None:
    """Keeps a shard."""
    digest = np.array(_digest(stamp, tokens, lengths))
    keep(path, lambda file: np.savez(file, tokens=tokens, lengths=lengths, digest=digest), "wb")
