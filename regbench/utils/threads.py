"""How many threads there are to use, how they wait, and compiled work shared among Python's threads.

Compiled work is not shared among OpenMP's threads: Numba, on starting them, changes how many threads PyTorch has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""Threads of OpenMP look a thousand times for the others, which takes microseconds, and then sleep. By default they wait in busy
loops: where other programs hold the cores, a training step then takes up to thirteen times as long. Without any look, waking
costs more than the work of a small step: an LSTM of width 64 on two idle cores took 18.5 s in the place of 3.8 s."""

_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS")
_CGROUPS = Path("/sys/fs/cgroup")


def available() -> int:
    """How many threads to use: OMP_NUM_THREADS where it is set, as PyTorch does, else `cores()`."""
    return asked() or cores()


def asked() -> int | None:
    """The number in OMP_NUM_THREADS, where it is set to one."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) > 0 else None


def cores() -> int:
    """How many processors this process may use: those of its affinity mask, but no more than its cgroup's quota pays for."""
    allowed, quota = _allowed(), _quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def environment(threads: int) -> dict[str, str]:
    """What the environment of a process must hold before it starts, so that it uses so many threads and they wait asleep."""
    return {**WAITING, **dict.fromkeys(_COUNTS, str(threads))}


def wait_asleep() -> None:
    """Sets the waiting policy of this process, and the number of threads where a quota of its cgroup asks for fewer.

    PyTorch reads both when it is imported: call this before. What the user has set stays.
    """
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    if cores() < _allowed():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))


def _allowed() -> int:
    """The processors in the affinity mask; all, on systems without one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(groups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processors' worth of time that the cgroups of this process allow; None where none limits it."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = groups / controllers if controllers else groups
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            found += [limit for limit in [_limit(place, version_2=not controllers)] if limit is not None]
            if place == root:
                break
    return min(found, default=None)


def _limit(folder: Path, version_2: bool) -> float | None:
    """The quota of one cgroup over its period."""
    try:
        if version_2:
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota, period = ((folder / f"cpu.cfs_{n}_us").read_text(encoding="utf-8") for n in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number: there is no limit
        return None


def for_each(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Calls `work` on every item, in threads. Each thread takes the next item when it is free, so unequal items balance.

    An exception, Ctrl-C too, drops the items that have not begun. `work` spends its time in a compiled function that releases the
    GIL, and writes to nothing that two items share.
    """
    pool = _pool(available())
    waiting: list[Future[None]] = []
    try:
        waiting += [pool.submit(work, item) for item in items]
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
