"""The history of this repository: the source that it had at a commit. Nothing is fetched for it."""

from __future__ import annotations

import functools
import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from regbench.utils.errors import UserError
from regbench.utils.imports import sources_of

ROOT = Path(__file__).resolve().parents[2]
"""The checkout that regbench runs from. An installed regbench has none."""

COMMIT = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")

_PACKAGES = ("regbench", "architectures", "baselines")
_SECONDS = 20
_TREE_SECONDS = 120


def missing(commit: str | None) -> str | None:
    """Why the source at a commit is not known here; None if it is."""
    if commit is None:
        return "no commit is named"
    if not COMMIT.fullmatch(commit):
        return f"{commit[:80]!a} is no commit"
    try:
        if not (ROOT / ".git").exists() or _git("rev-parse", "HEAD") is None:
            return f"commit {commit[:12]} is not known: regbench does not run from a checkout of its repository"
        known = _git("merge-base", "--is-ancestor", commit, "HEAD") is not None
    except FileNotFoundError:
        return f"commit {commit[:12]} is not known: git is not installed"
    except subprocess.TimeoutExpired:
        return f"commit {commit[:12]} is not known: git does not answer"
    if not known:
        shallow = " (the checkout is shallow: `git fetch --unshallow`)" if (ROOT / ".git" / "shallow").exists() else ""
        return f"commit {commit[:12]} is not in the history here{shallow}"
    return None


@functools.cache
def source_at(commit: str | None, module: str) -> tuple[bytes, ...] | None:
    """The files of which `registry.source_digest` was for a module at a commit. None where git, commit or file is not here."""
    if commit is None or not COMMIT.fullmatch(commit):
        return None

    def find(name: str) -> tuple[PurePosixPath, bytes, str] | None:
        stem = name.replace(".", "/")
        for path, package in ((f"{stem}.py", name.rpartition(".")[0]), (f"{stem}/__init__.py", name)):
            if (content := _at(commit, path)) is not None:
                return PurePosixPath(path), content, package
        return None

    try:
        found = sources_of(module, find)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return tuple(found[path] for path in sorted(found)) or None


@contextmanager
def tree_at(commit: str) -> Iterator[Path]:
    """The packages of this repository as they were at a commit, in a temporary folder.

    Raises:
        UserError: The commit is not in the history here, or has not these packages.
    """
    if reason := missing(commit):
        raise UserError(reason)
    names: list[str] = []
    try:
        names = (_git("ls-tree", "--name-only", commit) or b"").decode().split()
        packed = _git("archive", "--format=tar", commit, *(name for name in _PACKAGES if name in names))
    except subprocess.TimeoutExpired:
        packed = None
    if "regbench" not in names or packed is None:
        raise UserError(f"commit {commit[:12]} has no source of regbench")
    with tempfile.TemporaryDirectory(prefix=f"regbench-{commit[:12]}-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            # Python 3.11.0 to 3.11.3 have no filters. `git archive` writes no path that leads out of the folder.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
        yield Path(folder)


def _at(commit: str, path: str) -> bytes | None:
    """A file of this repository at a commit."""
    try:
        return _blob(commit, path)
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache  # entries of one day share their commits, and architectures their modules
def _blob(commit: str, path: str) -> bytes | None:
    return _git("cat-file", "blob", f"{commit}:{path}")


def _git(*words: str) -> bytes | None:
    """What git prints, or None where it fails. It fetches nothing.

    Raises:
        FileNotFoundError: git is not installed.
        TimeoutExpired: It took too long.
    """
    command = ["git", "-C", str(ROOT), *words]
    seconds = _TREE_SECONDS if words[0] == "archive" else _SECONDS
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    done = subprocess.run(command, capture_output=True, timeout=seconds, env=environment, check=False)
    return None if done.returncode else done.stdout
