"""Where documents come from on this machine: the Python standard library, and files of text, JSON lines or Parquet.

A source gives its documents in an order that depends on nothing but what they are, so that the same text is the same corpus.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from regbench.utils.errors import UserError, nearest

SUFFIXES = (".jsonl", ".md", ".parquet", ".txt")
_UTF_8 = "utf-8-sig"  # which passes over the mark that some editors begin a file with
_TESTS = ("test", "tests", "idle_test")


@dataclass(frozen=True)
class Document:
    """A text, where it stands in its source (unique there), and what it is about."""

    name: str
    topic: str
    text: str


class Source(Protocol):
    """Documents in a fixed order, as often as they are asked for; `name` is what people are told they are."""

    @property
    def name(self) -> str: ...

    def documents(self) -> Iterator[Document]: ...


@dataclass(frozen=True)
class StandardLibrary:
    """Source and documentation of the Python that runs: every module of its standard library, and the texts of its reference.

    A topic is a top-level module or package. Left out are tests, what others installed, and modules made for one machine.
    """

    folder: Path | None = None
    """Where the library is; None: that of this Python."""

    @property
    def name(self) -> str:
        return f"the standard library of Python {platform.python_version()}"

    def documents(self) -> Iterator[Document]:
        """Modules by their path, then the texts of the reference by their names.

        Raises:
            UserError: this Python has its library without the source, e.g. in a ZIP file.
        """
        folder = self.folder or Path(sysconfig.get_path("stdlib"))
        found = 0
        for path in self._modules(folder):
            name = path.relative_to(folder)
            found += 1
            yield Document(name.as_posix(), name.parts[0].removesuffix(".py"), _python_source(path))
        if not found:
            raise UserError(f"{folder} holds no source of the standard library: name files or a dataset as the source")
        yield from self._reference(folder)

    def _modules(self, folder: Path) -> Iterator[Path]:
        tops = folder.iterdir() if folder.is_dir() else ()
        for top in sorted(tops, key=lambda path: path.name):
            if top.stem not in sys.stdlib_module_names or top.name in _TESTS:
                continue
            if top.suffix == ".py":
                yield top
            elif top.is_dir():
                for path in sorted(top.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
                    inner = path.relative_to(folder)
                    # The texts of the reference come one by one; their module would be the same once more, in escapes.
                    if not set(inner.parts[:-1]) & set(_TESTS) and inner.as_posix() != "pydoc_data/topics.py":
                        yield path

    def _reference(self, folder: Path) -> Iterator[Document]:
        if folder != Path(sysconfig.get_path("stdlib")):
            return
        try:
            texts: Mapping[str, str] = importlib.import_module("pydoc_data.topics").topics
        except ImportError:  # some distributions package it apart
            return
        for key in sorted(texts):
            yield Document(f"pydoc_data/topics/{key}", "pydoc_data", texts[key])


def _python_source(path: Path) -> str:
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):  # no declared encoding fits: take what can be read
        return path.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class Files:
    """A file, or all files of a folder and its subfolders, by their paths; hidden ones are left out.

    .txt and .md are a document each; .jsonl and .parquet one for each line or row, its text in the field `text_field`. Its topic
    is the field `topic_field`; where there is none, the file's stem; and of a .txt or .md in a subfolder, the subfolder's name.
    """

    path: Path
    text_field: str = "text"
    topic_field: str | None = None

    @property
    def name(self) -> str:
        return str(self.path)

    def documents(self) -> Iterator[Document]:
        """The documents that hold more than white space.

        Raises:
            UserError: nothing there that can be read, or a fault in a file: the line names the file, and the line of it.
        """
        path = self.path
        try:
            for path in self._paths():
                name = path.relative_to(self.path).as_posix() if path != self.path else path.name
                for document in self._read(path, name):
                    if document.text.strip():
                        yield document
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is not text in UTF-8") from None

    def _paths(self) -> list[Path]:
        if self.path.is_file():
            if self.path.suffix.lower() not in SUFFIXES:
                raise UserError(f"{self.path}: a source of text is {', '.join(SUFFIXES)} or a folder of these")
            return [self.path]
        if not self.path.is_dir():
            raise UserError(f"no such file or folder: {self.path}")
        relative = sorted(path.relative_to(self.path).as_posix() for path in self.path.rglob("*"))
        paths = [self.path / name for name in relative if not any(part.startswith(".") for part in name.split("/"))]
        paths = [path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file()]
        if not paths:
            raise UserError(f"{self.path} holds no files of text ({', '.join(SUFFIXES)})")
        return paths

    def _read(self, path: Path, name: str) -> Iterator[Document]:
        suffix = path.suffix.lower()
        if suffix in (".txt", ".md"):
            topic = name.split("/")[0] if "/" in name else path.stem
            yield Document(name, topic, path.read_text(encoding=_UTF_8))
            return
        fields = [self.text_field] + ([] if self.topic_field is None else [self.topic_field])
        rows = _parquet_rows(path, fields) if suffix == ".parquet" else _json_rows(path)
        for number, row in rows:
            where = f"{name}:{number}"
            text = field_of(row, self.text_field, where)
            topic = path.stem if self.topic_field is None else field_of(row, self.topic_field, where)
            yield Document(where, topic, text)


def field_of(row: Mapping[str, Any], field: str, where: str) -> str:
    """The string under `field`; a number is written out.

    Raises:
        UserError: there is no such field, or it holds something else.
    """
    if field not in row:
        raise UserError(f"{where} has no field '{field}'{nearest(field, map(str, row))}")
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: the field '{field}' is {type(value).__name__}, not text")
    return str(value).encode("utf-8", errors="replace").decode()  # JSON can hold halves of a surrogate pair


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a file of JSON lines, with the numbers of their lines from 1."""
    with path.open(encoding=_UTF_8) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}:{number}: broken JSON: {error}") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}:{number}: a line is an object with the field of the text, not {line[:20]!r}")
            yield number, row


def _parquet_rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a Parquet file from 1, of these columns only and a batch in memory at a time."""
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise UserError(f"{path.name} needs the package pyarrow: pip install 'regbench[text]'") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for field in fields:
                if field not in file.schema_arrow.names:
                    raise UserError(f"{path} has no field '{field}'{nearest(field, file.schema_arrow.names)}")
            for batch in file.iter_batches(batch_size=1024, columns=list(fields)):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except ArrowInvalid as error:
        raise UserError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from None
