"""Datasets of the Hugging Face Hub as a source of text. They are streamed once and kept: later runs need no network."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from regbench.data.text.bars import bar
from regbench.data.text.sources import Document, field_of
from regbench.utils.errors import Unavailable, UserError, closest
from regbench.utils.files import cache_root, keep

DEFAULT_LIMIT = 100_000
"""Documents that are read of a dataset by default. (c4 has 365 million.)"""
SHARD = 1000
"""Documents in one file. A download that was interrupted goes on after the last whole file."""


@dataclass(frozen=True)
class Preset:
    """A dataset with a short name.

    Attributes:
        dataset: Its name on the Hub.
        config: Its default configuration.
    """

    dataset: str
    config: str


PRESETS = {
    "c4": Preset("allenai/c4", "en"),
    "wikipedia": Preset("wikimedia/wikipedia", "20231101.en"),
}


@dataclass(frozen=True)
class HubDataset:
    """The first documents of one split of a dataset, in its own order.

    Attributes:
        dataset: The dataset's name on the Hub, or a folder that `datasets` can load.
        config: The dataset's configuration, if it has several.
        split: The dataset's split.
        revision: A branch, tag or commit. None: the newest commit at the first download; later runs stay with it.
        text_field: The field of the text.
        topic_field: The field of the topic. None: all documents have one topic, the dataset's name.
        limit: The most documents that are read.
    """

    dataset: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    text_field: str = "text"
    topic_field: str | None = None
    limit: int = DEFAULT_LIMIT

    @property
    def name(self) -> str:
        """The dataset, its configuration, split and revision, and the number of documents, for people."""
        chosen = "/".join(part for part in (self.config, self.split, self.revision) if part)
        return f"{self.dataset} ({chosen}, {self.limit:,} documents)"

    @property
    def folder(self) -> Path:
        """The folder of the streamed documents. It does not depend on the limit: a larger limit streams only what is new."""
        parts = (self.dataset, self.config, self.split, self.revision, self.text_field, self.topic_field)
        return cache_root() / "text" / "datasets" / sha256(json.dumps(parts).encode()).hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yields the documents that hold more than white space: first those that are kept, then those that are streamed.

        Raises:
            UserError: There is no such dataset, configuration, split or field, no network, no package `datasets`, or no text.
        """
        found = 0
        for place, (text, topic) in enumerate(islice(self._pairs(), self.limit)):
            if text.strip():
                found += 1
                yield Document(str(place), topic, text)
        if not found:
            raise UserError(f"{self.name} holds no text")

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yields text and topic of every row."""
        number = 0
        while (kept := _read(self.folder / f"{number:05d}.jsonl")) is not None:
            yield from kept
            if len(kept) < SHARD:  # the dataset ends here
                return
            number += 1
            if number * SHARD >= self.limit:
                return
        rows = self._rows(skip=number * SHARD)
        with bar(f"streaming {self.dataset}", float(self.limit - number * SHARD)) as advance:
            while number * SHARD < self.limit:
                pairs = list(islice(rows, SHARD))
                _write(self.folder / f"{number:05d}.jsonl", pairs)
                advance(len(pairs))
                yield from pairs
                if len(pairs) < SHARD:
                    return
                number += 1

    def _rows(self, skip: int) -> Iterator[tuple[str, str]]:
        """Streams text and topic of every row after the first `skip`."""
        with _one_line(self), _quiet():
            for place, row in enumerate(self._stream(skip), skip):
                where = f"{self.dataset}, document {place}"
                topic = self.dataset if self.topic_field is None else field_of(row, self.topic_field, where)
                yield field_of(row, self.text_field, where), topic

    def _stream(self, skip: int) -> Iterable[Mapping[str, Any]]:
        try:
            import datasets
        except ImportError:
            raise Unavailable(f"{self.dataset} needs the package datasets: pip install 'regbench[text]'") from None
        revision = self.revision if Path(self.dataset).is_dir() else self._commit()
        stream = datasets.load_dataset(self.dataset, self.config, split=self.split, revision=revision, streaming=True)
        rows: Iterable[Mapping[str, Any]] = stream.skip(skip) if skip else stream
        return rows

    def _commit(self) -> str:
        """The commit that the revision was when the first document was streamed. A branch moves on, this commit does not."""
        path = self.folder / "commit"
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if kept := path.read_text(encoding="utf-8").strip():
                return _look_up(self.dataset, kept)
        commit = _look_up(self.dataset, self.revision)
        keep(path, lambda file: file.write(f"{commit}\n"))
        return commit


def _look_up(dataset: str, revision: str | None) -> str:
    """The commit of a revision now. It is one short question: `datasets` without network tries for half a minute."""
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(dataset, revision=revision, timeout=15.0).sha)


@contextlib.contextmanager
def _one_line(dataset: HubDataset) -> Iterator[None]:
    """Turns an exception of the libraries into one line that tells what to do."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if "GatedRepoError" in kinds:
            reason = "its owner gives access only on request: ask on its page, then `hf auth login`"
        elif "RevisionNotFoundError" in kinds:
            reason = f"it has no revision '{dataset.revision or 'that the first documents were streamed from'}'"
        elif kinds & {"RepositoryNotFoundError", "DatasetNotFoundError", "HFValidationError"}:
            reason = (
                f"no dataset of that name on the Hugging Face Hub, and no file or folder here{_hint(dataset.dataset)}"
            )
        elif kinds & {"ConnectionError", "NetworkError", "TransportError", "TimeoutException", "TimeoutError"}:
            reason = (
                f"no file or folder of that name here, and the Hugging Face Hub cannot be reached ({first[:80]}): "
                f"check the network, or use source: stdlib or local files{_hint(dataset.dataset)}"
            )
        elif "BuilderConfig" in first or "Config name is missing" in first:
            reason = f"config '{dataset.config}': {' '.join(str(error).split())[:300]}"
        else:
            reason = first[:300]
        raise Unavailable(f"dataset '{dataset.dataset}': {reason}") from None


def _hint(name: str) -> str:
    """The end of a message: the short name that the given one looks like, if any."""
    found = closest(name.lower(), ["stdlib", *PRESETS])
    return "" if found is None else f"; did you mean '{found}'?"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the libraries' own log messages off the terminal while a dataset is streamed."""
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub", "fsspec")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _read(path: Path) -> list[tuple[str, str]] | None:
    """What `_write` wrote; None if it is missing or damaged."""
    try:
        digest, _, body = path.read_text(encoding="utf-8").partition("\n")
        if digest != sha256(body.encode()).hexdigest():
            return None
        return [(text, topic) for text, topic in map(json.loads, body.splitlines())]
    except (OSError, ValueError):
        return None


def _write(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Keeps texts and topics: a line with the SHA-256 of the rest, then a line of JSON for each pair."""
    body = "".join(f"{json.dumps(pair)}\n" for pair in pairs)
    keep(path, lambda file: file.write(f"{sha256(body.encode()).hexdigest()}\n{body}"))
