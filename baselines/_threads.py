"""Threads over the rows of a batch: each takes the next piece of work as it gets free, so that unequal rows balance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numba

T = TypeVar("T")


def for_each(work: Callable[[T], None], items: Iterable[T]) -> None:
    """`work` on every item, begun in the order given, on `numba.get_num_threads()` threads.

    `work` should spend its time in a compiled function that releases the GIL, and write to nothing that two items
    share. An exception, Ctrl-C too, drops what has not begun.
    """
    with ThreadPoolExecutor(numba.get_num_threads()) as pool:
        deque(pool.map(work, items), maxlen=0)
