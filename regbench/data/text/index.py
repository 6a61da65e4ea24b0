"""The index of a source: its documents without their texts, the digest of everything, and the split of each document."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.text.bars import bar
from regbench.data.text.sources import Document, Source
from regbench.utils.arrays import IntArray
from regbench.utils.errors import Unavailable, UserError

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
    """The D documents of a source that repeat no earlier one and that no later one quotes whole, in the order of the source.

    Attributes:
        source: The source's name, for people.
        digest: SHA-256 of the source's name and of every document's name, topic and text.
        names: The documents' names, D strings.
        topics: The names of all topics, sorted.
        topic: (D,) each document's topic, an index into `topics`.
        split: (D,) each document's split, an index into SPLITS.
        size: (D,) characters of each document.
        identity: (D, 16) bytes, the beginning of the SHA-256 of each text.
        place: (D,) each document's number in the source. Numbers that are missing are of documents that were left out.
    """

    source: str
    digest: str
    names: tuple[str, ...]
    topics: tuple[str, ...]
    topic: NDArray[np.int32]
    split: NDArray[np.int8]
    size: IntArray
    identity: NDArray[np.uint8]
    place: IntArray

    def __len__(self) -> int:
        return len(self.names)

    def of_split(self, split: str) -> NDArray[np.bool_]:
        """(D,) bool: which documents are in "train", "validation" or "test"."""
        chosen: NDArray[np.bool_] = self.split == SPLITS.index(split)
        return chosen


def read_index(source: Source, limit: int | None = None) -> Index:
    """Reads a source once.

    Documents that repeat earlier ones are left out, and so are those that a later one quotes whole. What is kept may still be
    quoted in part by a longer one. Of the standard library a third of the documents is left out, most of it tables of encodings.
    Of its 56 documents for validation and test four have 10 to 22 % of their lines in training documents. While it reads, the
    hash of every line is kept, 110 to 130 bytes each.

    Args:
        source: Where the documents come from.
        limit: The most documents that are read. None: all.

    Raises:
        UserError: The source cannot be read, or holds too few documents for three splits.
    """
    digest = hashlib.sha256(source.name.encode())
    seen: set[bytes] = set()  # asked for membership only
    lines = _Lines()
    kept: list[tuple[str, str, int, bytes, int]] = []
    quoted: set[int] = set()
    with bar(f"reading {source.name}") as advance:
        for place, document in enumerate(islice(source.documents(), limit)):
            identity = identify(document)
            for part in (document.name, document.topic):
                digest.update(hashlib.sha256(part.encode("utf-8", errors="surrogatepass")).digest())
            digest.update(identity)
            advance(1)
            shared, size = lines.shared(document.text)
            if identity in seen or shared.total() > REPEATED * size:
                continue
            quoted.update(one for one, characters in shared.items() if characters > QUOTED * lines.sizes[one])
            seen.add(identity)
            lines.add(document.text)
            kept.append((document.name, document.topic, len(document.text), identity, place))
    kept = [one for number, one in enumerate(kept) if number not in quoted]
    names, topics, sizes, identities, places = zip(*kept, strict=True) if kept else ((),) * 5
    if len(names) < LEAST * len(SPLITS):
        raise UserError(
            f"{source.name} holds {len(names)} different documents, but {', '.join(SPLITS[:-1])} and {SPLITS[-1]} splits need "
            f"{LEAST * len(SPLITS)} (a .txt or .md is one document: name a folder of them, or .jsonl)"
        )
    ordered = sorted(set(topics))
    number = {topic: i for i, topic in enumerate(ordered)}
    return Index(
        source.name,
        digest.hexdigest(),
        names,
        tuple(ordered),
        np.array([number[topic] for topic in topics], np.int32),
        _divide(identities),
        np.array(sizes, np.int64),
        np.frombuffer(b"".join(identities), np.uint8).reshape(-1, _ID),
        np.array(places, np.int64),
    )


def identify(document: Document) -> bytes:
    """The beginning of the SHA-256 of a document's text. Documents with the same text are one document."""
    return hashlib.sha256(document.text.encode("utf-8", errors="surrogatepass")).digest()[:_ID]


class _Lines:
    """The lines of the documents that were kept so far."""

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
        """Adds the lines of a document."""
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


def texts(source: Source, index: Index, chosen: NDArray[Any]) -> Iterator[str]:
    """Yields the texts of chosen documents. The source is read once, as far as needed.

    Args:
        source: The source of the index.
        index: The index.
        chosen: Numbers of documents in the index, rising.

    Raises:
        UserError: The source has changed since the index was made.
    """
    if not len(chosen):
        return
    documents = source.documents()
    gaps = pairwise([-1, *index.place[chosen].tolist()])
    for number, (before, place) in zip(chosen.tolist(), gaps, strict=True):
        document = None
        for _ in range(place - before):
            document = next(documents, None)
        if document is None or identify(document) != index.identity[number].tobytes():
            raise Unavailable(f"{source.name} changed while it was read: start again")
        yield document.text
