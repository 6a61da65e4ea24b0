"""Instances made a second, against the released reference's 0.14 M tokens/s."""

from __future__ import annotations

from typing import Any

import pytest

from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA
from regbench.tracks import load_track

REFERENCE = 0.14e6  # tokens/s, measured once on two cores of a shared machine


@pytest.mark.parametrize("name", ["pfa-small-v1", "pfa-v1"])
def test_sampling(benchmark: Any, name: str) -> None:
    """Automata, minimisation, de-duplication and strings of 5,000 instances, each round from another seed."""
    task = load_track(name).task
    assert isinstance(task, PFA)
    task.generate(Splits(10, 10, 10, 0), "train")  # compiles
    seeds = iter(range(1, 1000))
    made = benchmark.pedantic(lambda: task.generate(Splits(5000, 250, 500, next(seeds)), "train"), rounds=5)
    rate = made.n_tokens / benchmark.stats.stats.min
    benchmark.extra_info["tokens/s"] = round(rate)
    benchmark.extra_info["times the reference"] = round(rate / REFERENCE)
