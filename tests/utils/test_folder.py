"""Files of someone else's folder: only regular ones, no larger than they can need, and arrays without surprises."""

from __future__ import annotations

import gc
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regbench.training.checkpoint import save_tensors
from regbench.utils.folder import Folder, parse_arrays
from regbench.utils.guard import Refused


def test_files_of_the_folder_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_bytes(b"12345")
    (tmp_path / "secret").write_bytes(b"x")
    (folder / "link").symlink_to(tmp_path)
    (folder / "file-link").symlink_to(tmp_path / "secret")
    gc.collect()  # what earlier tests left open would be closed in between
    guarded, open_before = Folder(folder), len(os.listdir("/proc/self/fd"))
    assert guarded.read("inner/file", 5) == b"12345"
    with pytest.raises(Refused, match="5 bytes, more than the 4"):
        guarded.read("inner/file", 4)
    for name in (
        "../secret",
        "inner/../../secret",
        "/etc/passwd",
        "inner//file",
        "./inner/file",
        "link/secret",
        "file-link",
        "x\0y",
    ):
        with pytest.raises(Refused):
            guarded.read(name, 100)
    with pytest.raises(Refused, match="links are not followed"):
        guarded.read("link/secret", 100)
    with pytest.raises(Refused, match="not a regular file"):
        guarded.read("inner", 100)
    assert len(os.listdir("/proc/self/fd")) == open_before, "none is left open"


def test_arrays_come_back_as_they_were_saved(tmp_path: Path) -> None:
    packed, lengths = np.random.default_rng(0).random((7, 3)).astype(np.float16), np.array([3, 4], np.int32)
    np.savez_compressed(tmp_path / "x.npz", packed=packed, lengths=lengths)
    content = (tmp_path / "x.npz").read_bytes()
    expected = {"packed": np.broadcast_to(np.float16(0), (7, 3)), "lengths": np.zeros(2, np.int32)}
    found = parse_arrays(io.BytesIO(content), expected, "x")
    assert (found["packed"] == packed).all()
    assert (found["lengths"] == lengths).all()
    for other in (np.zeros((7, 3), np.float32), np.zeros((3, 7), np.float16), np.zeros((6, 3), np.float16)):
        with pytest.raises(Refused, match="packed"):
            parse_arrays(io.BytesIO(content), {**expected, "packed": other}, "x")


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(np.zeros((4, 3), np.float32))[:-4], "x: broken: ValueError"),
        (npy(np.zeros((4, 3), np.float32)) + bytes(4), "a.npy is too long"),
        (npy(np.zeros((4, 3), np.float32, order="F")), "a.npy is float32"),  # read as it lies it would be another
    ],
)
def test_an_array_that_is_not_whole_is_refused(content: bytes, message: str) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(Refused, match=message):
        parse_arrays(file, {"a": np.zeros((4, 3), np.float32)}, "x")


def test_a_file_that_is_much_larger_than_its_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    content = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "y.npz").write_bytes(bytes(1 << 17) + content)
    with pytest.raises(Refused, match="bytes, more than the .* it can need"):
        Folder(tmp_path).arrays("y.npz", {"a": np.zeros(3)})


def test_tensors_are_counted_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {
        "a": torch.zeros(3, 4),
        "b": torch.zeros((), dtype=torch.int64),
        "c": torch.zeros(0),
        "d": torch.zeros(2, dtype=torch.complex64),
        "e": torch.zeros(2, dtype=torch.uint32),
    }
    save_tensors(path, tensors, {"note": "x"})
    assert Folder(tmp_path).tensor_sizes("x.safetensors") == {"a": 12, "b": 1, "c": 0, "d": 2, "e": 2}
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(Refused, match="no safetensors file"):
        Folder(tmp_path).tensor_sizes("x.safetensors")
