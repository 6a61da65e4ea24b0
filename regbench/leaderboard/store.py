"""The leaderboard's folder: where it is, which files belong to an entry, and all entries read as someone else's files."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regbench.leaderboard.entry import Entry, canonical, digest_of, parse_entry
from regbench.leaderboard.guard import Folder, Refused, parse_json
from regbench.utils.errors import UserError

ENTRY_BYTES = 2 << 20
SOURCE_BYTES = 1 << 20
_CHECKOUT = Path(__file__).resolve().parents[2] / "leaderboard"


@dataclass(frozen=True)
class Stored:
    """An entry's file, and what is kept beside it: the source of an architecture that is not built in, predictions."""

    path: Path

    @property
    def folder(self) -> Folder:
        return Folder(self.path.parent)

    @property
    def source_name(self) -> str:
        return f"{self.path.stem}.py.txt"

    def predictions_name(self, seed: int) -> str:
        return f"{self.path.stem}.seed-{seed}.npz"

    @property
    def source(self) -> bytes | None:
        """Raises:
        Refused: it is there and cannot be read.
        """
        return self.folder.read(self.source_name, SOURCE_BYTES) if self.folder.has(self.source_name) else None

    def read(self) -> tuple[Entry, bytes]:
        """The entry and the bytes of its file.

        Raises:
            Refused: it cannot be read, or is not of the schema.
        """
        content = self.folder.read(self.path.name, ENTRY_BYTES)
        return parse_entry(parse_json(content, self.path.name), self.path.name), content

    def remove(self) -> None:
        """Takes the entry and what is kept beside it away."""
        self.remove_predictions()
        for path in (self.path, self.path.with_name(self.source_name)):
            path.unlink(missing_ok=True)

    def remove_predictions(self) -> None:
        """Takes the predictions of all seeds away."""
        for path in list(self.path.parent.iterdir()):
            if path.name.startswith(f"{self.path.stem}.seed-") and path.suffix == ".npz":
                path.unlink()


def form_faults(entry: Entry, content: bytes, path: Path) -> Iterator[str]:
    """What is wrong with the file itself: its form, its digest, its name, its folder."""
    plain = entry.content()
    if content != canonical(plain).encode():
        yield "not in the form in which entries are written"
    if entry.digest != digest_of(plain):
        yield "the digest is not that of the content: the file was changed after it was written"
    if path.name != entry.file_name:
        yield f"the file must be called {entry.file_name}"
    if path.resolve().parent.name != entry.track:
        yield f"it must lie in a folder called {entry.track[:80]}"


def find_board(given: str | None) -> Path:
    """The leaderboard's folder: the one given, else `leaderboard/` here, else that of the checkout regbench runs from.

    Raises:
        UserError: there is none.
    """
    if given is not None:
        if not Path(given).is_dir():
            raise UserError(f"no such folder: {given}; a new board begins as an empty folder")
        return Path(given)
    for folder in (Path("leaderboard"), _CHECKOUT):
        if (folder / "RULES.md").is_file():
            return folder
    raise UserError("no leaderboard/ here or beside regbench's source: say which with --board DIR")


def stored_entries(board: Path) -> list[Stored]:
    """The files of all entries of a board, by track and name; nothing in them is read.

    Raises:
        Refused: a link or something else that is neither a folder nor a file lies among them.
    """
    return [stored for folder in _members(board / "entries", folders=True) for stored in stored_in(folder)]


def stored_in(folder: Path) -> list[Stored]:
    """The files of the entries of one track. Raises as `stored_entries`."""
    return [Stored(path) for path in _members(folder, folders=False) if path.suffix == ".json"]


def _members(folder: Path, *, folders: bool) -> list[Path]:
    if not folder.is_dir():
        return []
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror}") from None
    for path in paths:
        mode = path.lstat().st_mode
        if not (stat.S_ISDIR(mode) if folders else stat.S_ISREG(mode)):
            raise Refused(f"{path} is not a {'folder' if folders else 'file'}")
    return paths
