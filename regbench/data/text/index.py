"""What a source holds: its documents without their texts, the digest of all of it, and which split each document is in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.text.bars import bar
from regbench.data.text.sources import Document, Source
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError

SPLITS = ("train", "validation", "test")
SHARE = 20
"""One document in this many is for validation, and one for test."""
LEAST = 2
"""Documents that a split needs at the least: an instance is made of two."""
REPEATED = 0.1
"""A document is left out if more than this share of it stands, line by line, in documents before it."""
TELLING = 20
"""Characters of a line, at the least, that count for that: `else:` stands everywhere."""
_ID = 16  # bytes of a document's identity


@dataclass(frozen=True)
class Index:
    """Of D documents, none of which repeats others, in the order of their source.

    source: what people are told it is.  digest: SHA-256 of that and of every document's name, topic and text.  names: D.
    topics: sorted.  topic: (D,) into them.  split: (D,) into SPLITS.  size: (D,) characters.  identity: (D, 16) bytes, the
    beginning of the text's SHA-256.  place: (D,) which document of the source it is; those left out repeat earlier ones.
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
        """(D,): the documents of "train", "validation" or "test"."""
        chosen: NDArray[np.bool_] = self.split == SPLITS.index(split)
        return chosen


def read_index(source: Source, limit: int | None = None) -> Index:
    """Reads the source once, to the end or to its document number `limit`.

    Documents that repeat others are left out, lest a split holds what another was trained on: of the standard library a quarter,
    most of them tables of encodings. Lines that were read are known by their hashes, 60 to 90 bytes each while it reads.

    Raises:
        UserError: it holds too few documents for three splits, or cannot be read.
    """
    digest = hashlib.sha256(source.name.encode())
    seen: set[bytes] = set()  # asked for membership only
    lines = _Lines()
    names: list[str] = []
    topics: list[str] = []
    sizes: list[int] = []
    identities: list[bytes] = []
    places: list[int] = []
    with bar(f"reading {source.name}") as advance:
        for place, document in enumerate(islice(source.documents(), limit)):
            identity = identify(document)
            for part in (document.name, document.topic):
                digest.update(hashlib.sha256(part.encode("utf-8", errors="surrogatepass")).digest())
            digest.update(identity)
            advance(1)
            if identity in seen or lines.repeated_by(document.text):
                continue
            seen.add(identity)
            lines.add(document.text)
            names.append(document.name)
            topics.append(document.topic)
            sizes.append(len(document.text))
            identities.append(identity)
            places.append(place)
    if len(names) < LEAST * len(SPLITS):
        raise UserError(
            f"{source.name} holds {len(names)} different documents: {LEAST * len(SPLITS)} are the fewest that make "
            f"{', '.join(SPLITS[:-1])} and {SPLITS[-1]} splits (a .txt or .md is one document: name a folder of them, or .jsonl)"
        )
    ordered = sorted(set(topics))
    number = {topic: i for i, topic in enumerate(ordered)}
    return Index(
        source.name,
        digest.hexdigest(),
        tuple(names),
        tuple(ordered),
        np.array([number[topic] for topic in topics], np.int32),
        _divide(identities),
        np.array(sizes, np.int64),
        np.frombuffer(b"".join(identities), np.uint8).reshape(-1, _ID),
        np.array(places, np.int64),
    )


def identify(document: Document) -> bytes:
    """What makes a document that document: its text. Where the same text comes twice, both would be one document."""
    return hashlib.sha256(document.text.encode("utf-8", errors="surrogatepass")).digest()[:_ID]


class _Lines:
    """The lines of the documents that were taken."""

    def __init__(self) -> None:
        self._known: set[int] = set()  # asked for membership only, so the hashes of one process do

    def repeated_by(self, text: str) -> bool:
        """Whether a document has too much of its text from these."""
        lines = _telling_lines(text)
        known = sum(len(line) for line in lines if hash(line) in self._known)
        return known > REPEATED * sum(map(len, lines))

    def add(self, text: str) -> None:
        self._known.update(map(hash, _telling_lines(text)))


def _telling_lines(text: str) -> set[str]:
    return {line for line in map(str.strip, text.splitlines()) if len(line) >= TELLING}


def _divide(identities: list[bytes]) -> NDArray[np.int8]:
    """(D,): the documents whose hashes are the smallest are for test, the next for validation, the rest for training.

    By rank, as a threshold on the hash would leave a split of a small source empty.
    """
    held_out = max(LEAST, round(len(identities) / SHARE))
    split = np.zeros(len(identities), np.int8)
    order = sorted(range(len(identities)), key=lambda i: identities[i])
    split[order[:held_out]] = SPLITS.index("test")
    split[order[held_out : 2 * held_out]] = SPLITS.index("validation")
    return split


def texts(source: Source, index: Index, chosen: NDArray[Any]) -> Iterator[str]:
    """The texts of the chosen documents, numbers into the index in rising order; `source` is read once, as far as needed.

    Raises:
        UserError: the source is not what it was when the index was made.
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
            raise UserError(f"{source.name} changed while it was read: start again")
        yield document.text
