"""Datasets of the Hugging Face Hub as a source of text. They are streamed once and kept: later runs need no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

from regbench.data.text.sources import Document, field_of
from regbench.utils.errors import Unavailable, UserError, closest
from regbench.utils.files import cache_root, keep_text, kept_text

DEFAULT_LIMIT = 100_000
"""Documents that are read of a dataset by default. (c4 has 365 million.)"""

PRESETS = {"c4": ("allenai/c4", "en"), "wikipedia": ("wikimedia/wikipedia", "20231101.en")}
"""Datasets with a short name: the name on the Hub, and the default configuration."""


@dataclass(frozen=True)
class HubDataset:
    """The first documents of one split of a dataset, in its own order."""

    dataset: str
    """The dataset's name on the Hub, or a folder that `datasets` can load."""
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    """A branch, tag or commit. None: the newest commit at the download; later runs stay with what was downloaded."""
    text_field: str = "text"
    topic_field: str | None = None
    """None: all documents have one topic, the dataset's name."""
    limit: int = DEFAULT_LIMIT

    @property
    def name(self) -> str:
        """The dataset, its configuration, split and revision, and the number of documents, for people."""
        chosen = "/".join(part for part in (self.config, self.split, self.revision) if part)
        return f"{self.dataset} ({chosen}, {self.limit:,} documents)"

    @property
    def path(self) -> Path:
        """The file in which the documents are kept: a line of JSON for each, text and topic."""
        return cache_root() / "text" / "datasets" / f"{sha256(json.dumps(astuple(self)).encode()).hexdigest()}.jsonl"

    def documents(self) -> Iterator[Document]:
        try:
            pairs = [json.loads(line) for line in kept_text(self.path).splitlines()]
        except (OSError, ValueError):
            pairs = self._stream()
            keep_text(self.path, "".join(f"{json.dumps(pair)}\n" for pair in pairs))
        if not any(text.strip() for text, _ in pairs):
            raise UserError(f"{self.name} holds no text")
        for place, (text, topic) in enumerate(pairs):
            if text.strip():
                yield Document(str(place), topic, text)

    def _stream(self) -> list[tuple[str, str]]:
        try:
            import datasets
        except ImportError:
            raise Unavailable(f"{self.dataset} needs the package datasets: pip install 'regbench[text]'") from None
        pairs = []
        try:
            rows = datasets.load_dataset(
                self.dataset, self.config, split=self.split, revision=self.revision, streaming=True
            )
            for place, row in enumerate(islice(rows, self.limit)):
                where = f"{self.dataset}, document {place}"
                topic = self.dataset if self.topic_field is None else field_of(row, self.topic_field, where)
                pairs.append((field_of(row, self.text_field, where), topic))
        except UserError:
            raise
        except Exception as error:  # the libraries' own, of which there are many
            near = closest(self.dataset.lower(), ["stdlib", *PRESETS])
            hint = "" if near is None else f"; did you mean '{near}'?"
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise Unavailable(f"dataset '{self.dataset}': {reason}{hint}") from None
        return pairs
