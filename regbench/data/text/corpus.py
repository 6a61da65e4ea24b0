"""A corpus: the documents of a source in three splits, an encoding learned from the training split, and all tokens.

Encoding and tokens are kept in the folder `text/<digest>/` of the cache. The digest is that of the text, so an edited file or
another Python has its own folder. Damaged files are made again. Processes that make the same corpus wait for each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.text.bars import bar
from regbench.data.text.bpe import BPE
from regbench.data.text.index import Index, read_index, texts
from regbench.data.text.packing import Packed, pack, plan
from regbench.data.text.sources import Source
from regbench.utils.files import cache_root, exclusive, keep

_FORMAT = 3  # of the files in the cache


@dataclass(frozen=True)
class Corpus:
    """The documents of a source, with their encoding and tokens. Each part is made when it is first asked for.

    Attributes:
        source: Where the documents come from.
        size: The most tokens that the encoding may have.
        limit: The most documents that are read. None: all.
    """

    source: Source
    size: int
    limit: int | None = None

    @cached_property
    def index(self) -> Index:
        """The documents without their texts. It is always read from the source, never from the cache."""
        return read_index(self.source, self.limit)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides the tokens: the text, the size asked for, and the version of the library."""
        parts = (self.index.digest, str(self.size), version("tokenizers"), str(_FORMAT))
        return hashlib.sha256("/".join(parts).encode()).hexdigest()

    @property
    def folder(self) -> Path:
        """The folder of the encoding and of the tokens."""
        return cache_root() / "text" / self.digest

    @cached_property
    def bpe(self) -> BPE:
        """The encoding. It is learned from the training documents alone."""
        with _one_at_a_time(self.folder):
            path = self.folder / "bpe.json"
            found = _read_bpe(path)
            return found if found is not None else self._train(path)

    def _train(self, path: Path) -> BPE:
        """Learns the encoding and keeps it in a file."""
        train = np.flatnonzero(self.index.of_split("train"))
        with bar(
            f"learning {self.size:,} tokens from {self.index.source}", float(self.index.size[train].sum())
        ) as step:
            bpe = BPE.train(_counted(texts(self.source, self.index, train), step), self.size)
        keep(path, lambda file: file.write(f"{hashlib.sha256(bpe.text.encode()).hexdigest()}\n{bpe.text}"))
        return bpe

    @cached_property
    def packed(self) -> Packed:
        """The tokens of every document, in the order of the index."""
        bpe = self.bpe
        with (
            _one_at_a_time(self.folder),
            bar(f"tokenising {self.index.source}", float(len(self.index))) as step,
        ):
            return pack(
                self.folder,
                bpe.digest,
                plan(self.index.size),
                lambda chosen: texts(self.source, self.index, chosen),
                bpe.encode,
                step,
            )

    @cached_property
    def frequencies(self) -> NDArray[np.int64]:
        """(size,): how often each token occurs in the training documents."""
        lengths = np.diff(self.packed.starts)
        train = self.packed.tokens[np.repeat(self.index.of_split("train"), lengths)]
        return np.bincount(train, minlength=self.size)


def _counted(documents: Iterator[str], step: Any) -> Iterator[str]:
    """The documents again; `step` is told the characters of each one after its use."""
    for text in documents:
        yield text
        step(len(text))


def _read_bpe(path: Path) -> BPE | None:
    """What `_train` wrote; None if it is missing or damaged."""
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
        return BPE(text) if digest == hashlib.sha256(text.encode()).hexdigest() else None
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, so that two processes do not make its content twice. The lock ends with its process.

    If the folder cannot be locked, the block runs without the lock. That is safe: files are written atomically, and every process
    writes the same content.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(exclusive(folder, patience=math.inf))
        yield
