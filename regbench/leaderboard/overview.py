"""The overview of the leaderboard: architectures by tracks, what each is, and findings that follow from the entries."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.rank import Board, Row
from regbench.tracks import load_track, track_names
from regbench.utils import registry

PURPOSES = {
    "automata": ("pfa",),
    "recall": ("associative_recall", "mqar", "recall"),
}
"""What a user may want an architecture for, and the tasks that measure it. The findings are about these."""

COUNTS = "counts"
"""The family of what is given counts of n-grams, or learns from them alone."""


@dataclass(frozen=True)
class Cell:
    """The best entry of an architecture on a track, of those with a rank if there are any.

    Attributes:
        row: The row of its board.
        rank: 1 + the number of ranked rows of the overview that are significantly better there. 0 of an entry that shows no rank,
            such as a claimed one beside verified ones, or one that would be first and is not reproduced. It counts in no mean
            and in no finding.
        section: The id of the board's section on the page.
    """

    row: Row
    rank: int
    section: str

    @property
    def score(self) -> float:
        """Its normalized score; 0 where the track has none."""
        return self.row.normalized or 0.0


@dataclass(frozen=True)
class Line:
    """An architecture in the overview.

    Attributes:
        name: Its name, with "+ n-gram heads" where it has them.
        family: One of `regbench.models.mixer.FAMILIES`. With n-gram heads it is "counts".
        paper: Authors and year, or "".
        cells: Its cell on each track, in the order of the tracks. None where it has no entry.
        common: The places of the tracks that means are over.
    """

    name: str
    family: str
    paper: str
    cells: tuple[Cell | None, ...]
    common: tuple[int, ...] = ()

    @property
    def ranked(self) -> dict[int, Cell]:
        """The cells with a rank, by the places of their tracks."""
        return {i: cell for i, cell in enumerate(self.cells) if cell is not None and cell.rank}

    @property
    def mean_rank(self) -> float | None:
        """The mean of its ranks on the common tracks. None where it lacks one of them."""
        return statistics.fmean(cell.rank for cell in self._counted) if self._counted else None

    @property
    def normalized(self) -> float | None:
        """The mean of their normalized scores, where tracks have one."""
        known = [cell.row.normalized for cell in self._counted if cell.row.normalized is not None]
        return statistics.fmean(known) if known else None

    @property
    def _counted(self) -> list[Cell]:
        cells = [self.ranked[i] for i in self.common if i in self.ranked]
        return cells if len(cells) == len(self.common) else []


@dataclass(frozen=True)
class Overview:
    """Architectures by tracks.

    Attributes:
        boards: The boards of the columns.
        lines: The architectures, by mean normalized score, best first; those without one come last.
        common: The tracks that means are over, for people. All architectures with a rank on more than half of the tracks have
            a rank on these.
        findings: Sentences that follow from the entries.
    """

    boards: tuple[Board, ...]
    lines: tuple[Line, ...]
    common: str
    findings: tuple[str, ...]


def overview(boards: Sequence[Board]) -> Overview:
    """The overview of some boards, which are current.

    An architecture is represented by its best entry with a rank on each track. One that is not built in has its file in its
    name: a stranger's `lstm.py` is not `lstm`.
    """
    best: dict[tuple[str, bool], dict[int, Row]] = {}
    for place, board in enumerate(boards):
        for row in sorted(board.rows, key=lambda row: row.shown_ties is None):  # best first; those without a rank last
            if row.entry is not None:
                record = row.entry.result.architecture
                name = record.name if is_built_in(record) else f"{record.name} ({record.source})"
                key = name, bool(record.options.get("ngram_heads"))
                best.setdefault(key, {}).setdefault(place, row)
    ranks = [_ranks([rows[place] for rows in best.values() if place in rows]) for place in range(len(boards))]
    lines = []
    for (name, heads), rows in best.items():
        cells = [
            Cell(rows[place], ranks[place].get(rows[place].name, 0), board.file_stem) if place in rows else None
            for place, board in enumerate(boards)
        ]
        family, paper = _about(min(rows.values(), key=lambda row: row.rank is None))
        if heads:
            name, family = f"{name} + n-gram heads", COUNTS
        lines.append(Line(name, family, paper, tuple(cells)))
    most = [line.ranked.keys() for line in lines if 2 * len(line.ranked) > len(boards)]
    common = tuple(place for place in range(len(boards)) if most and all(place in ranked for ranked in most))
    lines = [replace(line, common=common) for line in lines]
    lines.sort(key=lambda line: (line.normalized is None, -(line.normalized or 0.0), line.name))
    named = _listed([boards[place].track for place in common]) if common else "no tracks"
    return Overview(tuple(boards), tuple(lines), named, tuple(_findings(lines, boards)))


def _task(board: Board) -> str:
    """The name of a board's task; "" where the track is not here."""
    return load_track(board.track).definition.task if board.track in track_names() else ""


def _ranks(rows: Sequence[Row]) -> dict[str, int]:
    """The rank of each row among these that shows one, by name: 1 + how many of them the board's test calls better."""
    return {row.name: 1 + sum(other.name in row.better for other in rows) for row in rows if row.shown_ties is not None}


def _about(row: Row) -> tuple[str, str]:
    """The family and the paper of an architecture. Of one that is not built in, nothing is loaded."""
    assert row.entry is not None
    record = row.entry.result.architecture
    if not is_built_in(record):
        return "other", ""
    cls = registry.load(registry.ARCHITECTURE, record.name)
    return cls.family, "" if cls.paper is None else f"{cls.paper.authors} {cls.paper.year}"


def _findings(lines: Sequence[Line], boards: Sequence[Board]) -> list[str]:
    """What is best for each purpose and for all of them, among the architectures that are not given counts."""
    own, found, means = [line for line in lines if line.family != COUNTS], [], []
    for purpose, tasks in PURPOSES.items():
        measured = [place for place, board in enumerate(boards) if _task(board) in tasks]
        ranked = {place: len(_run_on(own, [place])) for place in measured}
        # A track of few architectures would leave the finding to them alone.
        places = [place for place, count in ranked.items() if count > 1 and 2 * count > max(ranked.values())]
        everywhere = _run_on(own, places)
        if not places:
            continue
        means.append({line.name: statistics.fmean(line.ranked[i].score for i in places) for line in everywhere})
        if len(places) == 1:
            found.append(_ahead(purpose, lines, everywhere, places[0], boards[places[0]].track))
        elif len(everywhere) > 1:
            found.append(
                f"{purpose.capitalize()} ({len(places)} tracks): of the {len(everywhere)} architectures with a rank on all of "
                f"them, {_highest(means[-1])}."
            )
    both = {name: statistics.fmean(one[name] for one in means) for name in set.intersection(*map(set, means or [{}]))}
    if len(means) > 1 and len(both) > 1:
        found.append(
            f"{' and '.join(PURPOSES).capitalize()} together, each one half: of the {len(both)} architectures with a rank on "
            f"all of these tracks, {_highest(both)}."
        )
    return found


def _run_on(lines: Sequence[Line], places: Sequence[int]) -> list[Line]:
    """Those with a rank on all tracks at these places."""
    return [line for line in lines if set(places) <= line.ranked.keys()]


def _highest(means: Mapping[str, float]) -> str:
    """Which three have the highest means, and what they are."""
    best = sorted(means, key=lambda name: (-means[name], name))[:3]
    return f"{_listed([f'{name} ({100 * means[name]:.0f})' for name in best])} have the highest mean normalized scores"


def _ahead(purpose: str, lines: Sequence[Line], own: Sequence[Line], place: int, track: str) -> str:
    """Which of them are ahead on the one track of a purpose: those to which the test finds the fewest of them better.

    What is given counts is left out: it may be better than one of two that are level with each other.
    """
    cells = {line.name: line.ranked[place] for line in own}
    worse = {name: sum(other.row.name in cell.row.better for other in cells.values()) for name, cell in cells.items()}
    least = min(worse.values())
    level = {name: cells[name].score for name, count in worse.items() if count == least}
    first = sorted(level, key=lambda name: (-level[name], name))
    return (
        f"{purpose.capitalize()} ({track}): {_listed(first)} {'are level' if first[1:] else 'is ahead'}, "
        f"of {len(cells)} architectures, with a normalized score of {100 * level[first[0]]:.0f}."
        f"{_counts(lines, place, [cells[name] for name in first])}"
    )


def _counts(lines: Sequence[Line], place: int, first: Sequence[Cell]) -> str:
    """Which of those that are given counts are better than each of the first of the others."""
    given = [line for line in _run_on(lines, [place]) if line.family == COUNTS]
    before = [line.name for line in given if all(line.ranked[place].row.name in cell.row.better for cell in first)]
    if not before:
        return ""
    return f" Given counts of n-grams, {_listed(before)} {'are' if len(before) > 1 else 'is'} before them."


def _listed(names: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
