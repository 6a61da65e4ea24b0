"""The files of someone else's folder, within bounds of size and time. No link is followed, and nothing is unpickled."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from regbench.utils.guard import Refused

TENSOR_HEADER_BYTES = 1 << 20
"""The most bytes of the header of a safetensors file that is read with its tensors."""
_NPY_HEADER_BYTES = 4096


class Folder:
    """A folder of someone else's. Only its regular files are read: no links, and never more than a stated size."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of a file."""
        with self._file(name, limit) as file:
            return file.read(limit)

    def arrays(self, name: str, expected: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The arrays of an .npz file. It is unpacked while it is read, so that it takes no more memory than they do."""
        size = sum(array.nbytes for array in expected.values())
        with self._file(name, size + size // 64 + (1 << 16)) as file:
            return parse_arrays(file, expected, name)

    def tensor_sizes(self, name: str) -> dict[str, int]:
        """The number of elements of each tensor of a safetensors file, from its header alone."""
        with self._file(name) as file:
            try:
                with safetensors.safe_open(file.name, framework="np") as tensors:
                    return {key: math.prod(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
            except Exception:  # whatever it raises on hostile bytes, the file is not read
                raise Refused(f"{name}: no safetensors file") from None

    @contextmanager
    def _file(self, name: str, limit: int | None = None) -> Iterator[IO[bytes]]:
        """A regular file, open for reading, of at most so many bytes."""
        place, parts = self.path, name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise Refused(f"{name}: not a file of this folder")
        for part in parts:
            place /= part
            if place.is_symlink():
                raise Refused(f"{name}: a link, and links are not followed")
        if not place.exists():
            raise Refused(f"{name}: {'no such file' if self.path.exists() else f'no such folder: {self.path}'}")
        if not place.is_file():  # to open a named pipe would wait for its writer
            raise Refused(f"{name}: not a regular file")
        if limit is not None and (size := place.stat().st_size) > limit:
            raise Refused(f"{name}: {size:,} bytes, more than the {limit:,} it can need")
        try:
            with place.open("rb") as file:
                yield file
        except OSError as error:
            raise Refused(f"{name}: {error.strerror}") from None

    def has(self, name: str) -> bool:
        return os.path.lexists(self.path / name)


def parse_arrays(file: IO[bytes], expected: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file. It must hold exactly the expected names, types and shapes.

    Sizes are compared before anything is unpacked, and headers are read as data. So no file can claim memory or run code.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if sorted(member.filename for member in members) != sorted(f"{key}.npy" for key in expected):
                raise Refused(f"{name}: it must hold {' and '.join(expected)}, and nothing else")
            return {key: _array(archive, archive.getinfo(f"{key}.npy"), like, name) for key, like in expected.items()}
    except Refused:
        raise
    except Exception as error:  # whatever the parsers raise on hostile bytes, the file is not read
        raise Refused(f"{name}: broken: {type(error).__name__}") from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, like: NDArray[Any], name: str) -> NDArray[Any]:
    if member.file_size > like.nbytes + _NPY_HEADER_BYTES:
        raise Refused(f"{name}: {member.filename} unpacks to {member.file_size:,} bytes, not about {like.nbytes:,}")
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise Refused(f"{name}: {member.filename} is of an unknown version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if shape != like.shape or fortran or dtype != like.dtype:
        raise Refused(f"{name}: {member.filename} is {dtype} {shape}, not {like.dtype} {like.shape}")
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise Refused(f"{name}: {member.filename} is too long")
    return array
