"""Byte-level byte-pair encoding (Sennrich, Haddow, Birch 2015), trained and applied by the library `tokenizers`.

The vocabulary depends on how often each word occurs, so it is the same for any order of the documents and in any process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_BYTES = 256
"""The size of the smallest vocabulary: every byte has a token, so no text is unknown."""
_AT_ONCE = 256  # documents that are handed to the library together

# A run keeps to its share of the cores. The library reads this each time it might start threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class BPE:
    """A trained encoding: text to tokens and back, without loss. `text` is the whole encoding as JSON."""

    def __init__(self, text: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_str(text)
        self.text = text
        self.size: int = self._tokenizer.get_vocab_size()
        """The number of tokens. It is smaller than what was asked for if the text has too few pairs."""

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> BPE:
        """Learns an encoding of at most `size` tokens. Its merges are the most frequent pairs."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            special_tokens=[],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        tokenizer.train_from_iterator(texts, trainer=trainer)
        return cls(tokenizer.to_str())

    def encode(self, texts: Sequence[str]) -> Iterator[NDArray[Any]]:
        """The tokens of each text, (L,) in the smallest unsigned integer type."""
        kind, waiting = np.min_scalar_type(self.size - 1), iter(texts)
        while some := list(islice(waiting, _AT_ONCE)):
            for one in self._tokenizer.encode_batch_fast(some):
                yield np.array(one.ids, kind)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens. Bytes that are not UTF-8, e.g. half a character, become U+FFFD."""
        text: str = self._tokenizer.decode(list(tokens))
        return text

    @cached_property
    def names(self) -> tuple[str, ...]:
        """How each token is shown, as in other tools: Ġ stands for a space, Ċ for a new line."""
        return tuple(map(self._tokenizer.id_to_token, range(self.size)))
