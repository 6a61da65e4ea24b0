"""Byte-level byte-pair encoding (Sennrich, Haddow, Birch 2015), trained and applied by the library `tokenizers`.

The library runs on one thread. The vocabulary depends on how often each word occurs, so it is the same for any order of the
documents and in any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import smallest_integer_type
from regbench.utils.arrays import IntArray

N_BYTES = 256
"""The size of the smallest vocabulary: every byte has a token, so no text is unknown."""
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_MOST_KNOWN = 1_000_000  # pieces of text whose tokens are remembered
_LONGEST_KNOWN = 32  # characters of such a piece; longer pieces, e.g. of scripts without spaces, hardly ever repeat
# A piece is white space and what follows it, up to the next space, new line, carriage return or tab. Other white space does not
# end a piece, because libraries disagree about it.
_PIECE = re.compile(r"\s*\S+(?:[^\S \n\r\t]\s*\S+)*(?:[^\S \n\r\t]\s*\Z)?|\s+")
_MARKS = {" ": "Ġ", "\n": "Ċ", "\t": "ĉ"}


class BPE:
    """A trained encoding: text to tokens and back, without loss.

    Args:
        text: The `text` of another BPE.

    Attributes:
        text: The whole encoding as JSON.
        size: The number of tokens. It is smaller than what was asked for if the text has too few pairs.

    Raises:
        ValueError: The text is damaged, or no encoding.
    """

    def __init__(self, text: str) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Any = Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)) from None
        self.text = text
        self.size: int = self._tokenizer.get_vocab_size()
        self._known: dict[str, list[int]] = {}

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> BPE:
        """Learns an encoding. Its merges are the most frequent pairs.

        Args:
            texts: The documents.
            size: The most tokens that it may have, at least 256.
        """
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
        with _one_thread():
            tokenizer.train_from_iterator(texts, trainer=trainer)
        return cls(tokenizer.to_str())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of vocabulary and merges."""
        model = json.loads(self.text)["model"]
        return hashlib.sha256(json.dumps([model["vocab"], model["merges"]], sort_keys=True).encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The tokens of each text, (L,) in the smallest unsigned integer type.

        No token crosses the beginning of white space. So texts are cut there, and a piece that occurs often is encoded once.
        """
        pieces = [_PIECE.findall(text) for text in texts]
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        new = list(dict.fromkeys(piece for cut in pieces for piece in cut if piece not in self._known))
        with _one_thread():
            ids = dict(zip(new, (one.ids for one in self._tokenizer.encode_batch_fast(new)), strict=True))
        self._known.update((piece, tokens) for piece, tokens in ids.items() if len(piece) <= _LONGEST_KNOWN)
        long = {piece: tokens for piece, tokens in ids.items() if len(piece) > _LONGEST_KNOWN}
        kind = smallest_integer_type(self.size - 1)
        known = ((long[piece] if piece in long else self._known[piece] for piece in cut) for cut in pieces)
        return [np.fromiter(chain.from_iterable(tokens), kind) for tokens in known]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens. Bytes that are not UTF-8, e.g. half a character, become U+FFFD."""
        return b"".join(self.token_bytes[token] for token in tokens).decode("utf-8", errors="replace")

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The bytes of each token."""
        byte = _byte_of_character()
        return tuple(
            bytes(byte[character] for character in self._tokenizer.id_to_token(token)) for token in range(self.size)
        )

    @cached_property
    def characters(self) -> IntArray:
        """(size,): the number of characters that begin in each token. Their sum over a text's tokens is the text's length."""
        return np.array([sum(byte & 0xC0 != 0x80 for byte in token) for token in self.token_bytes], np.int64)

    @cached_property
    def names(self) -> tuple[str, ...]:
        r"""How each token is shown: Ġ stands for a space, Ċ for a new line, ĉ for a tab, as in other tools.

        Parts of characters, and what cannot be printed, are written as bytes such as \xe2. Names are unique.
        """
        taken: set[str] = set()
        names = []
        for token in self.token_bytes:
            name = _readable(token)
            if name in taken:
                name = _escaped(token)
            taken.add(name)
            names.append(name)
        return tuple(names)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps the library on one thread. It reads the variable each time it might start threads."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before


def _byte_of_character() -> dict[str, int]:
    """The byte for each character of byte-level encodings.

    These write a byte as the character of that number if it is printable, else as the next free one from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(N_BYTES) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _readable(token: bytes) -> str:
    """A token's name; names of different tokens may be equal."""
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:
        return _escaped(token)
    return "".join(_MARKS.get(c, c if c.isprintable() and not c.isspace() else _escaped(c.encode())) for c in text)


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)
