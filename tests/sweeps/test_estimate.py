"""What a sweep is said to cost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regbench.sweeps import estimate
from regbench.sweeps.sweep import Sweep
from tests.helpers.sweeps import BASE, write_sweep


@pytest.mark.parametrize(("tokens", "settled"), [(200, 1), (200, 30), (6000, 1)])
def test_a_cell_of_few_steps_is_timed(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, settled: int
) -> None:
    """A training of fewer steps than are left out at first, 30 on a GPU: its steps are done again. Each takes 5 s here."""
    clock, batches = [1e6], []

    def step(_: Any, __: Any, inputs: Any, *___: Any) -> None:
        clock[0] += 5.0
        batches.append(inputs)

    monkeypatch.setattr(estimate, "train_step", step)
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(estimate, "TIMED_STEPS", {"cpu": (settled, 2 * settled)})
    base = BASE | {"training.train_tokens": tokens}
    point = Sweep.read(write_sweep(tmp_path, tiny_file, base=base)).groups[0].first
    each, a_token = estimate._time(point, point.track.instances("train"))
    assert each == 5.0
    assert 5 / 400 < a_token < 5 / 40
    assert len(batches) == settled + 3
