"""Reading and writing files: damaged arrays, YAML that means nothing, and what stands in the way of a folder."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from regbench.utils.errors import UserError
from regbench.utils.files import (
    atomic_write,
    exclusive,
    explain_writing,
    read_arrays,
    remove_leftovers,
    require_writable,
)

ARRAYS = {"tokens": np.arange(400, dtype=np.uint8).reshape(20, 20) % 7, "name": np.array("x/1")}


@pytest.mark.ci
def test_of_a_damaged_byte_anywhere_it_says_one_thing(tmp_path: Path) -> None:
    """Each byte of a compressed file in turn, changed in one bit and in all: an error, or the same arrays."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **ARRAYS)
    content = path.read_bytes()
    refused: list[Exception] = []
    for place in range(len(content)):
        for mask in (0x01, 0xFF):
            damaged = bytearray(content)
            damaged[place] ^= mask
            path.write_bytes(damaged)
            try:
                found = read_arrays(path)
            except (OSError, ValueError) as error:
                refused.append(error)
            else:
                for name in found.keys() & ARRAYS.keys():
                    np.testing.assert_array_equal(found[name], ARRAYS[name])
    assert {"BadZipFile", "error", "NotImplementedError"} <= {
        type(e.__cause__ or e).__name__ for e in refused
    }  # zlib.error
    assert not [error for error in refused if "\n" in str(error)]


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"\x93NUMPY\x01\x00v\x00{'descr': '<u1'", b"PK\x05\x06" + bytes(3)]
)
def test_what_is_no_npz_file_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match="no whole .npz file"):
        read_arrays(tmp_path / "a.npz")


def test_a_single_array_and_pickled_ones_are_refused_too(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "pickled.npz", a=np.array([{}], object))
    for name in ("one.npy", "pickled.npz"):
        with pytest.raises(ValueError, match="no whole .npz file"):
            read_arrays(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none.npz")


def test_atomic_write_keeps_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with atomic_write(path) as file:
        file.write("old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    """In a folder and those below it. All else stays, also hidden files and what only looks like it."""
    kept = [".lock", ".notes.original", "weights.part", "course/1.safetensors", "a/b/.weights.abcd1234.part"]
    for name in kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom regbench.utils.files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1])) as file:\n    file.write('half'), os._exit(0)\n"
    )
    (tmp_path / "seed-0" / "course").mkdir(parents=True)
    left = ("weights", "course/2.safetensors", "seed-0/course/3.safetensors")
    for name in left:
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=True)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(found) == len(kept) + len(left)
    remove_leftovers(tmp_path)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == sorted(kept)


# --- What stands in the way. ---


@pytest.mark.parametrize(
    ("below", "reason"),
    [
        ("", "a file is there, where a folder should be"),
        ("more", "a part of that path is a file, no folder"),
        ("x" * 300, "the name is too long"),
    ],
)
def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path, below: str, reason: str) -> None:
    (tmp_path / "file").write_text("mine")
    folder = tmp_path / ("file" if len(below) < 10 else ".") / below
    with pytest.raises(UserError, match=reason) as caught, explain_writing(folder), exclusive(folder):
        pass
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a system without /proc")
def test_a_folder_where_the_system_makes_none_is_one_line() -> None:
    with (
        pytest.raises(UserError, match=r"cannot make the folder /proc/x: the system makes none there"),
        exclusive(Path("/proc/x")),
    ):
        pass


def test_asking_whether_a_folder_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write .*file"):
        require_writable(tmp_path / "file" / "b")
    (tmp_path / "a").mkdir()
    require_writable(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file"]


def test_other_errors_of_the_system_pass_through(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="odd"), explain_writing(tmp_path):
        raise OSError(errno.EIO, "odd")
