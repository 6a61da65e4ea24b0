"""A corpus: a source's documents in three splits, their encoding learned from the training ones, and all of their tokens.

The encoding and the tokens are kept under `cache_root()/text/<digest>/`, where the digest is that of the text, so that an edited
file or another Python has a folder of its own. Damaged files are made again; processes that want the same wait for each other.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from regbench.utils.cache import cache_root
from regbench.utils.files import atomic_write, exclusive

_FORMAT = 2  # of what is kept


@dataclass(frozen=True)
class Corpus:
    """The documents of `source`, at most `limit`, with an encoding of at most `size` tokens.

    Everything is made when it is first asked for.
    """

    source: Source
    size: int
    limit: int | None = None

    @cached_property
    def index(self) -> Index:
        """The documents, without their texts. Reads the source: what it holds now is what counts, not what the cache says."""
        return read_index(self.source, self.limit)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides the tokens: the text, the size asked for, the version of the library that encodes."""
        parts = (self.index.digest, str(self.size), version("tokenizers"), str(_FORMAT))
        return hashlib.sha256("/".join(parts).encode()).hexdigest()

    @property
    def folder(self) -> Path:
        """Where what is made is kept."""
        return cache_root() / "text" / self.digest

    @cached_property
    def bpe(self) -> BPE:
        """The encoding, learned from the training documents alone."""
        with _one_at_a_time(self.folder):
            path = self.folder / "bpe.json"
            found = _read_bpe(path)
            return found if found is not None else self._train(path)

    def _train(self, path: Path) -> BPE:
        train = np.flatnonzero(self.index.of_split("train"))
        with bar(
            f"learning {self.size:,} tokens from {self.index.source}", float(self.index.size[train].sum())
        ) as step:
            bpe = BPE.train(_counted(texts(self.source, self.index, train), step), self.size)
        try:
            with atomic_write(path) as file:
                file.write(f"{hashlib.sha256(bpe.text.encode()).hexdigest()}\n{bpe.text}")
        except OSError:
            pass  # a full or read-only cache costs time, never the run
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
        """(size,): how often each token comes in the training documents."""
        lengths = np.diff(self.packed.starts)
        train = self.packed.tokens[np.repeat(self.index.of_split("train"), lengths)]
        return np.bincount(train, minlength=self.size)


def _counted(documents: Iterator[str], step: Any) -> Iterator[str]:
    for text in documents:
        yield text
        step(len(text))


def _read_bpe(path: Path) -> BPE | None:
    """What `_train` wrote; None where it is not there or damaged."""
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
        return BPE(text) if digest == hashlib.sha256(text.encode()).hexdigest() else None
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Waits while another process makes what goes into `folder`, as it would only be made twice. The lock goes with its process.

    Where no lock can be had there is none: files are written atomically and their content is the same whoever writes it.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(exclusive(folder, wait=True))
        yield
