"""The cache: where computed things are kept between runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from regbench.utils.files import atomic_write


def cache_root() -> Path:
    """`$REGBENCH_CACHE`, or `regbench` under the user's cache folder."""
    if root := os.environ.get("REGBENCH_CACHE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbench"


def keep(path: Path, write: Callable[[IO[Any]], object], mode: str = "w") -> None:
    """Writes a file of the cache. A full or read-only cache costs time, never the run: then no file is left.

    Args:
        path: The file.
        write: Writes the content into the open file.
        mode: "w" for text, "wb" for bytes.
    """
    with contextlib.suppress(OSError), atomic_write(path, mode) as file:
        write(file)
