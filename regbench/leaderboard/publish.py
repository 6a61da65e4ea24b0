"""The leaderboard as people see it: tables and page, made from the entries, and compared with what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from regbench.leaderboard import tables
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.guard import Refused
from regbench.leaderboard.page import build_page
from regbench.leaderboard.rank import Board, rank, retirement
from regbench.leaderboard.store import Stored, form_faults, stored_entries
from regbench.leaderboard.verify import verify_entry
from regbench.tracks import Track, load_track, track_names
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_full_disk

PAGE = "index.html"
_GENERATED = (".md", ".csv", ".tex", ".html")


def load_boards(folder: Path, track: Track | None = None) -> tuple[list[Board], list[str]]:
    """The ranked boards of all entries, and what is wrong with entries, a line each; then there are no boards.

    Every entry is verified but for its baselines, which take minutes to compute; that the entries agree on them is checked.
    track: one's own track, if entries may be of that.
    """
    entries: list[Entry] = []
    faults: list[str] = []
    try:
        for stored in stored_entries(folder):
            found, entry = _load(stored, track)
            faults += [f"{stored.path.name}: {fault}" for fault in found]
            entries += [entry] if entry is not None else []
        boards = [] if faults else rank(entries, track)
    except UserError as error:
        return [], [*faults, str(error)]
    return boards, faults


def render(boards: Sequence[Board]) -> dict[str, str]:
    """Every generated file of the leaderboard's folder, by name."""
    tracks = [load_track(name) for name in track_names()]
    current = [track for track in tracks if retirement(track.name, track.definition.digest) is None]
    files = {"README.md": tables.readme(boards, current)}
    for board in boards:
        files[f"{board.file_stem}.md"] = tables.markdown(board)
        files[f"{board.file_stem}.csv"] = tables.csv(board)
        files[f"{board.file_stem}.tex"] = tables.latex(board)
    files[PAGE] = build_page(boards)
    return files


def write(folder: Path, files: dict[str, str]) -> None:
    """Writes the files that differ, and takes away those of tracks that are no longer there."""
    with explain_full_disk(folder):
        for name in outdated(folder, files):
            if name not in files:
                (folder / name).unlink()
                continue
            with atomic_write(folder / name) as file:
                file.write(files[name])


def outdated(folder: Path, files: dict[str, str]) -> list[str]:
    """Names of generated files that are missing, differ, or should not be there."""
    there = {
        path.name: path
        for path in folder.iterdir()
        if path.suffix in _GENERATED and path.name != "RULES.md" and path.is_file()
    }
    differ = [name for name, text in files.items() if name not in there or there[name].read_bytes() != text.encode()]
    return sorted([*differ, *(name for name in there if name not in files)])


def _load(stored: Stored, track: Track | None) -> tuple[list[str], Entry | None]:
    """What is wrong with an entry, and the entry if nothing is."""
    try:
        entry, content = stored.read()
    except Refused as error:
        return [str(error)], None
    own = track is not None and track.name == entry.track
    if own or retirement(entry.track, entry.result.track.digest) is None:
        faults = [str(fault) for fault in verify_entry(stored.path, track=track, costly=False).faults]
    else:  # its track may be gone, so only what it says of itself can be compared
        faults = [*form_faults(entry, content, stored.path), *_shape_faults(entry)]
    return faults, None if faults else entry


def _shape_faults(entry: Entry) -> Iterator[str]:
    """Whether an entry can be ranked at all."""
    result, instances = entry.result, entry.instances
    wanted = set(entry.metrics)
    scores = [set(seed.scores) for seed in result.seeds] + [set(b.scores) for b in result.baselines.values()]
    if result.track.main_score not in wanted or any(found != wanted for found in (*scores, *map(set, instances.sums))):
        yield "not every seed and baseline has the same scores"
    lengths = {len(column) for one in instances.sums for column in one.values()}
    if lengths != {len(instances.counts)} or len(instances.sums) != len(result.seeds):
        yield "not every instance has a score"
