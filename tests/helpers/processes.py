"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(something: Callable[[], object], seconds: float = 240.0) -> None:
    """Returns once it is true; fails after so many seconds."""
    until = time.monotonic() + seconds
    while not something():
        assert time.monotonic() < until
        time.sleep(0.01)
