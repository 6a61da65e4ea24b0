"""Mixed text: an excerpt of one document, then an excerpt of another, with no mark at the switch (CGT section 4.1).

An instance is a random window of one document up to a random cut, then a random window of another document. If there are several
topics, the two documents have different topics. For example 16 tokens with the cut after the eighth:

    self . _ loop = loop Ċ ĠĠĠ | The Ġ`` del `` Ġstatement Ġdeletes Ġa Ġname

With `excerpts` 3 a third excerpt follows, of another topic than the second. Then the switches are near a third and two thirds of
the length (2024, Fig. 12b). The third may be of the first document again. With few documents it often is: with two it always is.

A predictor that learns in context uses the first excerpt, notices that the text has changed, and drops what it has learned from
it. So the NLL is shown by the distance after the switch. The true distribution of text is unknown: this task has no truth and no
oracle.

Where text may come from, and how it becomes tokens, is in `_corpus.py`. The task is from
*Contextually Guided Transformers via Low-Rank Adaptation* (Zhmoginov, Lee, Vladymyrov, Sandler 2025, arXiv:2506.05672), here
CGT. Its excerpts come from c4 and wikipedia, and begin where their documents begin. "2024" is its earlier version, *Learning
Fast and Slow*.
"""

from __future__ import annotations

import itertools
from typing import ClassVar, Literal, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, between, stream
from regbench.tasks import _corpus
from regbench.tasks import base as task
from regbench.utils import threads
from regbench.utils.arrays import IntArray

_EXCERPTS = 5  # the stream's purpose


class TextMixtureParameters(_corpus.Parameters):
    """The parameters of `text_mixture`, beside those of all tasks of text. The cuts' defaults are the paper's."""

    min_cut: int = pydantic.Field(default=256, ge=1)  # the fewest tokens of the first excerpt
    max_cut: int = 384  # the most tokens of the first excerpt
    # excerpts of an instance. With 3 the switches are uniform within an eighth of the length around a third and two
    # thirds of it, and the cuts above are not asked for.
    excerpts: Literal[2, 3] = 2

    @pydantic.model_validator(mode="after")
    def _cuts_fit(self) -> Self:
        if self.excerpts == 3:
            given = sorted({"min_cut", "max_cut"} & self.model_fields_set)
            if given:
                raise ValueError(
                    f"{given[0]} is about two excerpts; with three the switches are near a third and two thirds"
                )
            if self.length < 16:
                raise ValueError(f"length ({self.length}) is too short for three excerpts: 16 or more")
            return self
        if self.min_cut > self.max_cut:
            raise ValueError(f"min_cut ({self.min_cut}) is above max_cut ({self.max_cut})")
        if self.max_cut >= self.length:
            raise ValueError(
                f"max_cut ({self.max_cut}) must be below length ({self.length}): the second excerpt would be empty"
            )
        return self

    def ranges(self) -> list[tuple[int, int]]:
        """The first and the last position that each switch can have."""
        if self.excerpts == 2:
            return [(self.min_cut, self.max_cut)]
        near = self.length // 8
        return [(self.length * k // 3 - near, self.length * k // 3 + near) for k in (1, 2)]


class TextMixture(_corpus.CorpusTask):
    """Two or three excerpts of text in one sequence; see the module."""

    Parameters = TextMixtureParameters
    version = 1
    scores = ("nll", "nll_behind_cut", "token_accuracy")
    group_scores: ClassVar[dict[str, tuple[str, ...]]] = {
        "nll_behind_cut": (
            "nll",
            "behind_cut",
            "NLL after the switch (nats)",
            "NLL over what follows the first switch.",
        )
    }
    progress_label = "tokens after the switch"
    parameters: TextMixtureParameters

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. Every split draws from its own documents, every instance from its own stream.

        Documents that are too short for an excerpt are left out. The first document is uniform over the rest, the second uniform
        over those of other topics, and so on. Windows are uniform too. The truth has `cut`, the first switch, (N,); with three
        excerpts `second_cut`, (N,); and topic and document of each excerpt, (N, E).
        """
        p, n, index = self.parameters, splits.size(split), self.corpus.index
        # Long enough for each excerpt with any cut. So the cut tells nothing about the documents.
        ranges = p.ranges()
        edges = [(0, 0), *ranges, (p.length, p.length)]
        chosen = self.documents_of(split, max(end[1] - start[0] for start, end in itertools.pairwise(edges)), 2)
        topic = index.topic[chosen]
        tokens = np.empty((n, p.length), np.min_scalar_type(p.vocab_size - 1))
        documents, cuts = np.empty((n, p.excerpts), np.int32), np.empty((n, p.excerpts - 1), np.int32)
        made = (documents, cuts, tokens)
        threads.share(_sample, n, splits.seed, splits.first(split), np.array(ranges), self.packed(chosen), *made)
        switches = dict(zip(("cut", "second_cut"), np.ascontiguousarray(cuts.T), strict=False))
        truth = {**switches, "topic": topic[documents], "document": chosen[documents].astype(np.int32)}
        return Instances.unpadded(tokens, np.ones(tokens.shape, np.bool_), f"text_mixture/{self.version}", truth)

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`behind_cut`: the excerpts after the first switch."""
        return {"behind_cut": self.progress(instances) >= 0}

    def progress(self, instances: Instances) -> IntArray:
        """The number of tokens after the last switch and before a position; -1 in the first excerpt."""
        place = np.arange(instances.tokens.shape[1])
        at = np.maximum(place - instances.truth["cut"][:, None], -1)
        if "second_cut" in instances.truth:
            late = place - instances.truth["second_cut"][:, None]
            at = np.where(late >= 0, late, at)
        return at

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds `mean_cut`, the mean tokens of the first excerpt."""
        return super().statistics(instances) | {"mean_cut": float(instances.truth["cut"].mean())}

    def show(self, instances: Instances, index: int) -> str:
        """The text of all excerpts, with topic and document."""
        row, names, parts = instances.tokens[index], self.corpus.index.names, []
        cuts = [int(instances.truth[k][index]) for k in ("cut", "second_cut") if k in instances.truth]
        for place, (begin, tokens) in enumerate(zip([0, *cuts], np.split(row, cuts), strict=True)):
            topic = self.topic_names[instances.truth["topic"][index, place]]
            document = names[instances.truth["document"][index, place]]
            title = f"excerpt {place + 1}: topic {topic}, document {document}, from token {begin} on"
            parts.append(f"{title}\n\n{self.decode(tokens)}")
        return _corpus.printable("\n\n".join(parts))


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, start, ranges, corpus, documents, cuts, tokens):  # type: ignore[no-untyped-def]
    """Fills documents (N, E), cuts (N, E - 1) and tokens (N, L). Instance n is number start + n of the seed's stream.

    `ranges` (E - 1, 2) are the smallest and the largest of each cut. The corpus is as `CorpusTask.packed` gives it.
    """
    text, starts, lengths, block_starts, block_ends = corpus
    for n in range(begin, end):
        rng = stream(seed, _EXCERPTS, start + n)
        for k in range(len(ranges)):
            cuts[n, k] = between(rng, ranges[k, 0], ranges[k, 1])
        one = below(rng, len(starts))
        documents[n, 0] = one
        for k in range(len(ranges)):
            other = below(rng, len(starts) - (block_ends[one] - block_starts[one]))
            if other >= block_starts[one]:
                other += block_ends[one] - block_starts[one]
            one = other
            documents[n, k + 1] = one
        at = 0
        for k in range(documents.shape[1]):
            document = documents[n, k]
            size = (cuts[n, k] if k < len(ranges) else tokens.shape[1]) - at
            window = starts[document] + below(rng, lengths[document] - size + 1)
            for i in range(size):
                tokens[n, at + i] = text[window + i]
            at += size
