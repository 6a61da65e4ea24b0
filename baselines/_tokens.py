"""What baselines of tokens share: checks of their arguments, and the order of their work."""

from __future__ import annotations

import numpy as np

from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError


def check_vocabulary(vocab_size: int, separator: int) -> None:
    """Checks that the separator is one of the tokens, and that there is another token.

    Raises:
        UserError: It is not.
    """
    check_at_least("vocab_size", vocab_size, 2)
    _check_integer("separator", separator)
    if not 0 <= separator < vocab_size:
        raise UserError(f"separator {separator} is outside the vocabulary [0, {vocab_size})")


def check_at_least(name: str, value: int, least: int) -> None:
    """Checks that the argument `name` is an integer of at least `least`.

    Raises:
        UserError: It is not.
    """
    _check_integer(name, value)
    if value < least:
        raise UserError(f"{name} must be at least {least}, not {value}")


def _check_integer(name: str, value: object) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise UserError(f"{name} must be an integer, not {value!r}")


def longest_first(tokens: IntArray, separator: int) -> list[int]:
    """The rows of tokens (B, L), those with the most symbols first, so that no thread begins a long row at the end."""
    order: list[int] = np.argsort(-(tokens != separator).sum(-1), kind="stable").tolist()
    return order
