"""Mixed text: an excerpt of one document, then an excerpt of another, with no mark at the switch (CGT section 4.1).

An instance is a random window of one document up to a random cut, then a random window of another document. If there are several
topics, the two documents have different topics. For example 16 tokens with the cut after the eighth:

    self . _ loop = loop Ċ ĠĠĠ | The Ġ`` del `` Ġstatement Ġdeletes Ġa Ġname

A predictor that learns in context uses the first excerpt, notices that the text has changed, and drops what it has learned from
it. So the NLL is shown by the distance after the switch. The true distribution of text is unknown: this task has no truth and no
oracle.

Any text will do: the standard library of the Python that runs (the default; its modules are the topics), local files, or a
dataset of the Hugging Face Hub. Tokens are byte pairs learned from the training documents. Every document is in one split.
Documents that repeat more than a tenth of their text from others are left out, so that no model is tested on text that it was
trained on. Another text or another Python gives other instances: the fingerprint tells them apart. The task is from
*Contextually Guided Transformers via Low-Rank Adaptation* (Zhmoginov, Lee, Vladymyrov, Sandler 2025, arXiv:2506.05672), here
CGT. Its excerpts come from c4 and wikipedia, and begin where their documents begin.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import ClassVar, NoReturn, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray
from rich.console import Group
from rich.text import Text

from regbench.data.instances import Instances, smallest_integer_type
from regbench.data.rng import below, between, stream
from regbench.data.text.bpe import N_BYTES
from regbench.data.text.corpus import Corpus
from regbench.data.text.hub import DEFAULT_LIMIT, PRESETS, HubDataset
from regbench.data.text.sources import SUFFIXES, Files, Source, StandardLibrary
from regbench.tasks import base as task
from regbench.utils import threads
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError

_EXCERPTS = 5  # the stream's purpose


class TextMixtureParameters(task.Parameters):
    """The parameters of `text_mixture`: where the text comes from, and how it is cut. The cuts' defaults are the paper's.

    Attributes:
        source: "stdlib"; a file or folder of .txt, .md, .jsonl or .parquet; or "c4", "wikipedia" or the name of any dataset on
            the Hugging Face Hub.
        config: The dataset's configuration.
        split: The dataset's split.
        revision: The dataset's branch, tag or commit.
        max_documents: The most documents that are read. None: 100,000 of a dataset, all of other sources.
        text_field: The field of the text, if documents are rows.
        topic_field: The field of the topic, if documents are rows. None: one topic for each file, and one for a dataset.
        length: Tokens of an instance.
        min_cut: The fewest tokens of the first excerpt.
        max_cut: The most tokens of the first excerpt.
        vocab_size: Tokens, the separator included.
    """

    source: str = pydantic.Field(default="stdlib", min_length=1)
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    max_documents: int | None = pydantic.Field(default=None, ge=6)
    text_field: str = "text"
    topic_field: str | None = None
    length: int = pydantic.Field(default=512, ge=2, le=65_536)
    min_cut: int = pydantic.Field(default=256, ge=1)
    max_cut: int = 384
    vocab_size: int = pydantic.Field(default=8000, ge=N_BYTES + 1, le=1 << 20)

    @pydantic.model_validator(mode="after")
    def _cuts_fit(self) -> Self:
        if self.min_cut > self.max_cut:
            raise ValueError(f"min_cut ({self.min_cut}) is above max_cut ({self.max_cut})")
        if self.max_cut >= self.length:
            raise ValueError(
                f"max_cut ({self.max_cut}) must be below length ({self.length}): the second excerpt would be empty"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _options_belong_to_the_source(self) -> Self:
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
        """The source as a path, if it is one: it exists, or it looks like a path. Else None.

        Raises:
            ValueError: The source cannot be a path, and cannot be anything else.
        """
        try:
            path = Path(self.source).expanduser()
            there = path.exists()
        except (OSError, RuntimeError) as error:  # e.g. a name that is too long, or an unknown user
            raise ValueError(f"source '{self.source[:80]}': {getattr(error, 'strerror', None) or error}") from None
        looks = self.source.startswith((".", "/", "~")) or path.suffix.lower() in SUFFIXES
        known = self.source == "stdlib" or self.source in PRESETS
        return path if looks or (not known and there) else None


class TextMixture(task.Task):
    """Two excerpts of text in one sequence; see the module."""

    Parameters = TextMixtureParameters
    version = 1
    main_score = "nll"
    scores = ("nll", "nll_behind_cut", "token_accuracy")
    group_scores: ClassVar[dict[str, tuple[str, str]]] = {"nll_behind_cut": ("nll", "behind_cut")}
    progress_label = "tokens after the switch"
    knows_truth = False
    portable = False
    parameters: TextMixtureParameters

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
            return Files(p.path, p.text_field, p.topic_field)
        preset = PRESETS.get(p.source)
        name, config = (preset.dataset, p.config or preset.config) if preset else (p.source, p.config)
        limit = p.max_documents or DEFAULT_LIMIT
        return HubDataset(name, config, p.split, p.revision, p.text_field, p.topic_field, limit)

    def source_name(self) -> str:
        """The name of the text."""
        return self.corpus.source.name

    def source_digest(self) -> str:
        """SHA-256 of what decides the tokens."""
        return self.corpus.digest

    @cached_property
    def io(self) -> task.TokenIO:
        """Byte pairs, and the separator as the last token, which is in no text.

        If the text has too few pairs, the tokens before the separator are unused.
        """
        p, names = self.parameters, self.corpus.bpe.names
        unused = tuple(f"<unused-{i}>" for i in range(len(names), p.vocab_size - 1))
        return task.TokenIO(
            vocab_size=p.vocab_size,
            separator=p.vocab_size - 1,
            max_length=p.length,
            names=(*names, *unused, "<separator>"),
        )

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The names of the topics that `truth["topic"]` numbers."""
        return self.corpus.index.topics

    def encode(self, text: str) -> IntArray:
        """The tokens (L,) of a text."""
        return self.corpus.bpe.encode([text])[0].astype(np.int64)

    def decode(self, tokens: IntArray) -> str:
        """The text of tokens (L,). The separator and unused tokens are left out."""
        known = self.corpus.bpe.size
        return self.corpus.bpe.decode(token for token in tokens.tolist() if token < known)

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. Every split draws from its own documents, every instance from its own stream.

        Documents that are too short for an excerpt are left out. The first document is uniform over the rest, the second uniform
        over those of other topics. Windows are uniform too.

        Raises:
            UserError: The split has fewer than two documents that are long enough.
        """
        p, n, index, packed = self.parameters, splits.size(split), self.corpus.index, self.corpus.packed
        chosen = self._long_enough(split)
        topic = index.topic[chosen]
        starts, lengths = packed.starts[:-1][chosen], np.diff(packed.starts)[chosen]
        tokens = np.empty((n, p.length), smallest_integer_type(p.vocab_size - 1))
        documents, cuts = np.empty((n, 2), np.int32), np.empty(n, np.int32)
        blocks = np.searchsorted(topic, topic, "left"), np.searchsorted(topic, topic, "right")
        # With one topic the second document is any other one: a block is then one document.
        if topic[0] == topic[-1]:
            blocks = np.arange(len(chosen)), np.arange(1, len(chosen) + 1)
        ranges = p.min_cut, p.max_cut
        text, made = (packed.tokens, starts, lengths, *blocks), (documents, cuts, tokens)
        threads.share(_sample, n, splits.seed, splits.first(split), ranges, *text, *made)
        truth = {"cut": cuts, "topic": topic[documents], "document": chosen[documents].astype(np.int32)}
        return Instances.unpadded(tokens, np.ones(tokens.shape, np.bool_), f"text_mixture/{self.version}", truth)

    def _long_enough(self, split: str) -> IntArray:
        """The documents of a split that are long enough for both excerpts with any cut, sorted by topic.

        So the cut tells nothing about the documents.
        """
        p, index = self.parameters, self.corpus.index
        least = max(p.max_cut, p.length - p.min_cut)
        lengths = np.diff(self.corpus.packed.starts)
        found = np.flatnonzero(index.of_split(split) & (lengths >= least))
        if len(found) < 2:
            raise UserError(
                f"{index.source}: {len(found)} of the {int(index.of_split(split).sum())} documents for {split} have {least} "
                "tokens or more, but an instance needs two: take more text, or a smaller length and cut"
            )
        return found[np.argsort(index.topic[found], kind="stable")]

    def truth(self, instances: Instances) -> NoReturn:
        """Raises an error: the true distribution of text is unknown.

        Raises:
            UserError: Always.
        """
        raise UserError("text_mixture: the true distribution of text is unknown")

    def identities(self, instances: Instances) -> list[bytes]:
        """The two documents of each instance, so that a document that two splits share is found."""
        return [self.corpus.index.identity[d].tobytes() for d in instances.truth["document"].ravel()]

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`behind_cut`: the second excerpt, after the switch."""
        return {"behind_cut": self.progress(instances) >= 0}

    def progress(self, instances: Instances) -> IntArray:
        """The number of tokens after the switch and before a position; -1 in the first excerpt."""
        at = np.arange(instances.tokens.shape[1]) - instances.truth["cut"][:, None]
        return np.maximum(at, -1)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds five numbers.

        `documents` and `topics` are how many occur, `mean_cut` is the mean cut, and `characters_a_token` the mean number of
        characters. `unigram_nats` is the mean NLL (nats) of a model that knows the training text's frequencies, plus one.
        """
        flat = instances.tokens.ravel()
        characters = np.append(self.corpus.bpe.characters, np.zeros(self.parameters.vocab_size))
        counts = self.corpus.frequencies + 1.0
        nats = np.log(counts.sum()) - np.log(counts)
        return super().statistics(instances) | {
            "documents": len(np.unique(instances.truth["document"])),
            "topics": len(np.unique(instances.truth["topic"])),
            "mean_cut": float(instances.truth["cut"].mean()),
            "characters_a_token": float(characters[flat].mean()),
            "unigram_nats": float(nats[flat].mean()),
        }

    def show(self, instances: Instances, index: int) -> Group:
        """The text of both excerpts, with topic and document."""
        cut, row = int(instances.truth["cut"][index]), instances.tokens[index]
        names, parts = self.corpus.index.names, []
        for place, tokens in enumerate((row[:cut], row[cut:])):
            topic = self.topic_names[instances.truth["topic"][index, place]]
            document = names[instances.truth["document"][index, place]]
            title = f"excerpt {place + 1}: topic {topic}, document {document}, {len(tokens)} tokens"
            parts += [Text(_printable(title), style="bold"), Text(), Text(_printable(self.decode(tokens)))]
            if not place:
                mark = f" cut before token {cut} "
                parts += [Text(), Text(mark.center(72, "─"), style="red"), Text()]
        return Group(*parts)


def _printable(text: str) -> str:
    """The text without characters that would move a terminal's cursor or change its colour."""
    text = text.expandtabs(4)
    return "".join(c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


@njit(cache=True, nogil=True)
def _sample(  # type: ignore[no-untyped-def]
    begin, end, seed, start, ranges, text, starts, lengths, block_starts, block_ends, documents, cuts, tokens
):
    """Fills documents (N, 2), cuts (N,) and tokens (N, L). Instance n is number start + n of the seed's stream.

    Args:
        begin: The first instance to fill.
        end: The instance after the last.
        seed: The seed of the stream.
        start: The place of instance 0 in the stream.
        ranges: The smallest and the largest cut.
        text: (T,) the tokens of all documents.
        starts: (D,) where each document begins in the text.
        lengths: (D,) tokens of each document.
        block_starts: (D,) for each first document, the first document that the second one must not be.
        block_ends: (D,) the end of these documents.
        documents: (N, 2) is filled with both documents.
        cuts: (N,) is filled with the tokens of the first excerpt.
        tokens: (N, L) is filled with the tokens.
    """
    for n in range(begin, end):
        rng = stream(seed, _EXCERPTS, start + n)
        cut = between(rng, ranges[0], ranges[1])
        one = below(rng, len(starts))
        other = below(rng, len(starts) - (block_ends[one] - block_starts[one]))
        if other >= block_starts[one]:
            other += block_ends[one] - block_starts[one]
        cuts[n], documents[n, 0], documents[n, 1] = cut, one, other
        at = 0
        for document, size in ((one, cut), (other, tokens.shape[1] - cut)):
            window = starts[document] + below(rng, lengths[document] - size + 1)
            for i in range(size):
                tokens[n, at + i] = text[window + i]
            at += size
