"""Compiled work shared among Python's threads.

Not among OpenMP's: those wait for each other in busy loops, so that where other programs hold the cores a call takes many
times as long as its work; and Numba, on starting them, changes how many threads PyTorch has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")


def available() -> int:
    """How many threads to use: OMP_NUM_THREADS where it is set, as PyTorch does, else the processors of this process."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    # Linux alone knows which processors a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_each(work: Callable[[T], None], items: Iterable[T], threads: int | None = None) -> None:
    """Calls `work` on every item, in threads. Each thread takes the next item when it is free, so unequal items balance.

    An exception, Ctrl-C too, drops the items that have not begun.

    Args:
        work: spends its time in a compiled function that releases the GIL, and writes to nothing that two items share.
        items: begun in this order.
        threads: how many; None: `available()`.
    """
    threads = available() if threads is None else threads
    waiting: list[Future[None]] = []
    try:
        waiting += [_pool(threads).submit(work, item) for item in items]
        for done in waiting:
            done.result()
    finally:
        for future in waiting:
            future.cancel()


def share(kernel: Callable[..., None], items: int, *arguments: Any, threads: int | None = None) -> None:
    """Calls `kernel(start, stop, *arguments)` on equal parts of range(items), the last part on the calling thread."""
    parts = max(1, min(available() if threads is None else threads, items))
    bounds = [items * i // parts for i in range(parts + 1)]
    waiting = [_pool(parts).submit(kernel, bounds[i], bounds[i + 1], *arguments) for i in range(parts - 1)]
    kernel(bounds[-2], items, *arguments)
    for done in waiting:
        done.result()


@lru_cache(maxsize=8)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has none of its parent's threads
