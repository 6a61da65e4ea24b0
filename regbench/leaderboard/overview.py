"""The overview of the leaderboard: how far each architecture goes on the reach tracks, and sentences that follow from that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from regbench.leaderboard.entry import Entry
from regbench.leaderboard.origin import is_built_in, registered, set_otherwise
from regbench.leaderboard.rank import Board, Row
from regbench.leaderboard.table import as_words
from regbench.metrics.reach import reaches
from regbench.report.content import human_bytes
from regbench.results import ArchitectureRecord, Reach
from regbench.tracks import load_track
from regbench.utils import registry

ABILITIES = {
    "recall-reach-v1": "recall",
    "copy-reach-v1": "copying",
    "state-reach-v1": "state tracking",
    "automata-reach-v1": "automata",
    "distance-reach-v1": "distance",
}
"""By track what it measures: the columns of the overview."""

TUNED = "n_heads"
"""Chosen for each track on validation, as the training options are. So it is no part of what a row is called."""

SMALL = 16 << 10
"""Bytes of state. A sentence says what goes farthest with no more."""

_BOUNDS = {"<": -1, "": 0, ">=": 1}


@dataclass(frozen=True)
class Cell:
    """The best ranked entry of an architecture, with its options, on a reach track.

    Attributes:
        row: The row of its board.
        reaches: Its reach, by group; "" where the track has no groups.
    """

    row: Row
    reaches: Mapping[str, Reach]

    @property
    def entry(self) -> Entry:
        """The entry."""
        assert self.row.entry is not None
        return self.row.entry

    @property
    def record(self) -> ArchitectureRecord:
        """The architecture of the entry."""
        return self.entry.result.architecture

    @property
    def area(self) -> float:
        """The main score of its track."""
        return self.row.scores["area"].value

    @property
    def words(self) -> str:
        """The reach for people, without its unit: "70", or "parity >= 256, s3 14"."""
        return ", ".join(f"{group} {reach}".strip() for group, reach in self.reaches.items())

    @property
    def far(self) -> tuple[float, float]:
        """What says which goes farther: the mean of the logarithms of its reaches, then the area."""
        sizes = [math.log(reach.size) + 1e-6 * _BOUNDS[reach.bound] for reach in self.reaches.values()]
        return statistics.fmean(sizes), self.area


@dataclass(frozen=True)
class Line:
    """An architecture with its options.

    Attributes:
        name: Its name and the options that are not its defaults, but for `TUNED` and training options.
        family: One of `regbench.models.mixer.FAMILIES`.
        paper: Authors and year; "" of one that is not built in, of which nothing is loaded.
        links: Where its paper and the file of its class are, by "paper" and "file", as far as they are known.
        cells: By track.
        mean: The mean of its areas over the tracks that more than half of the lines have. None where it lacks one of them.
    """

    name: str
    family: str
    paper: str
    links: Mapping[str, str]
    cells: Mapping[str, Cell]
    mean: float | None

    @property
    def parameters(self) -> str:
        """Its trained numbers, in thousands. They differ between tracks, as vocabularies do."""
        return _span((cell.record.parameters for cell in self.cells.values()), lambda count: f"{count / 1000:,.0f} k")

    @property
    def largest(self) -> int | None:
        """Its largest state, in bytes. None where one grows."""
        found = [cell.record.state_bytes for cell in self.cells.values()]
        return None if None in found else max(state for state in found if state is not None)

    @property
    def state(self) -> str:
        """Its state for people. One that grows is that after 1,024 tokens."""
        found = [cell.record.state_after(1024) for cell in self.cells.values()]
        grows = " at 1,024 tokens" * (self.largest is None)
        return human_bytes(None) if None in found else _span((x for x in found if x is not None), human_bytes) + grows


@dataclass(frozen=True)
class Ability:
    """A column.

    Attributes:
        name: What people call it.
        board: The board of its track.
        unit: What its sizes count, such as "pairs".
        trained: The largest size in training.
    """

    name: str
    board: Board
    unit: str
    trained: int

    @property
    def track(self) -> str:
        """Its track."""
        return self.board.track


@dataclass(frozen=True)
class Overview:
    """Architectures by abilities.

    Attributes:
        abilities: The abilities whose tracks have entries with a rank.
        lines: By the mean of areas, best first. Those without a mean follow, by how many tracks they have.
        counted: The abilities that the mean is over.
        sentences: What the entries say: one for each ability, and one about small states.
    """

    abilities: tuple[Ability, ...]
    lines: tuple[Line, ...]
    counted: tuple[str, ...]
    sentences: tuple[str, ...]

    @property
    def about(self) -> str:
        """What a cell, a row and the order are."""
        mean = f"The order is by the mean area over the tracks that more than half of the rows have: {listed(self.counted)}."
        return (
            "A cell is the reach of the best ranked entry: the largest size up to which the accuracy, rescaled so that chance is "
            "0 and the best possible is 1, stays at 0.9 or more (median over seeds). The area is the mean of this accuracy over "
            f"all tested sizes. {mean if self.counted else 'No track has more than half of the rows.'} Rows that lack one of "
            "these come last. A row is an architecture with its options. Heads and training options were chosen for each track "
            "on its validation split, so state and parameters can differ between tracks. A state that grows is given after 1,024 "
            "tokens."
        )


def overview(boards: Sequence[Board]) -> Overview:
    """The overview of some boards, which are current. A stranger's `lstm.py` is not `lstm`: its file stands in its name."""
    here = {board.track: board for board in boards if board.file_stem == board.track}
    found: dict[str, dict[str, Cell]] = {}
    abilities = []
    for track, name in ABILITIES.items():
        ranked = [row for row in here[track].rows if row.entry is not None and row.rank] if track in here else []
        for row in sorted(ranked, key=lambda row: row.rank or 0):
            assert row.entry is not None
            cell = Cell(row, reaches(row.entry.result))
            found.setdefault(_name(row.entry), {}).setdefault(track, cell)
        if ranked and ranked[0].entry is not None:
            unit = ranked[0].entry.result.seeds[0].curves["area"].axis or "tokens"
            abilities.append(Ability(name, here[track], unit, load_track(track).task.trained or 0))
    counted = [one for one in abilities if 2 * sum(one.track in cells for cells in found.values()) > len(found)]
    lines = [_line(name, cells, [one.track for one in counted]) for name, cells in found.items()]
    lines.sort(key=_order)
    sentences = [_sentence(one, _cells(lines, one)) for one in abilities]
    sentences += [f"{name.capitalize()}: no entries yet." for name in _without(abilities)] if abilities else []
    if abilities:
        sentences.append(_of_small_states(lines, abilities))
    return Overview(tuple(abilities), tuple(lines), tuple(one.name for one in counted), tuple(sentences))


def about(record: ArchitectureRecord) -> tuple[str, dict[str, str]]:
    """Whom an architecture cites, and its links, as a `Line` has them."""
    if not is_built_in(record):
        return "", {}
    paper, links = registry.load(registry.ARCHITECTURE, record.name).paper, {"file": registered()[record.name].source}
    if paper is None:
        return "", links
    return f"{paper.authors} {paper.year}", links | (
        {"paper": f"https://arxiv.org/abs/{paper.arxiv}"} if paper.arxiv else {}
    )


def listed(names: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _without(abilities: Sequence[Ability]) -> list[str]:
    return [name for name in ABILITIES.values() if name not in [one.name for one in abilities]]


# --- Lines. ---


def _name(entry: Entry) -> str:
    record = entry.result.architecture
    own = record.name if is_built_in(record) else f"{record.name} ({record.source})"
    options = set_otherwise(entry.configuration, record)
    shown = {key: value for key, value in options.items() if key != TUNED and not key.startswith("training.")}
    return f"{own} {as_words(shown)}".strip()


def _line(name: str, cells: Mapping[str, Cell], counted: Sequence[str]) -> Line:
    record = next(iter(cells.values())).record
    areas = [cells[track].area for track in counted if track in cells]
    mean = statistics.fmean(areas) if areas and len(areas) == len(counted) else None
    family = "other"
    if is_built_in(record):
        family = registry.load(registry.ARCHITECTURE, record.name).family
        family = "counts" if record.options.get("ngram_heads") else family
    return Line(name, family, *about(record), cells, mean)


def _order(line: Line) -> tuple[object, ...]:
    best = statistics.fmean(cell.area for cell in line.cells.values())
    return (line.mean is None, -(line.mean or 0.0), -len(line.cells), -best, line.name)


def _span(values: Iterable[int], form: Callable[[int], str]) -> str:
    """One value, or "12.5 KiB to 36.5 KiB" where they differ."""
    found = list(values)
    return " to ".join(dict.fromkeys((form(min(found)), form(max(found)))))


# --- Sentences. ---


def _cells(lines: Sequence[Line], ability: Ability) -> dict[str, Cell]:
    return {line.name: line.cells[ability.track] for line in lines if ability.track in line.cells}


def _sentence(ability: Ability, cells: Mapping[str, Cell]) -> str:
    """Whether a fixed state passes the largest size in training, and what goes farthest with one and with one that grows."""
    fixed = {name: cell for name, cell in cells.items() if cell.record.state_bytes is not None}
    grows = {name: cell for name, cell in cells.items() if name not in fixed}
    groups = " in every group" * any(len(cell.reaches) > 1 for cell in cells.values())
    limit = f"{ability.trained:,} {ability.unit}{groups}, the most in training"
    past = sum(all(r.rank > (ability.trained, 0) for r in cell.reaches.values()) for cell in fixed.values())
    count = f"{past} of {len(fixed)} architectures" if len(fixed) > 1 else "the only architecture"
    if not fixed:
        text = "no entry has a fixed state"
    elif past:
        text = f"{count} with a fixed state pass{'es' * (past == 1)} {limit}; {_farthest(fixed, ability)}"
    elif none := _none(fixed, ability):
        text = f"nothing with a fixed state {none}"
    else:
        text = (
            f"nothing with a fixed state passes {limit}; {_farthest(fixed, ability, 'comes nearest', 'come nearest')}"
        )
    if grows:
        rest = _none(grows, ability)
        text += f". Of those whose state grows, {f'none {rest}' if rest else _farthest(grows, ability)}"
    return f"{ability.name.capitalize()}: {text}."


def _of_small_states(lines: Sequence[Line], abilities: Sequence[Ability]) -> str:
    parts = []
    for one in abilities:
        fixed = {n: c for n, c in _cells(lines, one).items() if c.record.state_bytes is not None}
        small = {name: cell for name, cell in fixed.items() if (cell.record.state_bytes or 0) <= SMALL}
        none = f"none {_none(small, one)}" if small and _none(small, one) else "no entry"
        parts.append(f"{one.name}, {none if not small or _none(small, one) else _farthest(small, one, '', '')}")
    return f"With a fixed state of at most {SMALL >> 10} KiB: {'; '.join(parts)}."


def _none(cells: Mapping[str, Cell], ability: Ability) -> str:
    """What none holds, such as "holds 2 pairs": the smallest size of any group. Empty where one does."""
    bounds = [reach for cell in cells.values() for reach in cell.reaches.values()]
    return "" if any(r.bound != "<" for r in bounds) else f"holds {min(r.size for r in bounds):,.0f} {ability.unit}"


def _farthest(
    cells: Mapping[str, Cell], ability: Ability, one: str = "goes farthest", more: str = "go farthest"
) -> str:
    """Which go farthest, how far, and in how much state if it is fixed. Those whose reach reads the same are level."""
    first = max(cells.values(), key=lambda cell: cell.far)
    level = [name for name, cell in cells.items() if cell.words == first.words]
    names = level if len(level) <= 3 else [*level[:2], f"{len(level) - 2} more"]
    fixed = [state for name in level if (state := cells[name].record.state_bytes) is not None]
    inside = f" in {_span(fixed, human_bytes)}" if fixed else ""
    who = f"{listed(names)} {one if len(level) == 1 else more}".strip()
    return f"{who}, {first.words} {ability.unit}{inside}"
