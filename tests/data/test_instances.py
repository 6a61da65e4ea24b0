"""Instances: fingerprints, slicing, batches and the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regbench.data.instances import Instances, cached, length_bucketed_batches


def make(n: int = 5, length: int = 7, seed: int = 0) -> Instances:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, n).astype(np.int32)
    scored = np.arange(length) < lengths[:, None]
    tokens = rng.integers(0, 5, (n, length)).astype(np.uint8)
    return Instances(tokens, lengths, scored, "test/1", {"a": np.arange(n)}, {"b": tokens * 2})


def test_fingerprint_sees_every_part() -> None:
    base = make()
    others = [
        replace(base, tokens=base.tokens + 1),
        replace(base, tokens=base.tokens.astype(np.uint16)),
        replace(base, lengths=base.lengths + 1),
        replace(base, scored=~base.scored),
        replace(base, generator="test/2"),
    ]
    assert len({i.fingerprint for i in (base, *others)}) == 6
    assert make().fingerprint == base.fingerprint


def test_errors_are_over_problems_or_documents_where_instances_share_them() -> None:
    row = np.array([0, 0, 1, 3])
    assert make().units(row) is row
    documents = replace(make(), truth={"document": np.array([7, 7, 9, 9, 9])})
    assert documents.units(row).tolist() == [0, 0, 0, 1]
    problems = replace(documents, truth={"problem": np.array([4, 5, 6, 7, 8]), **documents.truth})
    assert problems.units(row).tolist() == row.tolist()


def test_fingerprint_does_not_depend_on_byte_order_or_layout() -> None:
    base = make()
    swapped = replace(base, lengths=base.lengths.astype(">i4"), tokens=np.asfortranarray(base.tokens))
    assert swapped.fingerprint == base.fingerprint


def test_slicing_cuts_to_the_longest() -> None:
    base = make()
    rows = np.array([3, 1])
    part = base[rows]
    longest = base.lengths[rows].max()
    assert part.tokens.shape == (2, longest)
    np.testing.assert_array_equal(part.truth["a"], [3, 1])
    np.testing.assert_array_equal(part.truth_at["b"], base.tokens[rows, :longest] * 2)


def test_batches_hold_every_row_once_and_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 1000)
    batches = list(length_bucketed_batches(lengths, 16, np.random.default_rng(1)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    padded = sum(len(b) * lengths[b].max() for b in batches)
    assert padded < 1.15 * lengths.sum()
    first = np.concatenate(batches)
    again = np.concatenate(list(length_bucketed_batches(lengths, 16, np.random.default_rng(1))))
    other = np.concatenate(list(length_bucketed_batches(lengths, 16, np.random.default_rng(2))))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


class TestCache:
    @pytest.fixture(autouse=True)
    def _own_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path))

    def test_second_call_reads_the_same(self) -> None:
        first = cached({"k": 1}, make)
        second = cached({"k": 1}, lambda: pytest.fail("made again"))
        assert second.fingerprint == first.fingerprint
        np.testing.assert_array_equal(second.truth["a"], first.truth["a"])
        np.testing.assert_array_equal(second.truth_at["b"], first.truth_at["b"])

    def test_the_whole_configuration_is_the_key(self) -> None:
        cached({"k": 1, "width": 2}, make)
        other = cached({"k": 1, "width": 3}, lambda: make(seed=9))
        assert other.fingerprint == make(seed=9).fingerprint

    @pytest.mark.parametrize("damage", [b"", b"garbage", None])
    def test_a_damaged_file_is_made_again(self, tmp_path: Path, damage: bytes | None) -> None:
        cached({"k": 1}, make)
        (path,) = (tmp_path / "instances").iterdir()
        path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
        assert cached({"k": 1}, make).fingerprint == make().fingerprint

    def test_the_file_of_another_key_is_made_again(self, tmp_path: Path) -> None:
        cached({"k": 1}, make)
        (path,) = (tmp_path / "instances").iterdir()
        other = cached({"k": 2}, lambda: make(seed=9))
        (at_other,) = set((tmp_path / "instances").iterdir()) - {path}
        path.replace(at_other)
        assert cached({"k": 2}, lambda: make(seed=9)).fingerprint == other.fingerprint != make().fingerprint

    def test_a_cache_that_cannot_be_written_is_done_without(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path / "file"))
        assert cached({"k": 1}, make).fingerprint == make().fingerprint
