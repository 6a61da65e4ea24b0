"""Text of single documents: every instance is a window of one document.

An instance is a random window of `length` tokens of a random document. Documents are divided among the splits, so a model is
tested on documents that it has not seen. The longer its prompt, the more it can know of the document: names, style, subject.
The true distribution of text is unknown: this task has no truth and no oracle.

Where text may come from, and how it becomes tokens, is in `_corpus.py`. Language modelling of single documents is the setting of
*Trainable Transformer in Transformer* (Panigrahi, Malladi, Xia, Arora 2023, arXiv:2307.01189), Table 1, on other text.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from regbench.data.instances import Instances
from regbench.data.rng import below, stream
from regbench.tasks import _corpus
from regbench.tasks import base as task
from regbench.utils import threads

_WINDOWS = 24  # the stream's purpose


class TextParameters(_corpus.Parameters):
    """The parameters of `text`: those of all tasks of text."""


class Text(_corpus.CorpusTask):
    """A window of one document in each instance; see the module."""

    Parameters = TextParameters
    version = 1
    scores = ("nll", "token_accuracy")
    parameters: TextParameters

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. Every split draws from its own documents, every instance from its own stream.

        Documents shorter than a window are left out. Documents are uniform over the rest, windows uniform over a document.
        """
        p, n, index = self.parameters, splits.size(split), self.corpus.index
        chosen = self.documents_of(split, p.length, 1 if split == "train" else 2)
        tokens, documents = np.empty((n, p.length), np.min_scalar_type(p.vocab_size - 1)), np.empty(n, np.int32)
        threads.share(_sample, n, splits.seed, splits.first(split), self.packed(chosen), documents, tokens)
        truth = {"topic": index.topic[chosen][documents], "document": chosen[documents].astype(np.int32)}
        return Instances.unpadded(tokens, np.ones(tokens.shape, np.bool_), f"text/{self.version}", truth)

    def show(self, instances: Instances, index: int) -> str:
        """The text of the window, with topic and document."""
        topic = self.topic_names[instances.truth["topic"][index]]
        document = self.corpus.index.names[instances.truth["document"][index]]
        text = self.decode(instances.tokens[index])
        return _corpus.printable(f"topic {topic}, document {document}, {instances.tokens.shape[1]} tokens\n\n{text}")


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, start, corpus, documents, tokens):  # type: ignore[no-untyped-def]
    """Fills documents (N,) and tokens (N, L). Instance n is number start + n of the seed's stream."""
    text, starts, lengths, _, _ = corpus
    for n in range(begin, end):
        rng = stream(seed, _WINDOWS, start + n)
        one = below(rng, len(starts))
        window = starts[one] + below(rng, lengths[one] - tokens.shape[1] + 1)
        documents[n] = one
        for i in range(tokens.shape[1]):
            tokens[n, i] = text[window + i]
