"""Sources of documents: the Python standard library, files of text, JSON lines or Parquet, and the Hugging Face Hub.

The order of a source's documents depends on nothing but the documents. So the same text is the same corpus. Datasets of the Hub
are streamed once and kept: later runs need no network.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from regbench.utils.errors import Unavailable, UserError, closest, nearest
from regbench.utils.files import cache_root, keep_text, kept_text

SUFFIXES = (".jsonl", ".md", ".parquet", ".txt")
_UTF_8 = "utf-8-sig"  # skips the byte order mark that some editors write
_TESTS = ("test", "tests", "idle_test")


@dataclass(frozen=True)
class Document:
    """A document of a source."""

    name: str
    """Where it is in its source. Names of a source are unique."""
    topic: str
    text: str


class Source(Protocol):
    """Documents in a fixed order. They can be read any number of times."""

    @property
    def name(self) -> str:
        """What the source is, for people."""

    def documents(self) -> Iterator[Document]: ...


@dataclass(frozen=True)
class StandardLibrary:
    """The standard library of the Python that runs: the source of every module, and the texts of its reference.

    A topic is a top-level module or package. Tests, installed packages and modules that are made for one machine are left out.
    """

    folder: Path | None = None
    """The folder of the library. None: that of this Python."""

    @property
    def name(self) -> str:
        return f"the standard library of Python {platform.python_version()}"

    def documents(self) -> Iterator[Document]:
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
                    # The texts of the reference are documents of their own; this module holds them once more, escaped.
                    if not set(inner.parts[:-1]) & set(_TESTS) and inner.as_posix() != "pydoc_data/topics.py":
                        yield path

    def _reference(self, folder: Path) -> Iterator[Document]:
        """The texts of the reference, if the folder is that of this Python."""
        if folder != Path(sysconfig.get_path("stdlib")):
            return
        try:
            texts: Mapping[str, str] = importlib.import_module("pydoc_data.topics").topics
        except ImportError:  # some distributions have it in another package
            return
        for key in sorted(texts):
            yield Document(f"pydoc_data/topics/{key}", "pydoc_data", texts[key])


def _python_source(path: Path) -> str:
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):  # the declared encoding is wrong: take what can be read
        return path.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class Files:
    """A file, or all files of a folder and its subfolders, by their paths. Hidden files are left out.

    A .txt or .md file is one document. Its topic is the subfolder that it is in, or else its stem. Each line of a .jsonl file
    and each row of a .parquet file is a document.
    """

    path: Path
    text_field: str = "text"
    topic_field: str | None = None
    """None: the topic is the file's stem."""
    written: str | None = None
    """The path as a track writes it. It is in the digest of the text, and no folder of a machine."""

    @property
    def name(self) -> str:
        return self.written or str(self.path)

    def documents(self) -> Iterator[Document]:
        path = self.path
        try:
            for path in self._paths():
                name = path.relative_to(self.path).as_posix() if path != self.path else path.name
                for document in self._read(path, name):
                    if document.text.strip():
                        yield document
        except OSError as error:
            raise Unavailable(f"cannot read {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is not text in UTF-8") from None

    def _paths(self) -> list[Path]:
        if self.path.is_file():
            if self.path.suffix.lower() not in SUFFIXES:
                raise UserError(f"{self.path}: a source of text is {', '.join(SUFFIXES)} or a folder of these")
            return [self.path]
        if not self.path.is_dir():
            raise Unavailable(f"no such file or folder: {self.path}")
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
        for number, row in _parquet_rows(path) if suffix == ".parquet" else _json_rows(path):
            where = f"{name}:{number}"
            text = field_of(row, self.text_field, where)
            topic = path.stem if self.topic_field is None else field_of(row, self.topic_field, where)
            yield Document(where, topic, text)


def field_of(row: Mapping[str, Any], field: str, where: str) -> str:
    """The string in a field of a row. A number is written out. `where` is the place of the row, for messages."""
    if field not in row:
        raise UserError(f"{where} has no field '{field}'{nearest(field, map(str, row))}")
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: the field '{field}' is {type(value).__name__}, not text")
    return str(value).encode("utf-8", errors="replace").decode()  # JSON can hold halves of a surrogate pair


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a file of JSON lines, each with its line number from 1."""
    with path.open(encoding=_UTF_8) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}:{number}: broken JSON: {error}") from None
            if not isinstance(row, dict):
                raise UserError(
                    f"{path}:{number}: a line must be an object with the field of the text, not {line[:20]!r}"
                )
            yield number, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a Parquet file, numbered from 1. One batch is in memory at a time."""
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise Unavailable(f"{path.name} needs the package pyarrow: pip install 'regbench[text]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield from enumerate((row for batch in file.iter_batches() for row in batch.to_pylist()), 1)
    except ArrowInvalid as error:
        raise UserError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from None


DEFAULT_LIMIT = 100_000
"""Documents that are read of a dataset by default. (c4 has 365 million.)"""

PRESETS = {"c4": ("allenai/c4", "en"), "wikipedia": ("wikimedia/wikipedia", "20231101.en")}
"""Datasets with a short name: the name on the Hub, and the default configuration."""


@dataclass(frozen=True)
class HubDataset:
    """The first documents of one split of a dataset, in its own order."""

    dataset: str
    """The dataset's name on the Hub, or a folder that `datasets` can load."""
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    """A branch, tag or commit. None: the newest commit at the download; later runs stay with what was downloaded."""
    text_field: str = "text"
    topic_field: str | None = None
    """None: all documents have one topic, the dataset's name."""
    limit: int = DEFAULT_LIMIT

    @property
    def name(self) -> str:
        """The dataset, its configuration, split and revision, and the number of documents, for people."""
        chosen = "/".join(part for part in (self.config, self.split, self.revision) if part)
        return f"{self.dataset} ({chosen}, {self.limit:,} documents)"

    @property
    def path(self) -> Path:
        """The file in which the documents are kept: a line of JSON for each, text and topic."""
        return cache_root() / "text" / "datasets" / f"{sha256(json.dumps(astuple(self)).encode()).hexdigest()}.jsonl"

    def documents(self) -> Iterator[Document]:
        try:
            pairs = [json.loads(line) for line in kept_text(self.path).splitlines()]
        except (OSError, ValueError):
            pairs = self._stream()
            keep_text(self.path, "".join(f"{json.dumps(pair)}\n" for pair in pairs))
        if not any(text.strip() for text, _ in pairs):
            raise UserError(f"{self.name} holds no text")
        for place, (text, topic) in enumerate(pairs):
            if text.strip():
                yield Document(str(place), topic, text)

    def _stream(self) -> list[tuple[str, str]]:
        try:
            import datasets
        except ImportError:
            raise Unavailable(f"{self.dataset} needs the package datasets: pip install 'regbench[text]'") from None
        pairs = []
        try:
            rows = datasets.load_dataset(
                self.dataset, self.config, split=self.split, revision=self.revision, streaming=True
            )
            for place, row in enumerate(islice(rows, self.limit)):
                where = f"{self.dataset}, document {place}"
                topic = self.dataset if self.topic_field is None else field_of(row, self.topic_field, where)
                pairs.append((field_of(row, self.text_field, where), topic))
        except UserError:
            raise
        except Exception as error:  # the libraries' own, of which there are many
            near = closest(self.dataset.lower(), ["stdlib", *PRESETS])
            hint = "" if near is None else f"; did you mean '{near}'?"
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise Unavailable(f"dataset '{self.dataset}': {reason}{hint}") from None
        return pairs
