"""The overview of the leaderboard: architectures by tracks, what each is, and findings that follow from the entries."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.rank import Board, Row
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
    """The best entry of an architecture on a track.

    Attributes:
        row: The row of its board.
        rank: 1 + the number of ranked rows of the overview that are significantly better there. 0 of an entry without a rank.
        section: The id of the board's section on the page.
    """

    row: Row
    rank: int
    section: str


@dataclass(frozen=True)
class Line:
    """An architecture in the overview.

    Attributes:
        name: Its name, with "+ n-gram heads" where it has them.
        family: One of `regbench.models.mixer.FAMILIES`. With n-gram heads it is "counts".
        paper: Authors and year, or "".
        cells: The best entry with a rank on each track, in the order of the tracks.
        unranked: The best entry on each track where it has no entry with a rank, such as a claimed one beside verified ones. It
            counts in no mean and in no finding.
    """

    name: str
    family: str
    paper: str
    cells: tuple[Cell | None, ...]
    unranked: tuple[Cell | None, ...]

    @property
    def run(self) -> list[Cell]:
        """The cells of the tracks on which it has a rank."""
        return [cell for cell in self.cells if cell is not None]

    @property
    def mean_rank(self) -> float | None:
        """The mean of its ranks."""
        return statistics.fmean(cell.rank for cell in self.run) if self.run else None

    @property
    def normalized(self) -> float | None:
        """The mean of their normalized scores, where tracks have one."""
        known = [cell.row.normalized for cell in self.run if cell.row.normalized is not None]
        return statistics.fmean(known) if known else None


@dataclass(frozen=True)
class Overview:
    """Architectures by tracks.

    Attributes:
        boards: The boards of the columns.
        lines: The architectures, by mean normalized score, best first; those on fewer than half of the tracks come last.
        findings: Sentences that follow from the entries.
    """

    boards: tuple[Board, ...]
    lines: tuple[Line, ...]
    findings: tuple[str, ...]


def overview(boards: Sequence[Board], sections: Sequence[str], tasks: Sequence[str]) -> Overview:
    """The overview of some boards.

    An architecture is represented by its best entry with a rank on each track.

    Args:
        boards: Current boards.
        sections: The id of each board's section on the page.
        tasks: The name of each board's task.
    """
    best: dict[tuple[str, bool], dict[int, Row]] = {}
    others: dict[tuple[str, bool], dict[int, Row]] = {}
    for place, board in enumerate(boards):
        for row in board.rows:  # best first
            if row.entry is not None:
                record = row.entry.result.architecture
                key = record.name, bool(record.options.get("ngram_heads"))
                (others if row.rank is None else best).setdefault(key, {}).setdefault(place, row)
    ranks = [_ranks([rows[place] for rows in best.values() if place in rows]) for place in range(len(boards))]
    lines = []
    for name, heads in best | others:
        ranked, rest = best.get((name, heads), {}), others.get((name, heads), {})
        cells = [
            Cell(ranked[place], ranks[place][ranked[place].name], sections[place]) if place in ranked else None
            for place in range(len(boards))
        ]
        unranked = [
            Cell(rest[place], 0, sections[place]) if place in rest and place not in ranked else None
            for place in range(len(boards))
        ]
        family, paper = _about(next(iter((ranked or rest).values())))
        lines.append(
            Line(
                f"{name} + n-gram heads" if heads else name,
                COUNTS if heads else family,
                paper,
                tuple(cells),
                tuple(unranked),
            )
        )
    lines.sort(key=lambda line: (2 * len(line.run) < len(boards), -(line.normalized or 0.0), line.name))
    return Overview(tuple(boards), tuple(lines), tuple(_findings(lines, boards, tasks)))


def _ranks(rows: Sequence[Row]) -> dict[str, int]:
    """The rank of each row among these, by name: 1 + how many of them the board's test calls better."""
    return {row.name: 1 + sum(other.name in row.better for other in rows) for row in rows}


def _about(row: Row) -> tuple[str, str]:
    """The family and the paper of an architecture. Of one that is not built in, nothing is loaded."""
    assert row.entry is not None
    record = row.entry.result.architecture
    if not is_built_in(record):
        return "other", ""
    cls = registry.load(registry.ARCHITECTURE, record.name)
    return cls.family, "" if cls.paper is None else f"{cls.paper.authors} {cls.paper.year}"


def _findings(lines: Sequence[Line], boards: Sequence[Board], tasks: Sequence[str]) -> list[str]:
    """What is best for each purpose and for all of them, among the architectures that are not given counts."""
    own, found, means = [line for line in lines if line.family != COUNTS], [], []
    for purpose, measured_by in PURPOSES.items():
        ranked = {place: len(_run_on(own, [place])) for place, task in enumerate(tasks) if task in measured_by}
        # A track of few architectures would leave the finding to them alone.
        places = [place for place, count in ranked.items() if count > 1 and 2 * count > max(ranked.values())]
        everywhere = _run_on(own, places)
        if not places:
            continue
        means.append({line.name: _mean(line, places) for line in everywhere})
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
    return [line for line in lines if all(line.cells[place] is not None for place in places)]


def _mean(line: Line, places: Sequence[int]) -> float:
    """The mean of the normalized scores on the tracks at these places, on all of which the architecture was run."""
    return statistics.fmean(cell.row.normalized or 0.0 for place in places if (cell := line.cells[place]) is not None)


def _highest(means: Mapping[str, float]) -> str:
    """Which three have the highest means, and what they are."""
    best = sorted(means, key=lambda name: (-means[name], name))[:3]
    return f"{_listed([f'{name} ({100 * means[name]:.0f})' for name in best])} have the highest mean normalized scores"


def _ahead(purpose: str, lines: Sequence[Line], own: Sequence[Line], place: int, track: str) -> str:
    """Which of them are ahead on the one track of a purpose, by the significance test."""
    there = [(line.name, cell) for line in own if (cell := line.cells[place]) is not None]
    cells = dict(sorted(there, key=lambda one: (-(one[1].row.normalized or 0.0), one[0])))
    least = min(cell.rank for cell in cells.values())
    first = [name for name, cell in cells.items() if cell.rank == least]
    score = max(cells[name].row.normalized or 0.0 for name in first)
    return (
        f"{purpose.capitalize()} ({track}): {_listed(first)} {'are level' if first[1:] else 'is ahead'}, "
        f"of {len(cells)} architectures, with a normalized score of {100 * score:.0f}.{_counts(lines, place, least)}"
    )


def _counts(lines: Sequence[Line], place: int, least: int) -> str:
    """Which of those that are given counts are before the best of the others."""
    before = [
        line.name
        for line in lines
        if line.family == COUNTS and (cell := line.cells[place]) is not None and cell.rank < least
    ]
    return (
        f" Given counts of n-grams, {_listed(before)} {'are' if len(before) > 1 else 'is'} before them."
        if before
        else ""
    )


def _listed(names: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
