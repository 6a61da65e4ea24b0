"""What the leaderboard has published, to compare pages with."""

from __future__ import annotations

from functools import cache

from regbench.leaderboard.store import stored_in
from regbench.results import Result
from tests.helpers.documents import ROOT

ENTRIES = ROOT / "leaderboard" / "entries"


@cache
def published(track: str) -> dict[str, Result]:
    """The result of every entry of a track, by the entry's name."""
    found = [stored.entry for stored in stored_in(ENTRIES / track)]
    return {entry.name: entry.result for entry in found}
