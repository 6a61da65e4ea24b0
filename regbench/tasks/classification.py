"""Few-shot classification of text: of which of two documents is an excerpt?

A problem is two documents and two label tokens. If there are several topics, the documents have different topics. An exemplar is
an excerpt of one of the documents, the separator, and the label of that document. The prompt is some exemplars. Then comes the
query, an excerpt whose label is to be predicted. For example two exemplars with excerpts of four tokens, and a query:

    . append ( item  <separator> Ġthe   raise Value Error (  <separator> Ġif   . pop ( )  <separator> Ġthe

Excerpts of exemplars come from the first half of a document, those of queries from the second half. Labels are frequent tokens of
the text, drawn anew for each problem, so they have no meaning outside of it. The classes of exemplars are drawn one by one. The
queries of a problem are of both classes equally often, so chance is 50 % for who knows both labels.

Several queries share the exemplars of their problem; each query is an instance. In the training split every instance is a problem
of its own. All labels are scored, and the label of the query gives the main score. The true distribution of a label is unknown:
this task has no truth and no oracle.

Where text may come from, and how it becomes tokens, is in `_corpus.py`. Few-shot classification is the setting of
*Trainable Transformer in Transformer* (Panigrahi, Malladi, Xia, Arora 2023, arXiv:2307.01189), section 5.1 and Table 2, with
other data.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, choose, stream
from regbench.tasks import _corpus
from regbench.tasks import base as task
from regbench.utils import threads
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError

_PROBLEMS, _QUERIES = 25, 26  # the streams' purposes
_SHORTEST = 8  # excerpts that a document must have room for, so that those of a problem differ


class ClassificationParameters(_corpus.SourceParameters):
    """The parameters of `classification`, beside those of the text."""

    n_exemplars: int = pydantic.Field(default=32, ge=1, le=1024)  # exemplars of a problem
    excerpt: int = pydantic.Field(default=32, ge=1, le=1024)  # tokens of an excerpt
    # queries that share the exemplars of a problem, in the validation and test splits
    n_queries: int = pydantic.Field(default=20, ge=1, le=1024)
    # labels are drawn from so many of the most frequent tokens of the training documents
    n_label_tokens: int = pydantic.Field(default=100, ge=2)

    @property
    def max_length(self) -> int:
        """The tokens of an instance: exemplars and query."""
        return (self.n_exemplars + 1) * self.width

    @property
    def width(self) -> int:
        """The tokens of an exemplar: an excerpt, the separator and a label."""
        return self.excerpt + 2


class Classification(_corpus.CorpusTask):
    """Exemplars of two classes of text, then a query; see the module."""

    Parameters = ClassificationParameters
    version = 1
    main_score = "label_accuracy"
    scores = ("label_accuracy", "nll", "token_accuracy")
    group_scores: ClassVar[dict[str, tuple[str, ...]]] = {
        "label_accuracy": (
            "token_accuracy",
            "query_label",
            "accuracy, query",
            "Token accuracy of the label of the query alone (TinT section 5.1).",
        )
    }
    progress_label = "exemplars before"
    parameters: ClassificationParameters

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. Every split draws from its own documents, every problem and query from its own stream.

        Documents with fewer tokens than eight excerpts are left out. The first document is uniform over the rest, the second
        uniform over those of other topics. Excerpts are uniform over their half of a document.
        """
        p, n, index = self.parameters, splits.size(split), self.corpus.index
        chosen = self.documents_of(split, _SHORTEST * p.excerpt, 2)
        topic = index.topic[chosen]
        queries = 1 if split == "train" else p.n_queries
        tokens = np.full((n, p.max_length), self.io.separator, np.min_scalar_type(p.vocab_size - 1))
        problem = np.arange(n, dtype=np.int32) // queries
        documents, labels = np.empty((n, 2), np.int32), np.empty((n, 2), np.int32)
        classes = np.empty((n, p.n_exemplars + 1), np.uint8)
        stream_of = (splits.seed, splits.first(split))
        text = (self.packed(chosen), self.label_tokens())
        made = (documents, labels, classes, tokens)
        threads.share(_sample, int(problem[-1]) + 1, *stream_of, queries, p.excerpt, *text, *made)
        truth: dict[str, NDArray[np.integer]] = {
            "problem": problem,
            "topic": topic[documents],
            "document": chosen[documents].astype(np.int32),
            "labels": labels,
            "classes": classes,
        }
        scored = np.broadcast_to(self.is_label(), tokens.shape).copy()
        return Instances.unpadded(tokens, scored, f"classification/{self.version}", truth)

    def label_tokens(self) -> IntArray:
        """The tokens that labels are drawn from, the most frequent first."""
        counts, wanted = self.corpus.frequencies, self.parameters.n_label_tokens
        if (found := int((counts > 0).sum())) < wanted:
            raise UserError(f"n_label_tokens is {wanted}, but the training documents have {found} different tokens")
        return np.argsort(-counts, kind="stable")[:wanted]

    def is_label(self) -> NDArray[np.bool_]:
        """Which positions are labels, (L,)."""
        p = self.parameters
        return np.arange(p.max_length) % p.width == p.width - 1

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`query_label`: the last position."""
        last = np.arange(instances.tokens.shape[1]) == self.parameters.max_length - 1
        return {"query_label": np.broadcast_to(last, instances.tokens.shape)}

    def progress(self, instances: Instances) -> IntArray:
        """The number of exemplars before a label; -1 at other tokens."""
        at = np.arange(self.parameters.max_length) // self.parameters.width
        return np.broadcast_to(np.where(self.is_label(), at, -1)[: instances.tokens.shape[1]], instances.tokens.shape)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds `problems`, and `first_class`, the share of queries whose label is the problem's first."""
        return super().statistics(instances) | {
            "problems": len(np.unique(instances.truth["problem"])),
            "first_class": float((instances.truth["classes"][:, -1] == 0).mean()),
        }

    def show(self, instances: Instances, index: int) -> str:
        """The text of each exemplar and of the query, with its label."""
        p, row, truth = self.parameters, instances.tokens[index], instances.truth
        names, parts = self.io.names, []
        for each, label in enumerate(truth["labels"][index]):
            topic = self.topic_names[truth["topic"][index, each]]
            document = self.corpus.index.names[truth["document"][index, each]]
            parts.append(f"label {names[label]}: topic {topic}, document {document}")
        for place, one in enumerate(row.reshape(-1, p.width)):
            what = "query" if place == p.n_exemplars else f"exemplar {place + 1}"
            parts.append(f"\n{what}, label {names[one[-1]]}\n{self.decode(one[: p.excerpt])}")
        return _corpus.printable("\n".join(parts))


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, start, queries, excerpt, corpus, candidates, documents, labels, classes, tokens):  # type: ignore[no-untyped-def]
    """Fills documents (N, 2), labels (N, 2), classes (N, E + 1) and tokens (N, L) for the problems from `begin` to `end`.

    The corpus is as `CorpusTask.packed` gives it. Labels are drawn from `candidates` (C,). `classes` are 0 or 1: the document
    that each exemplar and the query are of. The separators stand in `tokens` already.
    """
    text, starts, lengths, block_starts, block_ends = corpus
    width, exemplars = excerpt + 2, classes.shape[1] - 1
    pair, names, of_queries = np.empty(2, np.int64), np.empty(2, np.int64), np.empty(queries, np.int64)
    for problem in range(begin, end):
        first = problem * queries
        rng = stream(seed, _PROBLEMS, start + first)
        pair[0] = below(rng, len(starts))
        pair[1] = below(rng, len(starts) - (block_ends[pair[0]] - block_starts[pair[0]]))
        if pair[1] >= block_starts[pair[0]]:
            pair[1] += block_ends[pair[0]] - block_starts[pair[0]]
        names[0], names[1] = below(rng, len(candidates)), below(rng, len(candidates) - 1)
        names[1] += names[1] >= names[0]
        for place in range(exemplars):
            which = below(rng, 2)
            window = starts[pair[which]] + below(rng, lengths[pair[which]] // 2 - excerpt + 1)
            classes[first, place] = which
            for i in range(excerpt):
                tokens[first, place * width + i] = text[window + i]
            tokens[first, place * width + excerpt + 1] = candidates[names[which]]
        odd = below(rng, 2)  # the class that has one query more, if their number is odd
        for q in range(queries):
            of_queries[q] = (q + odd) % 2
        choose(rng, of_queries, queries, queries)
        for q in range(min(queries, len(tokens) - first)):
            n, which = first + q, of_queries[q]
            own = stream(seed, _QUERIES, start + n)
            half = lengths[pair[which]] // 2
            window = starts[pair[which]] + half + below(own, lengths[pair[which]] - half - excerpt + 1)
            for place in range(exemplars):
                classes[n, place] = classes[first, place]
            for i in range(exemplars * width):
                tokens[n, i] = tokens[first, i]
            classes[n, exemplars] = which
            for i in range(excerpt):
                tokens[n, exemplars * width + i] = text[window + i]
            tokens[n, exemplars * width + excerpt + 1] = candidates[names[which]]
            for each in range(2):
                documents[n, each], labels[n, each] = pair[each], candidates[names[each]]
