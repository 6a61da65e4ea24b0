"""What a trained model was made from, kept beside its scores: so a resumed run joins only what belongs together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write

FILE = "identity.json"
"""Lies in a finished seed's folder until the whole run is finished."""

Parts = Mapping[str, Any]
"""All that a model and its scores follow from, by the names in `WORDS`."""

WORDS = {
    "track": "the track",
    "source": "the architecture's code",
    "options": "the options",
    "training": "the training options",
    "device": "the device",
    "backend": "the backend",
    "text": "the text that the track is cut from",
    "task": "the task's code",
}
"""How people are told of each part."""


def identity_of(parts: Parts) -> str:
    """SHA-256 of the parts: decides whether a checkpoint belongs to a run."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def write_identity(folder: Path, parts: Parts) -> None:
    """To be written before the scores: those without it would be taken for anyone's."""
    with atomic_write(folder / FILE) as file:
        json.dump(parts, file, indent=1, sort_keys=True)


def check_identity(folder: Path, parts: Parts) -> None:
    """Compares what a finished seed was made from with what the run would be made from now.

    A folder that says nothing of it, as those of older versions, is taken as it is.

    Raises:
        UserError: they differ; it names the parts.
    """
    path = folder / FILE
    if not path.exists():
        return
    try:
        then = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        then = None
    now = json.loads(json.dumps(parts))  # tuples become lists, as in the file
    if then == now:
        return
    changed = [word for key, word in WORDS.items() if isinstance(then, dict) and then.get(key) != now.get(key)]
    raise UserError(
        f"{folder} was finished before {' and '.join(changed) or 'something'} changed, and one result cannot hold both: "
        "undo the change, or begin anew with another --out"
    )
