"""The table of measured baselines: a Markdown file for people, and beside it the same numbers in full."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from regbench.evaluation.measured_baselines import TrackTable
from regbench.report.content import human_seconds, label
from regbench.report.table import markdown_table
from regbench.results import ScoreRecord
from regbench.utils.errors import UserError, explain_validation
from regbench.utils.files import atomic_write, read_text, write_json
from regbench.utils.settings import Strict

BEGIN, END = "<!-- scores: begin -->", "<!-- scores: end -->"
"""The tables stand between these two lines of a Markdown file."""

_ROUNDING = 1e-9
"""Relative: what sums of numbers that are alike differ by."""


class Table(Strict):
    """What `regbench baselines` has measured, by track."""

    schema_version: Literal[2] = 2
    tracks: dict[str, TrackTable]


def numbers_of(page: Path) -> Path:
    return page.with_name("scores.json")


def read_table(path: Path) -> Table:
    with explain_validation(str(path), Table.model_fields):
        return Table.model_validate_json(read_text(path))


def write_tables(page: Path, measured: dict[str, TrackTable]) -> None:
    """Writes measured tracks into a page, and their numbers into the file beside it. Other tracks there stay as they are."""
    text = read_page(page)
    numbers = numbers_of(page)
    before = read_table(numbers).tracks if numbers.exists() else {}
    table = Table(tracks=before | measured)
    write_json(numbers, table.model_dump(mode="json"))
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    with atomic_write(page) as file:
        file.write(f"{text[:start]}\n{markdown(table)}{text[end:]}")


def read_page(page: Path) -> str:
    """Reads a page that has a place for the tables."""
    text = read_text(page)
    if not re.search(f"{re.escape(BEGIN)}.*{re.escape(END)}", text, flags=re.DOTALL):
        raise UserError(f"{page} has no lines '{BEGIN}' and '{END}' to put the tables between")
    return text


def markdown(table: Table) -> str:
    """Makes a Markdown table for each track, in the order in which they were measured."""
    text = ""
    for name, track in table.tracks.items():
        heads, *rows = [
            [*s, *d[1:]] for s, d in zip(score_cells(name, track), difference_cells(name, track), strict=True)
        ]
        text += "\n".join(["", f"### {name}", "", *markdown_table(heads, rows, len(heads)), ""])
    return f"{text}\n"


def score_cells(name: str, track: TrackTable) -> list[list[str]]:
    """The head, then a row for each baseline with its name and every score, as text."""
    head = ["baseline", *(f"{label(m, name)} {'↓' if m in track.losses else '↑'}" for m in track.metrics)]
    return [head, *([one, *(str(row.scores[m]) for m in track.metrics)] for one, row in track.rows.items())]


def difference_cells(name: str, track: TrackTable) -> list[list[str]]:
    """The head, then a row for each baseline with its name, its losses less those of the best, and its times, as text."""
    head = ["baseline", *(f"{label(m, name)} minus {track.best}" for m in track.losses), "wall time", "processor time"]
    rows = [
        [
            name,
            *(_signed(row.difference.get(m)) for m in track.losses),
            _time(row.seconds),
            _time(row.processor_seconds),
        ]
        for name, row in track.rows.items()
    ]
    return [head, *rows]


def _signed(record: ScoreRecord | None) -> str:
    """A difference and how many of its standard errors it is, e.g. "+0.147 (+45 s.e.)".

    A difference that is the same in every instance has none: what is left is rounding.
    """
    if record is None:
        return ""
    ratio = f" ({record.value / record.stderr:+.0f} s.e.)" if record.stderr > _ROUNDING * abs(record.value) else ""
    return f"{record.value:+.3f}{ratio}"


def _time(seconds: float) -> str:
    return human_seconds(seconds) if seconds >= 1 else f"{seconds:.2f} s"
