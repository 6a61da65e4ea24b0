"""The files of someone else's folder, within bounds of size and time. No link is followed, and nothing is unpickled."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from regbench.utils.guard import Refused, parse_json

TENSOR_HEADER_BYTES = 1 << 20
"""The most bytes of the header of a safetensors file."""
_NPY_HEADER_BYTES = 4096
_MEMBER_BYTES = 1024
_PART_BYTES = 1 << 20


class Folder:
    """A folder of someone else's. Only its regular files are read: no links, and never more than a stated size.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of a file."""
        content, size = self.head(name, limit + 1)
        if max(size, len(content)) > limit:
            raise Refused(f"{name}: {size:,} bytes, more than the {limit:,} it can need")
        return content

    def head(self, name: str, limit: int) -> tuple[bytes, int]:
        """The first bytes of a file, at most `limit`, and the size of the file."""
        with self._file(name) as (file, size):
            return file.read(limit), size

    def arrays(self, name: str, expected: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The arrays of an .npz file. It is unpacked while it is read, so that it takes no more memory than they do."""
        size = sum(array.nbytes for array in expected.values())
        limit = size + size // 64 + (1 << 16)
        with self._file(name) as (file, there):
            if there > limit:
                raise Refused(f"{name}: {there:,} bytes, more than the {limit:,} it can need")
            return parse_arrays(file, expected, name)

    def tensor_sizes(self, name: str) -> dict[str, int]:
        """The number of elements of each tensor of a safetensors file, from its header alone."""
        head, size = self.head(name, TENSOR_HEADER_BYTES)
        return parse_tensor_header(head, size, name)

    @contextmanager
    def _file(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """A regular file, open for reading, and its size."""
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise Refused(f"{name}: not a file of this folder")
        handle = self._open(name, parts)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{name}: not a regular file")
            with open(handle, "rb", closefd=False) as file:
                yield file, status.st_size
        except OSError as error:
            raise Refused(f"{name}: {error.strerror}") from None
        finally:
            os.close(handle)

    def has(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def _open(self, name: str, parts: list[str]) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe without a writer must not be waited for
        try:
            handle = os.open(self.path, flags | os.O_DIRECTORY)
            for i, part in enumerate(parts):
                kind = os.O_DIRECTORY if i + 1 < len(parts) else 0
                parent = handle
                try:
                    handle = os.open(part, flags | kind | os.O_NOFOLLOW, dir_fd=parent)
                finally:
                    os.close(parent)
        except FileNotFoundError:
            missing = "no such file" if self.path.exists() else f"no such folder: {self.path}"
            raise Refused(f"{name}: {missing}") from None
        except (OSError, ValueError) as error:
            link = any(os.path.islink(self.path / Path(*parts[: i + 1])) for i in range(len(parts)) if "\0" not in name)
            reason = (
                "a link, and links are not followed" if link else getattr(error, "strerror", None) or "no file name"
            )
            raise Refused(f"{name}: {reason}") from None
        return handle


def parse_arrays(file: IO[bytes], expected: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file. It must hold exactly the expected names, types and shapes.

    Sizes are compared before anything is unpacked, and headers are read as data. So no file can claim memory or run code.
    """
    try:
        _check_directory(file, len(expected), name)
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if sorted(member.filename for member in members) != sorted(f"{key}.npy" for key in expected):
                raise Refused(f"{name}: it must hold {' and '.join(expected)}, and nothing else")
            return {key: _array(archive, archive.getinfo(f"{key}.npy"), like, name) for key, like in expected.items()}
    except Refused:
        raise
    except Exception as error:  # whatever the parsers raise on hostile bytes, the file is not read
        raise Refused(f"{name}: broken: {type(error).__name__}") from None


def parse_tensor_header(head: bytes, size: int, name: str) -> dict[str, int]:
    """The number of elements of each tensor of a safetensors file.

    `head` has the first bytes of the file, `size` is that of the file.
    """
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or length > len(head) - 8:
        raise Refused(f"{name}: no safetensors file")
    header = parse_json(head[8 : 8 + length].rstrip(b" "), name)
    if not isinstance(header, dict):
        raise Refused(f"{name}: no safetensors file")
    notes = header.pop("__metadata__", {})
    elements, end = {}, 0
    try:
        for key, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            shape, (start, stop) = tensor["shape"], tensor["data_offsets"]
            count = 1
            for n in shape:
                count *= n if isinstance(n, int) and 0 <= n <= size else size + 1
                if count > size:
                    raise Refused(f"{name}: a tensor is larger than the file")
            if start != end or stop - start != count * _TENSOR_BYTES[tensor["dtype"]]:
                raise Refused(f"{name}: the tensors do not fill the file")
            elements[key], end = count, stop
        if 8 + length + end != size or not all(isinstance(v, str) for v in notes.values()):
            raise Refused(f"{name}: the tensors do not fill the file")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Refused(f"{name}: no safetensors file") from None
    return elements


_TENSOR_BYTES = {
    **{"C64": 8, "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4},
    **{"F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, like: NDArray[Any], name: str) -> NDArray[Any]:
    if member.file_size > like.nbytes + _NPY_HEADER_BYTES:
        raise Refused(f"{name}: {member.filename} unpacks to {member.file_size:,} bytes, not about {like.nbytes:,}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"{name}: packed in an unknown way")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise Refused(f"{name}: {member.filename} is of an unknown version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if shape != like.shape or fortran or dtype != like.dtype:
            raise Refused(f"{name}: {member.filename} is {dtype} {shape}, not {like.dtype} {like.shape}")
        array = np.empty(shape, dtype)
        whole, place = array.reshape(-1).view(np.uint8), 0
        while part := file.read(_PART_BYTES):
            if place + len(part) > len(whole):
                break
            whole[place : place + len(part)] = np.frombuffer(part, np.uint8)
            place += len(part)
        if part or place != len(whole):
            raise Refused(f"{name}: {member.filename} is cut off or too long")
    return array


def _check_directory(file: IO[bytes], members: int, name: str) -> None:
    """Refuses an archive whose list of members is long: that is read as a whole before anything else.

    An archive of numpy ends with a record of 22 bytes that has the number of members and the size of the list.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 42))
    end = file.read(42)
    record, before = end[-22:], end[:-22]
    large = before.startswith(b"PK\x06\x07")  # a second such record, for archives beyond 4 GiB
    listed = int.from_bytes(record[12:16], "little")
    if not record.startswith(b"PK\x05\x06") or large or listed > members * _MEMBER_BYTES:
        raise Refused(f"{name}: it must be an archive of {members} arrays, and nothing else")
    file.seek(0)
