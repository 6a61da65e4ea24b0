"""Errors that the user can mend: one line that names what was wrong and the nearest right thing."""

from __future__ import annotations

import contextlib
import difflib
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pydantic

_NOT_THEIRS = ("site-packages", f"{Path(__file__).parents[1]}{os.sep}")
"""Parts of the paths of code that is not the user's own: installed packages and regbench itself."""

_MANY_FAULTS = 1000


class UserError(Exception):
    """The input was wrong. The message is one line; the command line prints it and exits with code 2."""


class Unavailable(UserError):
    """A device, a file or a text is not here now, or is another than it was. Another time the same input may be right."""


def escaped(text: str) -> str:
    r"""`text` with an escape such as \x1b for each character that a terminal would not show as it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` has the initials of, looks like a misspelling of, or is one word of; None where there is none.

    >>> [closest(name, ["learning_rate", "gradient_clip"]) for name in ("lr", "lerning_rate", "clip")]
    ['learning_rate', 'learning_rate', 'gradient_clip']
    """
    name, names = str(name), sorted(known)  # a caller of a function may give something else
    initials = [one for one in names if len(name) > 1 and name == "".join(word[:1] for word in one.split("_"))]
    alike = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    words = [one for one in names if name in one.split("_")]
    return next((found[0] for found in (initials, alike, words) if len(found) == 1), None)


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint to end an error line with: the closest known name; or `otherwise` and each of them once where none is close.

    >>> nearest("manba", ["lstm", "mamba"])
    "; did you mean 'mamba'?"
    """
    names = sorted(set(known))
    close = closest(name, names)
    if close is not None:
        return f"; did you mean '{close}'?"
    return f"{otherwise}; known: {', '.join(names)}" if names else otherwise


def describe_validation(error: pydantic.ValidationError, what: str, known: Iterable[str]) -> str:
    """The first fault pydantic found, as one line about `what`, e.g. an option or a file. An unknown key comes before all others.

    A misspelt key is also one that is missing. Of very many faults only the number is given, to save memory.
    """
    if error.error_count() > _MANY_FAULTS:
        return f"{what}: {error.error_count():,} values are not of the schema"
    faults = error.errors(include_url=False)
    fault = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{what}: unknown key '{where}'{nearest(where.rsplit('.', 1)[-1], known)}"
    if fault["type"] == "missing":
        return f"{what}: '{where}' is missing"
    text = fault["msg"].removeprefix("Value error, ")
    given = f" (given {fault['input']!r})" if isinstance(fault["input"], str | int | float | bool) else ""
    return f"{what}: {where}: {text[0].lower()}{text[1:]}{given}" if where else f"{what}: {text}"


@contextlib.contextmanager
def explain_validation(
    what: str, known: Iterable[str], raised: Callable[[str], UserError] = UserError
) -> Iterator[None]:
    """Turns what pydantic finds wrong inside into one line; see `describe_validation`."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise raised(describe_validation(error, what, known)) from None


def blame(error: BaseException) -> str:
    """Tells an exception in one line: the nearest place outside regbench and installed packages, its type, its first line.

    Of what pydantic finds, the first line says only how many faults there are. The first fault is told instead.
    """
    lines = str(error).strip().splitlines()
    if isinstance(error, pydantic.ValidationError):
        lines = [describe_validation(error, error.title, ())]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith("<") and not any(p in f.filename for p in _NOT_THEIRS)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}: {text}" if theirs else text


@contextlib.contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turns what a user's own code raises into one line: `what`, the place, and the error. A UserError passes as it is."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} {blame(error)}") from error
