"""A training step by a process for each core, against one thread and against all threads within each operation.

Run with `pytest tests/benchmarks/test_bench_parts.py --benchmark-only` on quiet cores, as wall times are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest
import torch
from tabulate import tabulate

from regbench.models.build import build, resolve_options
from regbench.tasks.base import TokenIO
from regbench.training.options import TrainingOptions
from regbench.training.parts import PartedGradients
from regbench.training.step import Gradients, gradients
from regbench.utils import registry, threads

NAMES = ("transformer", "lstm", "deltanet", "gla", "mamba", "mamba2", "s4", "slstm")
SHAPES = ((64, 128), (256, 256))
"""Widths and lengths; a batch has 16."""

WORTH = 0.9
"""Of the speed of threads within operations. S4 makes its kernel, which has no batch, in each process."""

IO = TokenIO(vocab_size=32, separator=31, max_length=256, names=tuple(map(str, range(32))))
OPTIONS = TrainingOptions()


@pytest.fixture(autouse=True)
def as_many_threads_as_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_parts(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cores = threads.cores()
    if cores < 2:
        pytest.skip("there is one core")
    table = []
    for name in NAMES:
        cls = registry.load(registry.ARCHITECTURE, name)
        for width, length in SHAPES:
            torch.set_num_threads(cores)
            model = build(cls, resolve_options(cls, {"d_model": width, "n_layers": 2}), IO).train()
            batch = torch.randint(31, (16, length)), torch.ones(16, length, dtype=torch.bool)
            parted = PartedGradients()
            times: dict[str, list[float]] = {"parts": [], "all": [], "one": []}
            for _ in range(6):
                for what, by, count in (("parts", parted, cores), ("all", gradients, cores), ("one", gradients, 1)):
                    torch.set_num_threads(count)
                    times[what].append(seconds(by, model, batch))
            parted.close()
            assert parted.refused == ""
            parts, whole, one = (min(each[1:]) for each in times.values())
            table.append((name, width, length, one / parts, one / whole))
    with capsys.disabled():
        print(f"\n{cores} cores, times the speed of one thread")
        headers = ("", "width", "length", "in parts", "threads within operations")
        print(tabulate(table, headers, tablefmt="github", floatfmt=".2f"))
    benchmark.pedantic(lambda: None, rounds=1)
    slower = {row[:2]: f"{row[3]:.2f} of {row[4]:.2f}" for row in table if row[3] < WORTH * row[4]}
    assert slower == {}, "parts are slower than threads within operations"


def seconds(by: Gradients, model: Any, batch: tuple[torch.Tensor, ...]) -> float:
    """The mean over four steps."""
    start = perf_counter()
    for _ in range(4):
        by(model, batch, OPTIONS)
    return (perf_counter() - start) / 4
