"""Shards: a killed tokenisation goes on, a damaged shard is made again, and a cache that cannot be written is done without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from regbench.data.text import packing
from regbench.data.text.packing import Packed, pack, plan

TEXTS = [chr(ord("a") + d % 26) * (d + 1) for d in range(20)]
SHARDS = plan(np.array([len(text) for text in TEXTS]), shard_size=30)


class Encoder:
    """Characters as tokens; counts what it was given, and is killed at one of them."""

    def __init__(self, killed_at: str | None = None) -> None:
        self.given: list[str] = []
        self.killed_at = killed_at

    def __call__(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        if self.killed_at in texts:
            raise KeyboardInterrupt
        self.given += texts
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]


def read(chosen: NDArray[Any]) -> Iterator[str]:
    return (TEXTS[d] for d in chosen.tolist())


def check(packed: Packed) -> None:
    assert len(packed) == len(TEXTS)
    for d, text in enumerate(TEXTS):
        assert packed.tokens[packed.starts[d] : packed.starts[d + 1]].tobytes().decode() == text


def test_a_plan_cuts_at_the_document_that_fills_a_shard() -> None:
    assert plan(np.array([5, 5, 1, 30, 2]), 10) == [(0, 2), (2, 4), (4, 5)]
    assert plan(np.array([], np.int64), 10) == []
    assert len(SHARDS) > 5
    assert [a for a, _ in SHARDS[1:]] == [b for _, b in SHARDS[:-1]]


def test_everything_is_made_once(tmp_path: Path) -> None:
    encode = Encoder()
    packed = pack(tmp_path, "s", SHARDS, read, encode)
    check(packed)
    assert encode.given == TEXTS
    assert packed.made == len(SHARDS)
    again = pack(tmp_path, "s", SHARDS, read, Encoder(killed_at=TEXTS[0]))
    check(again)
    assert again.made == 0


def test_a_killed_one_goes_on_where_it_was(tmp_path: Path) -> None:
    killed_in = 4
    first, _ = SHARDS[killed_in]
    encode = Encoder(killed_at=TEXTS[first])
    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path, "s", SHARDS, read, encode)
    assert encode.given == TEXTS[:first]
    resumed = Encoder()
    done: list[int] = []
    packed = pack(tmp_path, "s", SHARDS, read, resumed, done.append)
    assert resumed.given == TEXTS[first:]
    assert packed.made == len(SHARDS) - killed_in
    assert (done[0], sum(done)) == (first, len(TEXTS))
    check(packed)


@pytest.mark.parametrize("damage", ["cut", "byte", "gone", "other"])
def test_a_damaged_shard_is_made_again_and_alone(tmp_path: Path, damage: str) -> None:
    pack(tmp_path, "s", SHARDS, read, Encoder())
    path = tmp_path / "00002.npz"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "byte":  # in the tokens themselves
        place = content.index(TEXTS[SHARDS[2][0]].encode())
        content[place] ^= 1
        path.write_bytes(content)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes((tmp_path / "00003.npz").read_bytes())
    encode = Encoder()
    packed = pack(tmp_path, "s", SHARDS, read, encode)
    first, end = SHARDS[2]
    assert encode.given == TEXTS[first:end]
    assert packed.made == 1
    check(packed)
    assert pack(tmp_path, "s", SHARDS, read, Encoder()).made == 0


def test_a_byte_that_changed_anywhere_is_never_read_as_other_text(tmp_path: Path) -> None:
    pack(tmp_path, "s", SHARDS[:1], read, Encoder())
    path = tmp_path / "00000.npz"
    content = path.read_bytes()
    ((first, end),) = SHARDS[:1]
    for place in range(0, len(content), 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        found = packing._read(path, f"s/{first}/{end}", end - first)
        assert found is None or found[0].tobytes().decode() == "".join(TEXTS[first:end])


def test_another_encoding_or_plan_is_not_taken_for_this_one(tmp_path: Path) -> None:
    pack(tmp_path, "s", SHARDS, read, Encoder())
    assert pack(tmp_path, "t", SHARDS, read, Encoder()).made == len(SHARDS)
    other = plan(np.array([len(text) for text in TEXTS]), shard_size=31)
    packed = pack(tmp_path, "t", other, read, Encoder())
    check(packed)
    assert packed.made > 0


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    packed = pack(tmp_path / "file", "s", SHARDS, read, Encoder())
    check(packed)
    assert packed.made == len(SHARDS)
    assert (tmp_path / "file").read_text() == "in the way"
