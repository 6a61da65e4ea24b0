"""What the tasks of text share: where it comes from, its corpus, its tokens. The tasks differ in how they cut windows of it.

Any text will do: the standard library of the Python that runs (the default; its modules are the topics), local files, or a
dataset of the Hugging Face Hub. Tokens are byte pairs learned from the training documents. Every document is in one split.
A document is left out where more than a tenth of its long lines stand in earlier ones, or where a later one quotes them all. So a
model is tested on little text that it was trained on. Of a line of more than 400 characters its sentences are compared. Lines of
fewer than 20 bytes are not compared: repeats of verse in short lines stay. Another text or another Python gives other instances:
the fingerprint tells them apart.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pydantic

from regbench.data.instances import Instances
from regbench.data.text.bpe import N_BYTES
from regbench.data.text.corpus import Corpus
from regbench.data.text.sources import DEFAULT_LIMIT, PRESETS, SUFFIXES, Files, HubDataset, Source, StandardLibrary
from regbench.tasks import base
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError


class SourceParameters(base.Parameters):
    """Where the text comes from, and into how many tokens it is divided."""

    # "stdlib"; a file or folder of .txt, .md, .jsonl or .parquet, as seen from the track's folder; or "c4", "wikipedia"
    # or the name of any dataset on the Hugging Face Hub
    source: str = pydantic.Field(default="stdlib", min_length=1)
    config: str | None = None  # the dataset's configuration
    split: str = "train"  # the dataset's split
    revision: str | None = None  # the dataset's branch, tag or commit
    # the most documents that are read. None: 100,000 of a dataset, all of other sources.
    max_documents: int | None = pydantic.Field(default=None, ge=6)
    text_field: str = "text"  # the field of the text, if documents are rows
    # the field of the topic, if documents are rows. None: one topic for each file, and one for a dataset.
    topic_field: str | None = None
    vocab_size: int = pydantic.Field(default=8000, ge=N_BYTES + 1, le=1 << 20)  # tokens, the separator included
    _folder: Path = pydantic.PrivateAttr(default=Path())

    @pydantic.model_validator(mode="after")
    def _options_belong_to_the_source(self, info: pydantic.ValidationInfo) -> Self:
        self._folder = (info.context or {}).get("folder", Path())
        local = self.source == "stdlib" or self.path is not None
        whole = self.source == "stdlib" or (self.path is not None and self.path.suffix.lower() in (".txt", ".md"))
        for names, refused, what in (
            (("config", "split", "revision"), local, "datasets of the Hugging Face Hub"),
            (("text_field", "topic_field"), whole, "documents that are rows (.jsonl, .parquet, datasets)"),
        ):
            for name in names:
                if refused and getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is for {what}, not for '{self.source}'")
        return self

    @property
    def path(self) -> Path | None:
        """The source as a path, if it is one: it exists, or it looks like a path. Else None."""
        try:
            path = self.place
            there = path.exists()
        except (OSError, RuntimeError) as error:  # e.g. a name that is too long, or an unknown user
            raise ValueError(f"source '{self.source[:80]}': {getattr(error, 'strerror', None) or error}") from None
        looks = self.source.startswith((".", "/", "~")) or path.suffix.lower() in SUFFIXES
        known = self.source == "stdlib" or self.source in PRESETS
        return path if looks or (not known and there) else None

    @property
    def place(self) -> Path:
        """The source as a path, seen from the folder of a track of your own, else from the current folder."""
        return self._folder / Path(self.source).expanduser()

    @property
    def max_length(self) -> int:
        """The tokens of the longest instance."""
        raise NotImplementedError


class Parameters(SourceParameters):
    """Where the text comes from, and how long an instance is."""

    length: int = pydantic.Field(default=512, ge=2, le=65_536)  # tokens of an instance

    @property
    def max_length(self) -> int:
        """The tokens of an instance."""
        return self.length


class CorpusTask(base.Task):
    """A task whose instances are cut from documents."""

    main_score = "nll"
    knows_truth = False
    portable = False
    parameters: SourceParameters

    @cached_property
    def corpus(self) -> Corpus:
        """The text, its encoding and its tokens."""
        return Corpus(self._source(), self.parameters.vocab_size - 1, self.parameters.max_documents)

    def _source(self) -> Source:
        """The source that the parameters name."""
        p = self.parameters
        if p.source == "stdlib":
            return StandardLibrary()
        if p.path is not None:
            return Files(p.path, p.text_field, p.topic_field, str(Path(p.source)))
        preset = PRESETS.get(p.source)
        # One that is here, but not beside the track, `datasets` would load.
        if preset is None and Path(p.source).expanduser().exists():
            raise UserError(f"no such file or folder: {p.place}; a relative source is seen from the track's folder")
        name, config = (preset[0], p.config or preset[1]) if preset else (p.source, p.config)
        limit = p.max_documents or DEFAULT_LIMIT
        return HubDataset(name, config, p.split, p.revision, p.text_field, p.topic_field, limit)

    def extent(self) -> tuple[int, str]:
        """The length of an instance and the size of the vocabulary, which need not be made for this."""
        return self.parameters.max_length, f"{self.parameters.vocab_size:,}"

    def source_name(self) -> str:
        """The name of the text."""
        return self.corpus.source.name

    def source_digest(self) -> str:
        """SHA-256 of what decides the tokens."""
        return self.corpus.digest

    @cached_property
    def io(self) -> base.TokenIO:
        """Byte pairs, and the separator as the last token, which is in no text.

        If the text has too few pairs, the tokens before the separator are unused.
        """
        p, names = self.parameters, self.corpus.bpe.names
        unused = tuple(f"<unused-{i}>" for i in range(len(names), p.vocab_size - 1))
        return base.TokenIO.of((*names, *unused, "<separator>"), p.max_length)

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The names of the topics that `truth["topic"]` numbers."""
        return self.corpus.index.topics

    def encode(self, text: str) -> IntArray:
        """The tokens (L,) of a text."""
        return next(self.corpus.bpe.encode([text])).astype(np.int64)

    def decode(self, tokens: IntArray) -> str:
        """The text of tokens (L,). The separator and unused tokens are left out."""
        known = self.corpus.bpe.size
        return self.corpus.bpe.decode(token for token in tokens.tolist() if token < known)

    def documents_of(self, split: str, least: int, needed: int) -> IntArray:
        """The documents of a split that have `least` tokens or more, sorted by topic."""
        index = self.corpus.index
        lengths = np.diff(self.corpus.packed.starts)
        found = np.flatnonzero(index.of_split(split) & (lengths >= least))
        if len(found) < needed:
            raise UserError(
                f"{index.source}: {len(found)} of the {int(index.of_split(split).sum())} documents for {split} have {least} "
                f"tokens or more, but {'two are' if needed == 2 else 'one is'} needed: take more text, or shorter instances"
            )
        return found[np.argsort(index.topic[found], kind="stable")]

    def packed(self, documents: IntArray) -> tuple[IntArray, ...]:
        """The tokens (T,) of the whole text, and of D documents, sorted by topic, the first token and the length, (D,) each.

        Beside a document those of its topic must not stand, or, with one topic alone, itself: two more arrays (D,) say from which
        to which of the D these are.
        """
        packed, topic = self.corpus.packed, self.corpus.index.topic[documents]
        own = np.arange(len(topic)) if topic[0] == topic[-1] else topic
        beside = (np.searchsorted(own, own, side) for side in ("left", "right"))
        return packed.tokens, packed.starts[:-1][documents], np.diff(packed.starts)[documents], *beside

    def identities(self, instances: Instances) -> list[bytes]:
        """The documents of each instance, so that a document that two splits share is found."""
        return [self.corpus.index.identity[d].tobytes() for d in instances.truth["document"].ravel()]

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds four numbers.

        `documents` and `topics` are how many occur, and `characters_a_token` the mean number of characters. `unigram_nats` is the
        mean NLL (nats) of a model that knows the training text's frequencies, plus one.
        """
        flat = instances.tokens[instances.tokens != self.io.separator]
        counts = self.corpus.frequencies + 1.0
        nats = np.log(counts.sum()) - np.log(counts)
        return super().statistics(instances) | {
            "documents": len(np.unique(instances.truth["document"])),
            "topics": len(np.unique(instances.truth["topic"])),
            "characters_a_token": len(self.decode(flat)) / len(flat),
            "unigram_nats": float(nats[flat].mean()),
        }


def printable(text: str) -> str:
    """The text without characters that would move a terminal's cursor or change its colour."""
    text = text.expandtabs(4)
    return "".join(c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
