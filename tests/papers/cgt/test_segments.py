"""Segments with one context each, of every kind of task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from papers.cgt.segments import segments, single_context_segments, windows
from regbench.tasks.arithmetic import Arithmetic
from regbench.tasks.base import Splits
from regbench.tasks.linear_regression import LinearRegression
from regbench.tracks import Track

SPLITS = Splits(train=4, validation=2, test=3, seed=0)


def test_of_arithmetic_they_are_its_tasks_cut_after_two_examples_of_four() -> None:
    task = Arithmetic(Arithmetic.Parameters(n_tasks=3, n_examples=4, n_digits=1))
    instances = task.generate(SPLITS, "test")
    found = segments(task, instances)
    names = np.array(task.io.names)
    assert found.row.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert found.number.tolist() == [0, 1, 2] * 3
    assert found.per_row == 3
    for row, start, cut, end in zip(found.row, found.start, found.cut, found.end, strict=True):
        shown, rest = "".join(names[instances.tokens[row, start:cut]]), "".join(names[instances.tokens[row, cut:end]])
        assert shown.count("|") == rest.count("|") == 2
        assert shown.endswith("|")
        assert rest.endswith("|#")


def test_of_linear_regression_it_is_the_whole_cut_after_half_the_pairs() -> None:
    task = LinearRegression(LinearRegression.Parameters(d_x=2, d_y=1, n_examples=5))
    found = segments(task, task.generate(SPLITS, "test"))
    assert found.start.tolist() == [0] * 3
    assert found.cut.tolist() == [4] * 3  # two of five
    assert found.end.tolist() == [10] * 3


def test_of_automata_it_is_the_whole_cut_after_the_separator_nearest_the_middle(tiny: Track) -> None:
    instances = tiny.instances("test")
    found = segments(tiny.task, instances)
    separator = tiny.task.io.separator
    assert found.per_row == 1
    assert len(found) > 15
    for row, cut, end in zip(found.row, found.cut, found.end, strict=True):
        tokens = instances.tokens[row, :end]
        assert end == instances.lengths[row]
        after = [t for t in range(1, end) if tokens[t - 1] == separator] or [end // 2]
        assert abs(cut - end // 2) == min(abs(t - end // 2) for t in after)


def test_what_has_nothing_on_one_side_is_left_out() -> None:
    task = LinearRegression(LinearRegression.Parameters(d_x=2, d_y=1, n_examples=1))
    assert len(segments(task, task.generate(SPLITS, "test"))) == 0


def test_what_is_left_out_leaves_the_numbers_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth of a segment is found by its number."""
    task = Arithmetic(Arithmetic.Parameters())
    monkeypatch.setattr("papers.cgt.segments._by_progress", lambda _: [(0, 0, 3), (3, 5, 9), (9, 9, 12), (12, 14, 16)])
    found = segments(task, task.generate(SPLITS, "test"))
    assert found.number.tolist() == [1, 3] * SPLITS.test
    assert found.start.tolist() == [3, 12] * SPLITS.test


def test_windows_are_padded_with_their_last_position() -> None:
    index, inside = windows(np.array([2, 0]), np.array([5, 1]))
    assert index.tolist() == [[2, 3, 4], [0, 0, 0]]
    assert inside.tolist() == [[True, True, True], [True, False, False]]


def test_of_two_texts_it_is_an_instance_cut_at_its_own_cut(text_track: Track) -> None:
    test = text_track.instances("test")
    parts = segments(text_track.task, test)
    np.testing.assert_array_equal(parts.cut, test.truth["cut"])
    np.testing.assert_array_equal(parts.row, np.arange(len(test)))
    assert (parts.start == 0).all()
    assert (parts.end == 48).all()
    none = replace(test, truth={**test.truth, "cut": np.zeros(len(test), np.int32)})
    assert len(segments(text_track.task, none)) == 0  # nothing on one side of it


def test_each_text_is_read_on_from_its_own_middle(text_track: Track) -> None:
    """What the first text's summary says is of no use to the second; a text of one token has no middle."""
    test = text_track.instances("test")
    parts, cut = single_context_segments(text_track.task, test), test.truth["cut"]
    assert len(parts) == 2 * len(test)
    np.testing.assert_array_equal(parts.start[0::2], 0)
    np.testing.assert_array_equal(parts.end[0::2], cut)
    np.testing.assert_array_equal(parts.start[1::2], cut)
    np.testing.assert_array_equal(parts.end[1::2], test.lengths)
    np.testing.assert_array_equal(parts.cut, (parts.start + parts.end) // 2)
    short = replace(test, truth={**test.truth, "cut": np.ones(len(test), np.int32)})
    assert set(single_context_segments(text_track.task, short).start) == {1}


def test_of_three_texts_a_segment_is_two_neighbours_or_one_text(text_track: Track) -> None:
    test = text_track.instances("test")
    cut, second = test.truth["cut"], test.truth["cut"] + 4
    three = replace(test, truth={**test.truth, "second_cut": second})
    parts, own = segments(text_track.task, three), single_context_segments(text_track.task, three)
    assert (parts.per_row, own.per_row) == (2, 3)
    np.testing.assert_array_equal(parts.cut.reshape(-1, 2), np.stack([cut, second], 1))
    np.testing.assert_array_equal(parts.end.reshape(-1, 2)[:, 0], second)
    np.testing.assert_array_equal(parts.start.reshape(-1, 2)[:, 1], cut)
    np.testing.assert_array_equal(own.start.reshape(-1, 3), np.stack([0 * cut, cut, second], 1))
