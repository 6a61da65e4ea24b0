"""The steps of a training: which batches, in which order, and when they end."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.training.options import TrainingOptions
from regbench.training.trainer import TrainingSteps, training_steps

LENGTHS = np.random.default_rng(0).integers(5, 50, 100)


def test_it_stays_within_the_budget_and_nearly_uses_it() -> None:
    plan = list(training_steps(LENGTHS, TrainingOptions(batch_size=10), 12_345, seed=0))
    used = sum(tokens for tokens, _ in plan)
    assert 12_345 - 10 * 50 <= used <= 12_345
    assert all(tokens == LENGTHS[rows].sum() for tokens, rows in plan)


def test_every_epoch_sees_every_instance() -> None:
    plan = list(training_steps(LENGTHS, TrainingOptions(batch_size=10), 3 * int(LENGTHS.sum()), seed=0))
    assert len(plan) == 30
    for epoch in range(3):
        rows = np.concatenate([rows for _, rows in plan[10 * epoch : 10 * epoch + 10]])
        assert sorted(rows.tolist()) == list(range(100))
    assert plan[0][1].tolist() != plan[10][1].tolist()
    other = next(training_steps(LENGTHS, TrainingOptions(batch_size=10), int(LENGTHS.sum()), seed=1))
    assert plan[0][1].tolist() != other[1].tolist()


@pytest.mark.parametrize("more", [{}, {"train_instances": 33}, {"epochs": 2, "batch_size": 16}])
def test_a_step_is_found_in_any_order(more: dict[str, int]) -> None:
    options = TrainingOptions(**{"batch_size": 10, **more})  # type: ignore[arg-type]
    plan = list(training_steps(LENGTHS, options, 10_000, seed=3))
    steps = TrainingSteps(LENGTHS, options, 10_000, seed=3)
    assert steps.tokens.tolist() == [tokens for tokens, _ in plan]
    for step in [*range(len(plan)), *reversed(range(len(plan)))]:
        assert np.array_equal(steps.rows(step), plan[step][1])


def test_epochs_end_it_before_the_budget_does() -> None:
    options = TrainingOptions(batch_size=16, epochs=2)
    plan = list(training_steps(LENGTHS, options, 10**9, seed=0))
    assert len(plan) == 2 * 7
    assert sorted(np.concatenate([rows for _, rows in plan]).tolist()) == sorted([*range(100), *range(100)])
    short = list(training_steps(LENGTHS, options, 3000, seed=0))
    assert sum(tokens for tokens, _ in short) <= 3000
