"""How the in-context baselines grow: tokens/s, seconds and peak memory of one sequence by its length, states and alphabet.

Run with `pytest tests/benchmarks/test_bench_baseline_growth.py --benchmark-only`; about two minutes of one core. Every baseline
predicts every prefix of one sequence, on one thread, in a process of its own. Seconds are of processor time. Memory is the most
that is allocated at once, the (L, V) predictions included: the C library is asked, again and again, while a call runs (glibc).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from time import process_time
from typing import Any

import numpy as np
import pytest

from baselines.baum_welch import BaumWelch
from baselines.bayes import Bayes
from baselines.ngram import NGram
from regbench.models.predictor import Baseline
from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA
from regbench.utils.arrays import IntArray

BASE = {"length": 200, "states": 12, "alphabet": 18}
AXES = {"length": (100, 200, 400), "states": (6, 12, 24), "alphabet": (6, 18, 54)}
_MALLINFO2 = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
NAMES = ("3-gram", "Baum-Welch", "Bayes")
MOST_SECONDS_GROWTH = {
    # From the first to the last of an axis, four times as much (of the alphabet nine times): with room for noise.
    ("3-gram", "length"): 8,  # L
    ("Baum-Welch", "length"): 32,  # L^2: EM over every prefix
    ("Bayes", "length"): 10,  # nearly L: most moves are ruled out after a few dozen tokens
    ("3-gram", "states"): 2,
    ("Baum-Welch", "states"): 128,  # S^3
    ("Bayes", "states"): 8,
    ("3-gram", "alphabet"): 12,
    ("Baum-Welch", "alphabet"): 4,
    ("Bayes", "alphabet"): 8,
}


def sequence(length: int, states: int, alphabet: int) -> tuple[IntArray, PFA]:
    """(1, L) tokens of one automaton of that size, and its task."""
    ranges = {
        f"{end}_{key}": value for key, value in (("states", states), ("alphabet", alphabet)) for end in ("min", "max")
    }
    task = PFA(PFA.Parameters(n_symbols=alphabet, min_strings=60, max_strings=60, **ranges))  # type: ignore[arg-type]
    instances = task.generate(Splits(train=0, validation=0, test=8, seed=0), "test")
    longest = int(np.argmax(instances.lengths))
    return instances.tokens[longest : longest + 1, :length].astype(np.int64), task


def baseline(name: str, task: PFA) -> Baseline:
    io, p = task.io, task.parameters
    if name == "3-gram":
        return NGram(3, io.vocab_size, io.separator)
    if name == "Baum-Welch":
        return BaumWelch(p.max_states, io.vocab_size, io.separator)
    prior = Bayes.defaults(task, None)[0].prior  # type: ignore[arg-type]
    return Bayes(prior, io.vocab_size, io.separator, hypotheses=100, moves=10)


_LIBRARY = ctypes.CDLL(None)


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2)


def allocated() -> int:
    """Bytes that the process has asked the C library for and not given back."""
    _LIBRARY.mallinfo2.restype = _Mallinfo2
    found = _LIBRARY.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def peak_bytes(call: Callable[[], object], seconds: float = 1.5) -> int:
    """The most allocated at once by a call, repeated for so long that a short one is caught at work; it lets go of the GIL."""
    sys.setswitchinterval(1e-5)
    before, most, done = allocated(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, allocated())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = process_time()
    call()
    while process_time() - start < seconds:
        call()
    done.set()
    watcher.join()
    return most - before


def cost(name: str, length: int, states: int, alphabet: int) -> tuple[float, int]:
    """Seconds, the least of several times, and peak bytes of one sequence."""
    tokens, task = sequence(length, states, alphabet)
    assert tokens.shape == (1, length)
    model = baseline(name, task)
    model.predict(tokens)  # compiles, or loads what is compiled
    times: list[float] = []
    while len(times) < 2 or (sum(times) < 0.2 and len(times) < 50):
        start = process_time()
        model.predict(tokens)
        times.append(process_time() - start)
    return min(times), peak_bytes(lambda: model.predict(tokens))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", NAMES)
def test_growth(benchmark: Any, monkeypatch: pytest.MonkeyPatch, name: str, axis: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found: dict[int, tuple[float, int]] = {}

    def measure() -> None:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            for value in AXES[axis]:
                found[value] = process.submit(cost, name, **(BASE | {axis: value})).result()

    benchmark.pedantic(measure, rounds=1)
    for value, (seconds, peak) in found.items():
        length = value if axis == "length" else BASE["length"]
        benchmark.extra_info[f"\n  {axis} {value}"] = (
            f"{length / seconds:,.0f} tokens/s, {seconds:.2g} s a sequence, {peak / 2**10:,.0f} KiB"
        )
    first, last = found[AXES[axis][0]], found[AXES[axis][-1]]
    growth = f"{last[0] / first[0]:.1f} times the time, {last[1] / max(first[1], 1):.1f} times the memory"
    benchmark.extra_info[f"\n  from {AXES[axis][0]} to {AXES[axis][-1]}"] = growth
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert last[0] / first[0] < MOST_SECONDS_GROWTH[name, axis]
