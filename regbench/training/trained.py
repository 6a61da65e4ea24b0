"""A trained seed of which the test split is still unread, kept as `trained.json` beside its weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from regbench.training.progress import Progress
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write

FILE = "trained.json"
"""Lies in a trained seed's folder until the whole run is finished."""


@dataclass(frozen=True)
class Trained:
    """What training left, apart from the weights.

    Attributes:
        progress: where training ended, with its validation losses.
        steps: of the whole training.
        peak_memory_bytes: of the process that trained it, or of its GPU.
    """

    progress: Progress
    steps: int
    peak_memory_bytes: int

    def write(self, folder: Path, provenance: str) -> None:
        """Writes the file; `provenance` is the digest of what was trained."""
        with atomic_write(folder / FILE) as file:
            json.dump({"provenance": provenance, **asdict(self)}, file)


def read_trained(folder: Path, provenance: str | None = None) -> Trained | None:
    """What the file in a seed's folder says; None where there is no whole one.

    Args:
        folder: the seed's folder.
        provenance: what must have been trained; None: anything.

    Raises:
        UserError: something else was trained.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        trained = Trained(Progress(**content["progress"]), int(content["steps"]), int(content["peak_memory_bytes"]))
        found = content["provenance"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if provenance is not None and found != provenance:
        raise UserError(f"{path} is the checkpoint of another configuration; choose another --out")
    return trained
