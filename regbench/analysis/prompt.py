"""Prompts: from a file to a task's tokens, and back."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from regbench.tasks.base import IO, TokenIO, VectorIO
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError, nearest

MANY = 64
"""Of a task with more tokens than this, an error line does not list them all."""


@runtime_checkable
class Encodes(Protocol):
    """A task of written text, which makes tokens of it itself."""

    def encode(self, text: str) -> IntArray:
        """(c,): the tokens of a text."""

    def decode(self, tokens: IntArray) -> str:
        """The text of tokens, (c,)."""


def read_prompt(path: str | Path, io: IO, coder: Encodes | None = None) -> Tensor:
    """The prompt in a text file: (c,) int64, or of a task of vectors (c, D_in) float32.

    Tokens are written by their names: side by side where each is one character (white space between them is skipped), else with
    white space between them. A vector is a line of numbers. With a coder the file is plain text, but for the line breaks at its
    end.

    Raises:
        UserError: there is no such file, nothing is in it, or something that is no token of the task.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the prompt {path}: {getattr(error, 'strerror', None) or error}") from None
    if not text.strip():
        raise UserError(f"the prompt {path} is empty: write there what the model is to be specialised to")
    if isinstance(io, VectorIO):
        return _vectors(text, io, str(path))
    if coder is not None:
        return torch.from_numpy(np.asarray(coder.encode(text.rstrip("\r\n")), dtype=np.int64))
    return _named(text, io, str(path))


def _named(text: str, io: TokenIO, path: str) -> Tensor:
    single = all(len(name) == 1 for name in io.names)
    words = [c for c in text if not c.isspace()] if single else text.split()
    number = {name: i for i, name in enumerate(io.names)}
    for place, word in enumerate(words):
        if word not in number:
            known = io.names if len(io.names) <= MANY else difflib.get_close_matches(word, io.names, n=1)
            raise UserError(f"{path}: '{word}', number {place + 1}, is no token of the task{nearest(word, known)}")
    return torch.tensor([number[word] for word in words], dtype=torch.int64)


def write_tokens(tokens: Sequence[int], names: Sequence[str], coder: Encodes | None = None) -> str:
    """Tokens as `read_prompt` reads them."""
    if coder is not None:
        return coder.decode(np.asarray(tokens, dtype=np.int64))
    between = "" if all(len(name) == 1 for name in names) else " "
    return between.join(names[token] for token in tokens)


def _vectors(text: str, io: VectorIO, path: str) -> Tensor:
    rows = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        try:
            row = [float(word) for word in line.replace(",", " ").split()]
        except ValueError:
            raise UserError(f"{path}: vector {number} is not made of numbers") from None
        # As the model reads it: what is finite here may be past the largest number of 32 bits.
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.array(row, dtype=np.float32)).all()
        if len(row) != io.d_in or not finite:
            raise UserError(f"{path}: vector {number} is not {io.d_in} finite numbers of at most 3e38")
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, io.d_in)
