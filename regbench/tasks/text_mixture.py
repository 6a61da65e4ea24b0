"""Mixed text: two excerpts of two documents, one behind the other, with nothing to mark where the first ends (CGT section 4.1).

An instance is a random window of one document up to a random cut, then a random window of another document, of another topic
where there are more than one; here with 16 tokens, cut behind the eighth:

    self . _ loop = loop Ċ ĠĠĠ | The Ġ`` del `` Ġstatement Ġdeletes Ġa Ġname

A predictor that learns in context uses what the first excerpt told it, sees that the text has changed, and lets go of it: so
nats are shown by distance behind the cut. Nobody knows the true distribution of text, so there is none to compare with.

The text is anything: the standard library of the Python that runs (the default; topics are its modules), local files, or a
dataset of the Hugging Face Hub. Tokens are byte pairs learned from the training documents. Documents are divided among the
splits, without those that repeat others in more than a tenth of their text, so that what is tested was not trained on. Where
text or Python differ, so do instances: a fingerprint says which they were. The task is that of *Contextually Guided
Transformers via Low-Rank Adaptation* (Zhmoginov, Lee, Vladymyrov, Sandler 2025, arXiv:2506.05672), here CGT, whose excerpts
are of c4 and wikipedia and begin where their documents do.
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
    """Where the text comes from, and how it is cut; the defaults for the latter are the paper's.

    source: "stdlib"; a file or folder of .txt, .md, .jsonl or .parquet; "c4", "wikipedia", or any dataset's name on the Hugging
    Face Hub, and then its config, split, revision and max_documents (None: 100,000).  text_field, topic_field: what they are
    called where a document is a row; topic_field None: one topic for a file, and one for a dataset.  length: tokens of an
    instance.  min_cut, max_cut: the first excerpt's tokens, both included.  vocab_size: tokens with the separator.
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
                f"max_cut ({self.max_cut}) leaves nothing of length ({self.length}) for the second excerpt"
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
        """The source as a path, where it is one: it is there, or it looks like one."""
        try:
            path = Path(self.source).expanduser()
            there = path.exists()
        except (OSError, RuntimeError) as error:  # a name too long, a user that does not exist
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
    progress_label = "tokens behind the cut"
    knows_truth = False
    portable = False
    parameters: TextMixtureParameters

    @cached_property
    def corpus(self) -> Corpus:
        """The text, its encoding and its tokens."""
        return Corpus(self._source(), self.parameters.vocab_size - 1, self.parameters.max_documents)

    def _source(self) -> Source:
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
        return self.corpus.source.name

    def source_digest(self) -> str:
        return self.corpus.digest

    @cached_property
    def io(self) -> task.TokenIO:
        """The separator is the last token and never in the text. Where text has too few pairs, tokens before it are unused."""
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
        """What the numbers of `truth["topic"]` stand for."""
        return self.corpus.index.topics

    def encode(self, text: str) -> IntArray:
        """The tokens of any text, (L,)."""
        return self.corpus.bpe.encode([text])[0].astype(np.int64)

    def decode(self, tokens: IntArray) -> str:
        """The text of tokens (L,); the separator, and tokens that are unused, are nothing."""
        known = self.corpus.bpe.size
        return self.corpus.bpe.decode(token for token in tokens.tolist() if token < known)

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """Every split draws from its own documents, and every instance from a stream of its own.

        Documents that could fill no excerpt are left out: were they joined with others, there would be cuts that nobody knows of.
        Each of the rest is as likely as any other, but that the second is of another topic; so is each window of it.

        Raises:
            UserError: the split has fewer than two such documents.
        """
        order = ("test", "validation", "train")
        first = sum(splits.size(name) for name in order[: order.index(split)])
        p, n, index, packed = self.parameters, splits.size(split), self.corpus.index, self.corpus.packed
        chosen = self._long_enough(split)
        topic = index.topic[chosen]
        starts, lengths = packed.starts[:-1][chosen], np.diff(packed.starts)[chosen]
        tokens = np.empty((n, p.length), smallest_integer_type(p.vocab_size - 1))
        documents, cuts = np.empty((n, 2), np.int32), np.empty(n, np.int32)
        blocks = np.searchsorted(topic, topic, "left"), np.searchsorted(topic, topic, "right")
        # With one topic a document's block is itself: the second is then another document.
        if topic[0] == topic[-1]:
            blocks = np.arange(len(chosen)), np.arange(1, len(chosen) + 1)
        ranges = p.min_cut, p.max_cut
        threads.share(
            _sample, n, splits.seed, first, ranges, packed.tokens, starts, lengths, *blocks, documents, cuts, tokens
        )
        return Instances(
            tokens,
            np.full(n, p.length, np.int32),
            np.ones(tokens.shape, np.bool_),
            f"text_mixture/{self.version}",
            truth={"cut": cuts, "topic": topic[documents], "document": chosen[documents].astype(np.int32)},
        )

    def _long_enough(self, split: str) -> IntArray:
        """The split's documents that can stand in either place whatever the cut, so that it says nothing of them; by topic."""
        p, index = self.parameters, self.corpus.index
        least = max(p.max_cut, p.length - p.min_cut)
        lengths = np.diff(self.corpus.packed.starts)
        found = np.flatnonzero(index.of_split(split) & (lengths >= least))
        if len(found) < 2:
            raise UserError(
                f"{index.source}: {len(found)} of the {int(index.of_split(split).sum())} documents for {split} have {least} "
                "tokens or more, and excerpts come from two: take more text, or a smaller length and cut"
            )
        return found[np.argsort(index.topic[found], kind="stable")]

    def truth(self, instances: Instances) -> NoReturn:
        raise UserError("text_mixture: nobody knows the true distribution of text")

    def identities(self, instances: Instances) -> list[bytes]:
        """Its two documents: so a document shared by two splits is seen, whatever it stands beside."""
        return [self.corpus.index.identity[d].tobytes() for d in instances.truth["document"].ravel()]

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`behind_cut`: the second excerpt."""
        return {"behind_cut": self.progress(instances) >= 0}

    def progress(self, instances: Instances) -> IntArray:
        """How many tokens of its excerpt stand before a position of the second; -1 in the first."""
        at = np.arange(instances.tokens.shape[1]) - instances.truth["cut"][:, None]
        return np.maximum(at, -1)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """`documents`, `topics`: drawn from at least once.  `unigram_nats`: a token's, for who knows the training text's
        frequencies (one added to each) and nothing else.  `characters_a_token`: of this text.
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
    """With nothing in it that would move a terminal's cursor or colour."""
    text = text.expandtabs(4)
    return "".join(c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


@njit(cache=True, nogil=True)
def _sample(  # type: ignore[no-untyped-def]
    begin, end, seed, start, ranges, text, starts, lengths, block_starts, block_ends, documents, cuts, tokens
):
    """Fills documents (N, 2), cuts (N,) and tokens (N, L); instance n is number start + n of the seed's stream.

    starts, lengths: (D,) of each document in `text`.  block_starts, block_ends: (D,) the run of documents that the second one
    must not come from, given the first.
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
