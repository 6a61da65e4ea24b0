"""The leaderboard's folder: where it is, and which files belong to an entry. Everything is read as someone else's files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pydantic

from regbench.leaderboard.entry import Entry, canonical, digest_of, parse_entry
from regbench.utils.errors import UserError
from regbench.utils.folder import Folder
from regbench.utils.guard import Refused, parse_json

ENTRY_BYTES = 2 << 20
SOURCE_BYTES = 1 << 18
"""Parsed Python takes a thousand times the memory of its text."""
KEPT = 16 << 20
"""The most bytes of what is kept."""
EVIDENCE = ".evidence.json"
ROOT = Path(__file__).resolve().parents[2]
"""The checkout that regbench runs from. An installed regbench has none."""


@dataclass(frozen=True)
class Stored:
    """An entry's file and the files kept beside it: the source of an architecture that is not built in, and evidence.

    The entry is read once, the other files when they are asked for. What cannot be read raises `Refused`.
    """

    path: Path

    @property
    def folder(self) -> Folder:
        return Folder(self.path.parent)

    @property
    def source_name(self) -> str:
        return f"{self.path.stem}.py.txt"

    @property
    def evidence_name(self) -> str:
        return f"{self.path.stem}{EVIDENCE}"

    @property
    def source(self) -> bytes | None:
        return self.folder.read(self.source_name, SOURCE_BYTES) if self.folder.has(self.source_name) else None

    @property
    def files(self) -> list[Path]:
        own = (self.path, *(self.path.with_name(name) for name in (self.source_name, self.evidence_name)))
        return sorted(path for path in own if path.exists())

    @property
    def entry(self) -> Entry:
        return self._read[0]

    @property
    def faults(self) -> list[str]:
        """A line for each thing wrong with the entry's file itself: its form, digest, name and folder."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[Entry, list[str]]:
        content = self.folder.read(self.path.name, ENTRY_BYTES)
        entry = parse_entry(parse_json(content, self.path.name), self.path.name)
        plain, faults = entry.content(), []
        if content != canonical(plain).encode():
            faults.append("not in the form in which entries are written")
        if entry.digest != digest_of(plain):
            faults.append("the digest is not that of the content: the file was changed after it was written")
        if self.path.name != entry.file_name:
            faults.append(f"the file must be called {entry.file_name}")
        if self.path.resolve().parent.name != entry.track:
            faults.append(f"it must lie in a folder called {entry.track[:80]}")
        return entry, faults


def kept(folder: Path, name: str, kind: Any) -> Any:
    """What a file of a leaderboard holds that was computed once, by the digest of a track's definition. Empty without a file."""
    if not Folder(folder).has(name):
        return {}
    try:
        return pydantic.TypeAdapter(dict[str, kind]).validate_python(parse_json(Folder(folder).read(name, KEPT), name))
    except pydantic.ValidationError:
        raise Refused(f"{name}: not of the schema; remove it, and `regbench leaderboard` makes it again") from None


def find_board(given: str | None) -> Path:
    """The leaderboard's folder: `given`, else `leaderboard/` here, else the one of the checkout that regbench runs from."""
    if given is not None:
        if not Path(given).is_dir():
            raise UserError(f"no such folder: {given}; a new board begins as an empty folder")
        inside = {path.name for path in Path(given).iterdir() if not path.name.startswith(".")}
        if inside and not inside & {"entries", "RULES.md", "baselines.json"}:
            raise UserError(f"{given} is no leaderboard: it has no entries/; a new board begins as an empty folder")
        return Path(given)
    for folder in (Path("leaderboard"), ROOT / "leaderboard"):
        if (folder / "RULES.md").is_file():
            return folder
    raise UserError("no leaderboard/ here or beside regbench's source: say which with --board DIR")


def find_entry(given: str) -> Stored:
    """One entry, by its file."""
    path = Path(given)
    if path.is_file():
        if path.name.endswith(EVIDENCE):
            raise UserError(
                f"{given} says what stands behind an entry; the entry is {given.removesuffix(EVIDENCE)}.json"
            )
        return Stored(path)
    files: list[Stored] = []
    with contextlib.suppress(UserError):  # without a board there is no hint
        files = stored_in(find_board(None))
    called = [one for one in files if one.path.stem.rpartition("-")[0] == given] or files
    raise UserError(
        f"no such file: {given}; an entry is a file" + "".join(f", such as {one.path}" for one in called[:1])
    )


def without_evidence(given: Sequence[str]) -> list[str]:
    """What is left of names and files without the evidence of entries that are given, too, as `ENTRIES/gla*.json` gives both."""
    evidence = {f"{one.removesuffix('.json')}{EVIDENCE}" for one in given}
    return [one for one in given if one not in evidence]


def board_files() -> list[str]:
    """The files of all entries on the board here, each by its name and when it was written. Empty without a board."""
    try:
        return [f"{one.path.name} {one.path.stat().st_mtime_ns}" for one in stored_in(find_board(None))]
    except UserError:
        return []


def stored_in(folder: Path) -> list[Stored]:
    """The files of the entries in a folder, by track and name: the leaderboard's, its `entries`, or that of one track."""
    below = folder / "entries" if (folder / "entries").is_dir() else folder
    paths = sorted(below.glob("*/*.json") if below.name == "entries" else below.glob("*.json"))
    return [Stored(path) for path in paths if not path.name.endswith(EVIDENCE) and path.name[0] != "."]
