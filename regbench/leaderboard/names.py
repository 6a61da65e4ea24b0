"""How entries are called: by default from what was set, and never so that a reader takes one for something else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from regbench.config import Config
from regbench.leaderboard.entry import LONGEST_NAME
from regbench.leaderboard.origin import is_built_in, registered
from regbench.results import Result
from regbench.training.options import resolve_training
from regbench.utils import registry

_LOOK_ALIKE = (("rn", "m"), ("vv", "w"), ("cl", "d"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"))
_LONG = 5
"""Letters from which on a name with one letter more, one less, or two swapped is taken for the same."""


def default_name(configuration: Config, result: Result) -> str:
    """The architecture's name and the settings that are not its defaults.

    An example is "gla+ngh-1-2-3+mimetic": `ngh` is `ngram_heads`, and a setting without a value is true. A name that would be too
    long ends with digits of its digest.
    """
    defaults = _defaults(result) if is_built_in(result.architecture) else {}
    parts = [_slug(result.architecture.name)]
    for key, value in configuration.settings.items():
        if key not in defaults or json.dumps(defaults[key]) != json.dumps(value):
            part = "ngh" if key == "ngram_heads" else _slug(key.removeprefix("training."))
            parts.append(part if value is True else f"{part}-{_slug(json.dumps(value))}")
    name = "+".join(parts)
    if len(name) <= LONGEST_NAME:
        return name
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9].rstrip('+.=-')}-{digits}"


def name_faults(name: str, result: Result) -> Iterator[str]:
    """What is wrong with an entry's name.

    An entry of a built-in architecture is called by the architecture's name and what distinguishes it. No other entry is, and
    none is called as a baseline is, or so that it looks like one of these.
    """
    if is_built_in(result.architecture):
        if not _is_called(name, result.architecture.name):
            yield f"{name!r} must be {result.architecture.name!r}, or begin with it and one of + - . ="
        return
    baselines = [*registry.entries(registry.BASELINE), *result.baselines]
    for what, taken in (("built-in", registered()), ("baseline", baselines)):
        for other in taken:
            if _is_called(name, _slug(other)) or _looks_like(name, _slug(other)):
                yield f"{name!r} is called as the {what} {other[:60]!r} is, or nearly: give another with --name"
                return


def _is_called(name: str, other: str) -> bool:
    return name == other or (name.startswith(other) and name[len(other)] in "+-.=")


def _looks_like(name: str, other: str) -> bool:
    """Whether the whole name or its first part reads as `other`: "rnamba", "mam-ba" and "mabma" as "mamba"."""
    wanted = _as_read(other)
    for own in {_as_read(name), _as_read(re.split("[+.=-]", name)[0])}:
        if own == wanted:
            return True
        if len(wanted) >= _LONG and (_drops_one(own, wanted) or _drops_one(wanted, own) or _swaps_two(own, wanted)):
            return True
    return False


def _as_read(name: str) -> str:
    text = re.sub("[^a-z0-9]", "", name.lower())
    for written, read in _LOOK_ALIKE:
        text = text.replace(written, read)
    return text


def _drops_one(longer: str, shorter: str) -> bool:
    return len(longer) == len(shorter) + 1 and any(longer[:i] + longer[i + 1 :] == shorter for i in range(len(longer)))


def _swaps_two(a: str, b: str) -> bool:
    swapped = (a[:i] + a[i + 1] + a[i] + a[i + 2 :] for i in range(len(a) - 1))
    return len(a) == len(b) and b in swapped


def _defaults(result: Result) -> dict[str, Any]:
    """The defaults of all settings, by the names that `--set` has for them."""
    cls = registry.load(registry.ARCHITECTURE, result.architecture.name)
    training = resolve_training(cls, {}).model_dump(mode="json")
    own: dict[str, Any] = cls.Options().model_dump(mode="json")
    return {**own, **{f"training.{key}": value for key, value in training.items()}}


def _slug(text: str) -> str:
    """`text` in small letters, digits and _, joined by what a name may have between them."""
    words = re.split(r"[^a-z0-9_.]+", text.lower())
    return "-".join(word.strip(".") for word in words if word.strip("."))
