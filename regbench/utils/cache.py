"""Where computed things are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$REGBENCH_CACHE`, or `regbench` under the user's cache folder."""
    if root := os.environ.get("REGBENCH_CACHE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbench"
