"""What a trained model was made from, kept beside its scores, so that one result never joins models of two makings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write

FILE = "provenance.json"
"""Lies in the folder of a finished seed until the whole run is finished."""

Parts = Mapping[str, Any]
"""All that a model and its scores follow from, by the keys of `WORDS`."""

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
"""How messages call each part."""


def provenance_digest(parts: Parts) -> str:
    """SHA-256 of the parts. A checkpoint belongs to the runs that have its digest."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def write_provenance(folder: Path, parts: Parts) -> None:
    """Writes the parts into a seed's folder. The scores are written after it: without it they would pass for any run's."""
    with atomic_write(folder / FILE) as file:
        json.dump(parts, file, indent=1, sort_keys=True)


def check_provenance(folder: Path, parts: Parts) -> None:
    """Compares what a finished seed was made from with what the run would be made from now.

    A folder without the file is taken as it is: older versions wrote none.

    Raises:
        UserError: they differ. The message names the parts.
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
