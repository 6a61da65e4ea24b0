"""Errors that are the caller's to mend: one line that names what was wrong and the nearest right thing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import pydantic


class UserError(Exception):
    """The input was wrong. The message is one line; the command line prints it and exits with code 2."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` looks like a misspelling of, if any."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)), None)


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint to end an error line with: the closest known name; or `otherwise` and all of them where none is close.

    >>> nearest("manba", ["lstm", "mamba"])
    "; did you mean 'mamba'?"
    """
    names = sorted(known)
    close = closest(name, names)
    if close is not None:
        return f"; did you mean '{close}'?"
    return f"{otherwise}; known: {', '.join(names)}" if names else otherwise


def describe_validation(error: pydantic.ValidationError, what: str, known: Iterable[str]) -> str:
    """The first fault pydantic found, as one line about `what`, e.g. an option or a field of a track."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{what}: unknown key '{where}'{nearest(where.rsplit('.', 1)[-1], known)}"
    if fault["type"] == "missing":
        return f"{what}: '{where}' is missing"
    text = fault["msg"].removeprefix("Value error, ")
    given = f" (given {fault['input']!r})" if isinstance(fault["input"], str | int | float | bool) else ""
    return f"{what}: {where}: {text[0].lower()}{text[1:]}{given}" if where else f"{what}: {text}"
