"""Where y goes when the context changes, on made-up ys whose moves are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from papers.cgt.segments import Segments, segments
from papers.cgt.transitions import Boundary, Move, Transitions, joined_texts, move, transitions
from regbench.data.instances import Instances
from regbench.tracks import Track
from tests.papers.cgt.conftest import Counting


def test_tokens_until_y_has_moved() -> None:
    old, new = np.zeros((10, 2)), np.ones((20, 2))  # y[9] has read nothing of what begins with token 9
    found = move(np.concatenate([old, new]), Boundary(0, 9, 30))
    assert found.tokens == 3  # 3 of the last 4 are new
    assert found.distance == pytest.approx(2**0.5)
    assert move(np.concatenate([old, new]), Boundary(0, 6, 30)).tokens == 6
    slow = np.concatenate([old, np.linspace(0, 1, 11)[1:, None] * np.ones(2), new])
    assert move(slow, Boundary(0, 9, 40)).tokens == 7  # 0.4, 0.5, 0.6, 0.7 are above the middle
    assert move(np.zeros((30, 2)), Boundary(0, 9, 30)) == Move(0.0, None)
    noisy = np.concatenate([old, new])
    noisy[4], noisy[20] = 1.5, -0.5
    assert move(noisy, Boundary(0, 9, 30)).tokens == 3


def test_only_what_is_farther_than_inside_a_context_counts() -> None:
    controls = [Move(float(k), 5) for k in range(1, 101)]
    changes = [Move(95.0, 2), Move(96.0, 3), Move(200.0, 7), Move(1.0, 1)]
    found = Transitions(changes, controls, np.zeros((1, 1)), [], [], "")
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
    found = transitions(Counting, y, instances, parts)  # type: ignore[arg-type]
    assert found is not None
    assert (len(found.changes), len(found.controls)) == (40, 80)
    scale = np.sqrt(((y.reshape(-1, 3) - y.reshape(-1, 3).mean(0)) ** 2).sum(1).mean())
    assert found.changes[3].distance == pytest.approx(move(y[3] / scale, Boundary(12, 24, 36)).distance)
    assert found.controls[6].distance == pytest.approx(move(y[3] / scale, Boundary(0, 12, 24)).distance)
    assert found.controls[7].distance == pytest.approx(move(y[3] / scale, Boundary(40, 52, 64)).distance)
    assert len(found.tokens()) == 40
    assert set(found.tokens()) <= {2, 3}
    assert (found.boundaries, found.what) == ([24], "one instance")
    assert found.moved == [found.changes[0].tokens]


def test_a_y_that_takes_no_notice_of_a_change_has_not_moved() -> None:
    """Though it is past the middle between its own two places at every one of them."""
    found = transitions(Counting, *neighbours(moves=False))  # type: ignore[arg-type]
    assert found is not None
    assert all(change.tokens is not None for change in found.changes)
    assert len(found.tokens()) <= 0.25 * len(found.changes)


def test_texts_of_two_contexts_are_joined_at_the_cut(tiny: Track) -> None:
    instances = tiny.instances("test")
    parts = segments(tiny.task, instances)
    both, alone, boundaries = joined_texts(instances, parts, tiny.task.io.max_length)
    assert 1 <= len(both) == len(alone) == len(boundaries) < len(parts)
    k = 0
    for i in range(len(parts) - 1):
        a, b = (instances.tokens[parts.row[j], : parts.end[j]].tolist() for j in (i, i + 1))
        at = int(parts.cut[i])
        rest = min(len(a) - at, len(b))
        if min(at, rest) < 8:
            continue
        assert boundaries[k] == Boundary(0, at, at + rest)
        assert both[k, : at + rest].tolist() == a[:at] + b[:rest]
        assert alone[k, : at + rest].tolist() == a[: at + rest]
        k += 1
    assert k == len(both)


def test_at_joints_the_same_text_going_on_is_what_it_is_held_against(tiny: Track) -> None:
    class Sign(Counting):
        """y is 1 or -1 by the last token's parity, and the tokens of an instance are of one parity."""

        def context(self, tokens: Tensor) -> Tensor:
            y = torch.where(tokens % 2 == 0, 1.0, -1.0)[..., None].expand(-1, -1, 2)
            return torch.nn.functional.pad(y, (0, 0, 1, 0))[:, :-1]

    count, length = 30, 24
    tokens = np.repeat((np.arange(count) % 2)[:, None], length, axis=1).astype(np.int8)
    instances = Instances(tokens, np.full(count, length, np.int32), np.ones(tokens.shape, bool), "x/1")
    columns = (np.arange(count), *(np.full(count, at) for at in (0, 12, length)), np.zeros(count, np.int64))
    found = transitions(Sign(tiny.task.io), np.zeros((count, length, 2)), instances, Segments(*columns))
    assert found is not None
    assert (len(found.changes), len(found.controls), found.what) == (29, 29, "two texts")
    assert max(control.distance for control in found.controls) == 0.0
    assert len(found.tokens()) == 29
    still = replace(instances, tokens=np.zeros_like(tokens))
    same = transitions(Sign(tiny.task.io), np.zeros((count, length, 2)), still, Segments(*columns))
    assert same is not None
    assert same.tokens() == []


def test_where_no_context_is_long_enough_there_is_nothing_to_see() -> None:
    y, instances, parts = neighbours(moves=True)
    start = 15 * parts.number  # 15 tokens have no two halves of eight
    short = Segments(parts.row, start, start + 7, start + 15, parts.number)
    assert transitions(Counting, y, instances, short) is None  # type: ignore[arg-type]
