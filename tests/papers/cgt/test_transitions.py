"""Where y goes when the context changes, on made-up ys whose moves are known."""

from __future__ import annotations

import numpy as np
import pytest

from papers.cgt.segments import Segments
from papers.cgt.transitions import Move, Transitions, move, transitions
from regbench.data.instances import Instances


def test_tokens_until_y_has_moved() -> None:
    old, new = np.zeros((10, 2)), np.ones((20, 2))  # y[9] has read nothing of what begins with token 9
    found = move(np.concatenate([old, new]), 0, 9, 30)
    assert found.tokens == 3  # 3 of the last 4 are new
    assert found.distance == pytest.approx(2**0.5)
    assert move(np.concatenate([old, new]), 0, 6, 30).tokens == 6
    slow = np.concatenate([old, np.linspace(0, 1, 11)[1:, None] * np.ones(2), new])
    assert move(slow, 0, 9, 40).tokens == 7  # 0.4, 0.5, 0.6, 0.7 are above the middle
    assert move(np.zeros((30, 2)), 0, 9, 30) == Move(0.0, None)
    noisy = np.concatenate([old, new])
    noisy[4], noisy[20] = 1.5, -0.5
    assert move(noisy, 0, 9, 30).tokens == 3


def test_only_what_is_farther_than_inside_a_context_counts() -> None:
    controls = [Move(float(k), 5) for k in range(1, 101)]
    changes = [Move(95.0, 2), Move(96.0, 3), Move(200.0, 7), Move(1.0, 1)]
    found = Transitions(changes, controls, np.zeros((1, 1)), [])
    assert found.far == 96.0
    assert found.tokens() == [7]


def neighbours(moves: bool) -> tuple[np.ndarray, Instances, Segments]:
    """Forty instances of two contexts of 24 and 40 tokens; y wanders, and goes elsewhere at the second if it `moves`."""
    rng = np.random.default_rng(0)
    y = 0.3 * rng.standard_normal((40, 64, 3)).cumsum(1) / np.sqrt(np.arange(1, 65))[:, None]
    y[:, 25:] += 10.0 * moves
    instances = Instances(np.zeros((40, 64), np.int8), np.full(40, 64, np.int32), np.ones((40, 64), bool), "x/1")
    start, end = np.tile([0, 24], 40), np.tile([24, 64], 40)
    return y, instances, Segments(np.repeat(np.arange(40), 2), start, (start + end) // 2, end, np.tile([0, 1], 40))


def test_between_neighbours_windows_are_as_long_inside_a_context() -> None:
    y, instances, parts = neighbours(moves=True)
    found = transitions(y, instances, parts)
    assert found is not None
    assert (len(found.changes), len(found.controls)) == (40, 80)
    scale = np.sqrt(((y.reshape(-1, 3) - y.reshape(-1, 3).mean(0)) ** 2).sum(1).mean())
    assert found.changes[3].distance == pytest.approx(move(y[3] / scale, 12, 24, 36).distance)
    assert found.controls[6].distance == pytest.approx(move(y[3] / scale, 0, 12, 24).distance)
    assert found.controls[7].distance == pytest.approx(move(y[3] / scale, 40, 52, 64).distance)
    assert len(found.tokens()) == 40
    assert set(found.tokens()) <= {2, 3}
    assert found.boundaries == [24]
    assert found.moved[:1] == [found.changes[0].tokens]


def test_where_no_context_is_long_enough_there_is_nothing_to_see() -> None:
    y, instances, parts = neighbours(moves=True)
    start = 15 * parts.number  # 15 tokens have no two halves of eight
    short = Segments(parts.row, start, start + 7, start + 15, parts.number)
    assert transitions(y, instances, short) is None
