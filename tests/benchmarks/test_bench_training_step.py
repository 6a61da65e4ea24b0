"""One training step of every architecture in one run: speed beside the transformer's and its own naive form's, and memory.

Run with `pytest tests/benchmarks/test_bench_training_step.py --benchmark-only`; some minutes of one core.
"""

from __future__ import annotations

from typing import Any

import pytest
from tabulate import tabulate

from tests.benchmarks.peak_memory import measure
from tests.benchmarks.step_speed import BATCH, LENGTH, least_seconds, stepping, times_faster
from tests.helpers.mixers import MIXERS

LINEAR = 1.25
"""Largest exponent of memory in L: what a process held before is known to about 15 MiB, which moves 1 to 1.2 at most."""

LEAST, LEAST_OF = 2, {"forgetting_transformer": 1.5}
"""How many times faster than naive. The forget gate costs the fused op three more channels, and the naive form has no loop."""

WHOLE = ("rwkv7",)
"""Whole models, of which the step is timed alone: they have no mixer to run position by position."""


@pytest.mark.usefixtures("one_thread")
def test_training_step(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Forward and backward of two layers at width 128, batch 32, length 400, in float32, on one thread."""
    seconds = least_seconds({name: stepping(name) for name in [*MIXERS, *WHOLE]}, rounds=5)
    table, faster, exponents = [], {}, {}
    for name in sorted(MIXERS, key=seconds.__getitem__):
        faster[name] = times = times_faster(name)
        peaks = measure(name)
        exponents[name] = peaks.exponent
        row = (name, round(BATCH * LENGTH / seconds[name]), seconds["transformer"] / seconds[name])
        ratios = (times.than_recurrent, times.with_ops, times.ops)
        table.append((*row, *ratios, round(peaks.bytes[BATCH, LENGTH] / 2**20), exponents[name]))
    headers = (
        *("", "tokens/s", "of the transformer's", "times recurrent", "times naive ops", "ops alone"),
        *("peak, MiB", "memory ~ L^"),
    )
    square = measure("transformer", "naive").exponent
    with capsys.disabled():
        print("\n" + tabulate(table, headers, tablefmt="github", floatfmt=".2f", intfmt=","))
        print(f"naive attention, for comparison: memory ~ L^{square:.2f}")
    benchmark.pedantic(stepping("transformer"), rounds=1)
    assert square > 1.5, "the measure can tell"
    assert {name: round(p, 2) for name, p in exponents.items() if p > LINEAR} == {}
    least = {name: LEAST_OF.get(name, LEAST) for name in faster}
    whole = {name: times.than_own_naive for name, times in faster.items()}
    assert {name: round(times, 1) for name, times in whole.items() if times < least[name]} == {}
    assert {name: round(times.ops, 1) for name, times in faster.items() if times.ops < least[name]} == {}
    slow = {name: seconds[name] / seconds["transformer"] for name in seconds}
    assert {name: round(times, 1) for name, times in slow.items() if times > 3} == {}
