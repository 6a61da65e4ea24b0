"""A corpus: the documents of a source in three splits, an encoding learned from the training split, and all tokens.

Encoding and tokens are kept in the file `text/<digest>.npz` of the cache. The digest is that of the text, so an edited file or
another Python has its own file. A damaged file is made again.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.text.bpe import BPE
from regbench.data.text.sources import Source
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError
from regbench.utils.files import cache_root, keep_arrays, kept_arrays

SPLITS = ("train", "validation", "test")
SHARE = 20
"""Of this many documents, one is for validation and one for test."""
LEAST = 2
"""The fewest documents of a split: an instance is made of two."""
REPEATED = 0.1
"""A document is left out if more than this share of its lines of `TELLING` bytes, by length, is in earlier documents."""
QUOTED = 0.95
"""A document is left out, too, if more than this share of these lines is in one later document, which quotes it whole."""
TELLING = 20
"""The fewest bytes of a line that counts for that. Short lines such as `else:` are everywhere."""
LONG = 400
"""A line of more characters is cut where sentences end: a document may be one line."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_ID = 16  # bytes of a document's identity


@dataclass(frozen=True)
class Index:
    """The D documents of a source that repeat no earlier one and that no later one quotes whole, in the order of the source."""

    source: str
    """The source's name, for people."""
    digest: str
    """SHA-256 of the source's name and of every document's name, topic and text."""
    names: tuple[str, ...]
    topics: tuple[str, ...]
    """The names of all topics, sorted."""
    topic: NDArray[np.int32]
    """(D,) each document's topic, an index into `topics`."""
    split: NDArray[np.int8]
    """(D,) each document's split, an index into SPLITS."""
    identity: NDArray[np.uint8]
    """(D, 16) bytes, the beginning of the SHA-256 of each text."""

    def __len__(self) -> int:
        return len(self.names)

    def of_split(self, split: str) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = self.split == SPLITS.index(split)
        return chosen


def read_index(source: Source, limit: int | None = None) -> tuple[Index, list[str]]:
    """Reads a source once: the index, and the text of each document in it.

    Documents that repeat earlier ones are left out, and so are those that a later one quotes whole. What is kept may still be
    quoted in part by a longer one. Of the standard library a third of the documents is left out, most of it tables of encodings.
    Of its 56 documents for validation and test four have 10 to 22 % of their lines in training documents. While it reads, the
    hash of every line is kept, 110 to 130 bytes each.
    """
    digest = hashlib.sha256(source.name.encode())
    seen: set[bytes] = set()  # asked for membership only
    lines = _Lines()
    kept: list[tuple[str, str, bytes, str]] = []
    quoted: set[int] = set()
    for document in islice(source.documents(), limit):
        identity = hashlib.sha256(document.text.encode("utf-8", errors="surrogatepass")).digest()[:_ID]
        for part in (document.name, document.topic):
            digest.update(hashlib.sha256(part.encode("utf-8", errors="surrogatepass")).digest())
        digest.update(identity)
        shared, size = lines.shared(document.text)
        if identity in seen or shared.total() > REPEATED * size:
            continue
        quoted.update(one for one, characters in shared.items() if characters > QUOTED * lines.sizes[one])
        seen.add(identity)
        lines.add(document.text)
        kept.append((document.name, document.topic, identity, document.text))
    kept = [one for number, one in enumerate(kept) if number not in quoted]
    names, topics, identities, texts = zip(*kept, strict=True) if kept else ((),) * 4
    if len(names) < LEAST * len(SPLITS):
        raise UserError(
            f"{source.name} holds {len(names)} different documents, but {', '.join(SPLITS[:-1])} and {SPLITS[-1]} splits need "
            f"{LEAST * len(SPLITS)} (a .txt or .md is one document: name a folder of them, or .jsonl)"
        )
    ordered = sorted(set(topics))
    number = {topic: i for i, topic in enumerate(ordered)}
    index = Index(
        source.name,
        digest.hexdigest(),
        names,
        tuple(ordered),
        np.array([number[topic] for topic in topics], np.int32),
        _divide(identities),
        np.frombuffer(b"".join(identities), np.uint8).reshape(-1, _ID),
    )
    return index, list(texts)


class _Lines:
    def __init__(self) -> None:
        self._first: dict[int, int] = {}  # by line the document that had it first; the hashes of one process do
        self.sizes: list[int] = []  # of each document, the characters of its lines

    def shared(self, text: str) -> tuple[Counter[int], int]:
        """The characters of a text's lines that each earlier document had first, and the characters of all its lines."""
        lines, shared = _telling_lines(text), Counter[int]()
        for line in lines:
            if (earlier := self._first.get(hash(line))) is not None:
                shared[earlier] += len(line)
        return shared, sum(map(len, lines))

    def add(self, text: str) -> None:
        lines, number = _telling_lines(text), len(self.sizes)
        self.sizes.append(sum(map(len, lines)))
        for line in lines:
            self._first.setdefault(hash(line), number)


def _telling_lines(text: str) -> set[str]:
    """The lines of a text that are long enough to count; of a long line its sentences."""
    parts = chain.from_iterable(
        _SENTENCE_END.split(line) if len(line) > LONG else [line] for line in map(str.strip, text.splitlines())
    )
    return {part for part in parts if len(part) >= TELLING or len(part.encode("utf-8", errors="replace")) >= TELLING}


def _divide(identities: Sequence[bytes]) -> NDArray[np.int8]:
    """(D,): the split of each document. The smallest hashes are for test, the next for validation, the rest for training.

    Ranks decide, not a threshold on the hash: that could leave a split of a small source empty.
    """
    held_out = max(LEAST, round(len(identities) / SHARE))
    split = np.zeros(len(identities), np.int8)
    order = sorted(range(len(identities)), key=lambda i: identities[i])
    split[order[:held_out]] = SPLITS.index("test")
    split[order[held_out : 2 * held_out]] = SPLITS.index("validation")
    return split


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
