"""Where Numba keeps compiled code. Imports neither Numba nor NumPy."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def find_place() -> None:
    """Numba keeps compiled code beside its source or in the user's cache, and fails where it can write to neither.

    Then it gets a folder that goes with the process. Call this before anything is compiled.
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if _writable(_PACKAGE / "__pycache__") or _writable(Path(cache) / "numba"):
        return
    folder = tempfile.mkdtemp(prefix="regbench-numba-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:  # it has read the environment
        sys.modules["numba"].config.CACHE_DIR = folder


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
