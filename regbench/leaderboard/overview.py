"""The overview of the leaderboard: how far each architecture goes on the reach tracks, and which goes farthest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from regbench.leaderboard.entry import Entry
from regbench.leaderboard.origin import is_built_in, registered, set_otherwise
from regbench.leaderboard.rank import Board
from regbench.leaderboard.table import as_words
from regbench.metrics.reach import reaches
from regbench.report.content import human_bytes
from regbench.results import ArchitectureRecord, Reach
from regbench.tracks import load_track
from regbench.utils import registry

ABILITIES = {
    "recall-reach-v2": "recall",
    "copy-reach-v1": "copying",
    "state-reach-v1": "state tracking",
    "automata-reach-v1": "automata",
    "distance-reach-v1": "distance",
}
"""By track what it measures: the columns of the overview."""

TUNED = "n_heads"
"""Chosen for each track on validation, as the training options are. So it is no part of what a row is called."""

SMALL = 16 << 10
"""Bytes of state. The overview says what goes farthest with no more."""

FEW = 3
"""Of fewer rows with so small a state the overview says how many there are."""


@dataclass(frozen=True)
class Cell:
    """The best ranked entry of an architecture on a track, its area, and its reach by group ("" where there are no groups)."""

    entry: Entry
    area: float
    reaches: Mapping[str, Reach]
    state: int | None  # bytes at the track's longest context, where they are known
    behind: frozenset[str]  # the names of the entries that the test of the board, which is by area, finds ahead

    @property
    def record(self) -> ArchitectureRecord:
        return self.entry.result.architecture

    @property
    def words(self) -> str:
        """The reach for people, without its unit: "70", or "parity >= 256, s3 14"."""
        return ", ".join(f"{group} {reach}".strip() for group, reach in self.reaches.items())

    @property
    def short(self) -> bool:
        """Whether it holds not even the smallest size, in any group."""
        return all(reach.bound == "<" for reach in self.reaches.values())

    @property
    def far(self) -> tuple[float, float]:
        """What says which goes farther: the mean of the logarithms of its reaches, then the area."""
        ranks = [reach.rank for reach in self.reaches.values()]
        return statistics.fmean(math.log(size) + 1e-6 * bound for size, bound in ranks), self.area


@dataclass(frozen=True)
class Line:
    """An architecture with its options."""

    name: str  # with the options that are not its defaults, but for `TUNED` and training options
    family: str
    paper: str  # authors and year; "" of one that is not built in, of which nothing is loaded
    links: Mapping[str, str]  # where its "paper" and the "file" of its class are, as far as they are known
    cells: Mapping[str, Cell]  # by track
    mean: float | None  # of its areas over the tracks that more than half of the lines have. None if it lacks one

    @property
    def parameters(self) -> str:
        """Its trained numbers, in thousands. They differ between tracks, as vocabularies do."""
        return _span((cell.record.parameters for cell in self.cells.values()), lambda count: f"{count / 1000:,.0f}")

    @property
    def grows(self) -> bool:
        return any(cell.record.state_bytes is None for cell in self.cells.values())

    @property
    def state(self) -> str:
        """Its state for people. One that grows is that after 1,024 tokens."""
        known = [one for cell in self.cells.values() if (one := cell.record.state_after(1024)) is not None]
        return _span(known, human_bytes) + " at 1,024" * self.grows if known else human_bytes(None)


@dataclass(frozen=True)
class Ability:
    """A column: what people call it, its track, the cells by line, what sizes count, and the largest size in training."""

    name: str
    track: str
    cells: Mapping[str, Cell]
    unit: str
    trained: int
    untrained: str  # the best baseline that does not know the truth, with its area; "" of one that is near chance

    @property
    def farthest(self) -> dict[str, str]:
        """A row of the table of who goes farthest: with a fixed state, a small one, one that grows, and without training."""
        states = {name: cell.record.state_bytes for name, cell in self.cells.items()}
        fixed = [name for name, state in states.items() if state is not None]
        small = [name for name in fixed if (states[name] or 0) <= SMALL]
        # To be first of few says little.
        few = f" ({len(small)} of {len(self.cells)} rows)" if small and len(small) < FEW else ""
        return {
            "ability": self.name,
            "trained up to": f"{self.trained:,} {self.unit}",
            "fixed state": self._first(fixed),
            f"at most {SMALL >> 10} KiB": self._first(small) + few,
            "state that grows": self._first([name for name, state in states.items() if state is None]),
            "without training": self.untrained,
        }

    def _first(self, names: Sequence[str]) -> str:
        """Which of some go farthest, how far, in how much state. Those that read the same are level, with the first by area."""
        if not names:
            return ""
        first = max(names, key=lambda name: self.cells[name].far)
        level = [name for name in names if self.cells[name].words == self.cells[first].words]
        if self.cells[first].short:  # the area tells them apart
            level = [first]
        shown = listed(level if len(level) <= 3 else [*level[:2], f"{len(level) - 2} more"])
        text = f"{shown}: {self.cells[first].words}"
        if self.cells[first].short:
            text += f", area {self.cells[first].area:.2f}"
        fixed = [state for name in level if (state := self.cells[name].record.state_bytes) is not None]
        text += f", in {_span(fixed, human_bytes)}" if fixed else ""
        near = sum(self.cells[first].entry.name not in self.cells[name].behind for name in names if name not in level)
        return text + (f"; {near} more not told apart" if near else "")


@dataclass(frozen=True)
class Overview:
    """Architectures by abilities."""

    abilities: tuple[Ability, ...]  # those whose tracks have entries with a rank
    lines: tuple[Line, ...]  # by the mean of areas, best first. Those without one follow, by how many tracks they have
    counted: tuple[str, ...]  # the abilities that the mean is over

    @property
    def farthest(self) -> list[dict[str, str]]:
        """Who goes farthest, a row for each ability."""
        return [one.farthest for one in self.abilities]

    @property
    def about(self) -> str:
        return (
            "A cell is the reach of the best ranked entry: the largest size up to which the accuracy, rescaled so that chance is "
            "0 and the best possible is 1, stays at 0.9 or more (median over seeds). The area is the mean of this accuracy over "
            "all tested sizes. The order is by the mean area over the tracks that more than half of the rows have "
            f"({listed(self.counted) or 'none'}). Rows that lack one of these come last. A row is an architecture with its "
            "options. Heads and training options were chosen for each track on its validation split, so state and parameters "
            "can differ between tracks. A state that grows is given after 1,024 tokens."
        )


def overview(boards: Sequence[Board]) -> Overview:
    """The overview of some boards. A stranger's `lstm.py` is not `lstm`: its file stands in its name."""
    here = {board.track: board for board in boards}
    found: dict[str, dict[str, Cell]] = {}
    for track in (one for one in ABILITIES if one in here):
        longest = load_track(track).task.io.max_length
        for row in sorted(here[track].rows, key=lambda row: row.rank or 0):
            if row.entry is not None and row.rank:
                state, area = row.entry.result.architecture.state_after(longest), row.scores["area"].value
                cell = Cell(row.entry, area, reaches(row.entry.result), state, row.better)
                found.setdefault(_name(row.entry), {}).setdefault(track, cell)
    counted = [track for track in ABILITIES if 2 * sum(track in cells for cells in found.values()) > len(found)]
    lines = sorted((_line(name, cells, counted) for name, cells in found.items()), key=_order)
    abilities = []
    for track, name in ABILITIES.items():
        if cells := {line.name: line.cells[track] for line in lines if track in line.cells}:
            unit = next(iter(cells.values())).entry.result.seeds[0].curves["area"].axis or "tokens"
            baselines = [row for row in here[track].rows if row.entry is None and row.anchor is None]
            area, best = max(((row.scores["area"].value, row.name) for row in baselines), default=(0.0, ""))
            untrained = f"{best}, area {area:.2f}" if area > 0.05 else ""
            abilities.append(Ability(name, track, cells, unit, load_track(track).task.trained or 0, untrained))
    return Overview(tuple(abilities), tuple(lines), tuple(ABILITIES[track] for track in counted))


def about(record: ArchitectureRecord) -> tuple[str, dict[str, str]]:
    """Whom an architecture cites, and its links, as a `Line` has them."""
    if not is_built_in(record):
        return "", {}
    paper, links = registry.load(registry.ARCHITECTURE, record.name).paper, {"file": registered()[record.name].source}
    if paper is not None and paper.arxiv:
        links["paper"] = f"https://arxiv.org/abs/{paper.arxiv}"
    return "" if paper is None else f"{paper.authors} {paper.year}", links


def listed(names: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _name(entry: Entry) -> str:
    record = entry.result.architecture
    own = record.name if is_built_in(record) else f"{record.name} ({record.source})"
    options = set_otherwise(entry.configuration, record)
    shown = {key: value for key, value in options.items() if key != TUNED and not key.startswith("training.")}
    return f"{own} {as_words(shown)}".strip()


def _line(name: str, cells: Mapping[str, Cell], counted: Sequence[str]) -> Line:
    record, areas = next(iter(cells.values())).record, [cells[track].area for track in counted if track in cells]
    family = registry.load(registry.ARCHITECTURE, record.name).family if is_built_in(record) else "other"
    family = "counts" if record.options.get("ngram_heads") else family
    mean = statistics.fmean(areas) if areas and len(areas) == len(counted) else None
    return Line(name, family, *about(record), cells, mean)


def _order(line: Line) -> tuple[object, ...]:
    best = statistics.fmean(cell.area for cell in line.cells.values())
    return line.mean is None, -(line.mean or 0.0), -len(line.cells), -best, line.name


def _span(values: Iterable[int], form: Callable[[int], str]) -> str:
    """One value, or "12.5 KiB to 36.5 KiB" where they differ."""
    found = list(values)
    return " to ".join(dict.fromkeys((form(min(found)), form(max(found)))))
