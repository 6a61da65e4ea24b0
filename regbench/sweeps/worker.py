"""A process of the local pool: `python -m regbench.sweeps.worker`.

It reads jobs as lines of JSON from its input and writes what happens as such lines to its output. When its input ends, because
the sweep ends or is killed, it ends at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regbench.sweeps.work import Event, Job, do


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the sweep ends its own
    say = _channel()

    def tell(event: Event) -> None:
        say(asdict(event))

    waiting: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(waiting,), daemon=True).start()
    while True:
        job = Job.read(waiting.get())
        _forget_peak_memory()
        tell(do(job, Path(job.folder), tell))


def _channel() -> Callable[[dict[str, Any]], None]:
    """Keeps the real output for the sweep: what an architecture prints goes where errors go."""
    real = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(content: dict[str, Any]) -> None:
        real.write(json.dumps(content) + "\n")
        real.flush()

    return say


def _read(waiting: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        waiting.put(json.loads(line))
    os._exit(0)


def _forget_peak_memory() -> None:
    """Each job's peak is its own: on a GPU, and where Linux lets a process begin anew to measure it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    torch = sys.modules.get("torch")  # before the first job there is nothing to forget
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
