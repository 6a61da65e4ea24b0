"""Writing files so that a kill, a full disk or a second process leaves either the old file or the new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from regbench.errors import UserError


@contextlib.contextmanager
def atomic_write(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a temporary file beside `path`; on success it is flushed to disk and takes the name `path`, else it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """A YAML file of keys and values. what: what the file is, for people, e.g. "a track".

    Raises:
        UserError: it cannot be read, is no text, is broken (with file and line), or is no mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}:{line}: broken YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: broken YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: {what} is a mapping of fields, not {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


@contextlib.contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Turns the system's errors about space and permission into one line that says where and what to do."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the disk quota is used up",
            errno.EFBIG: "a file would be larger than this system allows",
            errno.EACCES: "writing there is not permitted",
            errno.EROFS: "the file system is read-only",
        }
        if error.errno not in reasons:
            raise
        raise UserError(f"cannot write {error.filename or folder}: {reasons[error.errno]}") from error


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process. The lock goes with the process, however it ends.

    Raises:
        UserError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder} is in use by another run; wait for it, or choose another --out") from None
        yield
