"""Files: a kill, a full disk or a second process leaves either the old file or the new one."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from regbench.utils.errors import Unavailable, UserError
from regbench.utils.guard import YAML_BYTES, parse_yaml

_TEMPORARY = ".part"
"""The end of the names of temporary files."""


@contextlib.contextmanager
def atomic_write(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a temporary file beside `path`; on success it is flushed to disk and takes the name `path`, else it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_TEMPORARY)
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


LEFTOVER = f".*.????????{_TEMPORARY}"
"""The pattern of the names of temporary files."""


def remove_leftovers(folder: Path) -> None:
    """Removes temporary files of killed writers from a folder, those in it, and the kept checkpoints of a run's seeds.

    To be called by who holds the folder.
    """
    for path in [*folder.glob(LEFTOVER), *folder.glob(f"*/{LEFTOVER}"), *folder.glob(f"*/course/{LEFTOVER}")]:
        path.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Writes `content` as JSON, whole or not at all. NaN and infinity are refused."""
    with atomic_write(path) as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.write("\n")


def write_rows(path: Path, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with atomic_write(path) as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of an .npz file, by name. An OSError if it cannot be read, a ValueError if it is damaged, or no such file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError:
        raise
    except Exception as error:  # of a damaged byte zip, deflate and array headers each raise what they like
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"no whole .npz file ({type(error).__name__}: {reason})") from error


def read_text(path: Path, most: int | None = None) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(most)
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file") from None


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """Reads a YAML file of keys and values. `what` it holds is for messages: "a track"."""
    content = parse_yaml(read_text(path, YAML_BYTES + 1), str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path}: {what} is a mapping of fields, not {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def runs_in(folder: Path) -> str:
    """The end of a message: the runs that are one folder below, or the run that a file belongs to."""
    if folder.is_file() and (folder.parent / "config.yaml").exists():
        return f"; the run is its folder, {folder.parent}"
    inside = sorted(path.parent for path in folder.glob("*/config.yaml"))
    if not inside:
        return ""
    return f"; it has {len(inside)} folder{'s' * (len(inside) > 1)} with runs, such as {inside[-1]}"


_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than this system allows",
    errno.EACCES: "writing there is not permitted",
    errno.EPERM: "writing there is not permitted",
    errno.EROFS: "the file system is read-only",
    errno.EEXIST: "a file is there, where a folder should be",
    errno.ENOTDIR: "a part of that path is a file, no folder",
    errno.EISDIR: "a folder is there, where a file should be",
    errno.ENAMETOOLONG: "the name is too long",
}


@contextlib.contextmanager
def explain_writing(folder: Path) -> Iterator[None]:
    """Turns errors of the file system (space, permission, a file in the way) into one line that tells where and why."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REASONS:
            raise
        raise UserError(f"cannot write {error.filename or folder}: {_REASONS[error.errno]}") from error


def require_writable(folder: Path) -> None:
    """Makes a folder and a file in it, and leaves neither. To be called before long work whose result goes there."""
    with explain_writing(folder):
        new = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for one in new:
            with contextlib.suppress(OSError):  # another process has put something there meanwhile
                one.rmdir()


def require_writable_files(*files: str | Path | None) -> None:
    """`require_writable` of the folder of each file. None and "" stand for a file that is not asked for."""
    for file in files:
        if file:
            require_writable(Path(file).parent)


@contextlib.contextmanager
def exclusive(folder: Path, *, patience: float = 0.0, holder: str = "run") -> Iterator[None]:
    """Holds `folder` for this process. The lock goes with the process, however it ends.

    `patience` is the seconds that are waited while another process, a `holder`, has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:  # e.g. below /proc
        raise UserError(f"cannot make the folder {folder}: the system makes none there") from None
    path = folder / ".lock"
    if path.is_symlink() or (path.exists() and not path.is_file()):  # to lock it would empty the file behind it
        raise UserError(f"{path} is a link or no regular file: remove it if it is not yours")
    lock = FileLock(path, timeout=patience, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:  # an OSError: it is no fault of what was to be done in the folder
        raise UserError(f"{folder} is in use by another {holder}; wait for it, or choose another --out") from error
    try:
        yield
    finally:
        lock.release()


def cache_root() -> Path:
    """`$REGBENCH_CACHE`, or `regbench` under the user's cache folder."""
    if root := os.environ.get("REGBENCH_CACHE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbench"


def keep(path: Path, write: Callable[[IO[Any]], object], mode: str = "w") -> None:
    """Writes a file of the cache. A full or read-only cache costs time, never the run: then no file is left."""
    with contextlib.suppress(OSError), atomic_write(path, mode) as file:
        write(file)


def keep_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Keeps arrays in the cache. The file holds its own name: another one moved there is not taken for it."""
    keep(path, lambda file: np.savez(file, **arrays, kept_as=np.array(path.name)), "wb")


def kept_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What `keep_arrays` kept there; raises as `read_arrays`, also where the file is another one."""
    arrays = read_arrays(path)
    if str(arrays.pop("kept_as", "")) != path.name:
        raise ValueError("a file of another name")
    return arrays


def keep_text(path: Path, text: str) -> None:
    """Keeps a text in the cache, behind the digest of its name and of it."""
    keep(path, lambda file: file.write(f"{_digest(path, text)}\n{text}"))


def kept_text(path: Path) -> str:
    """What `keep_text` kept there. An OSError if it cannot be read, a ValueError if it is damaged, or another text."""
    digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    if digest != _digest(path, text):
        raise ValueError("a damaged file, or another one")
    return text


def _digest(path: Path, text: str) -> str:
    return hashlib.sha256(f"{path.name}\n{text}".encode()).hexdigest()
