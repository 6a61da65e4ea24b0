"""A corpus: the documents of a source in three splits, an encoding learned from the training split, and all tokens.

Encoding and tokens are kept in the file `text/<digest>.npz` of the cache. The digest is that of the text, so an edited file or
another Python has its own file. A damaged file is made again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.text.bpe import BPE
from regbench.data.text.index import Index, read_index
from regbench.data.text.sources import Source
from regbench.utils.arrays import IntArray
from regbench.utils.files import cache_root, keep_arrays, kept_arrays


@dataclass(frozen=True)
class Packed:
    """Tokens of D documents, one after the other. Document d is `tokens[starts[d] : starts[d + 1]]`."""

    tokens: NDArray[Any]
    starts: IntArray
    """(D + 1,) where each document begins, and the end of the last."""


@dataclass(frozen=True)
class Corpus:
    """The documents of a source, with their encoding and tokens. They are made when one of them is first asked for."""

    source: Source
    size: int
    """The most tokens that the encoding may have."""
    limit: int | None = None
    """The most documents that are read. None: all."""

    @property
    def index(self) -> Index:
        """The documents without their texts. It is always read from the source, never from the cache."""
        return self._made[0]

    @property
    def bpe(self) -> BPE:
        """The encoding. It is learned from the training documents alone."""
        return self._made[1]

    @property
    def packed(self) -> Packed:
        """The tokens of every document, in the order of the index."""
        return self._made[2]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides the tokens: the text, the size asked for, and the version of the library."""
        return self._digest(self.index)

    def _digest(self, index: Index) -> str:
        parts = (index.digest, str(self.size), version("tokenizers"), "3")
        return hashlib.sha256("/".join(parts).encode()).hexdigest()

    @cached_property
    def _made(self) -> tuple[Index, BPE, Packed]:
        index, texts = read_index(self.source, self.limit)
        path = cache_root() / "text" / f"{self._digest(index)}.npz"
        try:
            kept = kept_arrays(path)
            return index, BPE(str(kept["bpe"])), Packed(kept["tokens"], kept["starts"])
        except (OSError, ValueError, KeyError):  # not there, or damaged
            pass
        bpe = BPE.train((texts[d] for d in np.flatnonzero(index.of_split("train"))), self.size)
        documents = list(bpe.encode(texts))
        packed = Packed(np.concatenate(documents), np.cumsum([0, *map(len, documents)]))
        keep_arrays(path, {"bpe": np.array(bpe.text), "tokens": packed.tokens, "starts": packed.starts})
        return index, bpe, packed

    @cached_property
    def frequencies(self) -> NDArray[np.int64]:
        """(size,): how often each token occurs in the training documents."""
        lengths = np.diff(self.packed.starts)
        train = self.packed.tokens[np.repeat(self.index.of_split("train"), lengths)]
        return np.bincount(train, minlength=self.size)
