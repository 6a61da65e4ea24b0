"""What every baseline of strings of symbols demands of its vocabulary."""

from __future__ import annotations

import numpy as np

from regbench.utils.errors import UserError


def check_vocabulary(vocab_size: int, separator: int) -> None:
    """The separator is one of the tokens, and there is a symbol besides it.

    Raises:
        UserError: otherwise.
    """
    check_at_least("vocab_size", vocab_size, 2)
    _check_integer("separator", separator)
    if not 0 <= separator < vocab_size:
        raise UserError(f"separator {separator} is outside the vocabulary [0, {vocab_size})")


def check_at_least(name: str, value: int, least: int) -> None:
    """`value` is an integer not below `least`.

    Raises:
        UserError: otherwise.
    """
    _check_integer(name, value)
    if value < least:
        raise UserError(f"{name} must be at least {least}, not {value}")


def _check_integer(name: str, value: object) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise UserError(f"{name} must be an integer, not {value!r}")
