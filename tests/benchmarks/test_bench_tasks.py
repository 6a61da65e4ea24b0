"""The generators of synthetic tasks: tokens/s of making a training split, distinctness checks and all. The aim is 10 M."""

from __future__ import annotations

from typing import Any

import pytest

from regbench.tasks.base import Splits
from regbench.tracks import load_track

AIM = 10e6  # tokens/s, on one core
NAMES = [
    "state-tracking-small-v1",
    "state-tracking-v1",
    "mqar-small-v1",
    "mqar-v1",
    "mad-recall-small-v1",
    "mad-noisy-recall-small-v1",
    "mad-fuzzy-recall-small-v1",
    "mad-memorization-small-v1",
    "mad-selective-copying-small-v1",
    "mad-compression-small-v1",
]


@pytest.mark.parametrize("name", NAMES)
def test_generating(benchmark: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """About 2 M tokens on one thread, each round from another seed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    task = load_track(name).task
    task.generate(Splits(10, 10, 10, 0), "train")  # compiles
    count = 2_000_000 // task.io.max_length
    seeds = iter(range(1, 1000))
    made = benchmark.pedantic(lambda: task.generate(Splits(count, 100, 100, next(seeds)), "train"), rounds=5)
    rate = made.n_tokens / benchmark.stats.stats.min
    benchmark.extra_info["tokens/s"] = round(rate)
    assert rate >= AIM
