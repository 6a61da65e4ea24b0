"""The baselines of a track side by side: scores, time, and how far each is from the best that does not know the truth.

Differences are paired: both predictors answer the same instances, so the standard error is that of the difference over
instances, far less than either score's own.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pydantic

from regbench.evaluation.baselines import Announce, default_baselines, predict_baseline, score_stored
from regbench.metrics.scores import Scores
from regbench.report.content import human_seconds, label
from regbench.results import ScoreRecord
from regbench.tracks import Track
from regbench.utils.errors import UserError, explain_validation
from regbench.utils.files import atomic_write, read_text, write_json
from regbench.utils.settings import Strict

BEGIN, END = "<!-- scores: begin -->", "<!-- scores: end -->"
"""The tables stand between these two lines of a Markdown file."""

_ROUNDING = 1e-9
"""Relative: what sums of numbers that are alike differ by."""


class Row(Strict):
    """One baseline on one test split.

    Attributes:
        options: Its options.
        version: The baseline's `version` when it was measured.
        scores: By score its value and standard error.
        difference: By score its value less that of the best baseline, paired over instances. The best itself has none.
        seconds: Wall time.
        processor_seconds: Processor time of all threads together. Other programs on the machine do not add to it.
        threads: How many threads there were.
    """

    options: dict[str, Any]
    version: int
    scores: dict[str, ScoreRecord]
    difference: dict[str, ScoreRecord]
    seconds: float = pydantic.Field(ge=0)
    processor_seconds: float = pydantic.Field(ge=0)
    threads: int = pydantic.Field(ge=1)


class TrackTable(Strict):
    """The baselines of one track, the best first.

    Attributes:
        split: Fingerprint of the test split.
        instances: How many instances the split has.
        main_score: The score that orders the rows.
        losses: The scores of which lower is better.
        best: The baseline that differences are to: the best one that does not know the truth.
        rows: By the baselines' names.
    """

    split: str
    instances: int
    main_score: str
    losses: list[str]
    best: str
    rows: dict[str, Row]

    @property
    def metrics(self) -> list[str]:
        """The names of the scores."""
        return list(self.rows[self.best].scores)


class Table(Strict):
    """What `regbench baselines` has measured, by track."""

    schema_version: Literal[2] = 2
    tracks: dict[str, TrackTable]


def measure(track: Track, announce: Announce = lambda name, done, total: None) -> TrackTable:
    """Scores the default baselines on the test split. Predictions come from the cache where it has them.

    Args:
        track: The track.
        announce: Is told of progress.

    Raises:
        UserError: No baseline is for the track's task.
    """
    test = track.instances("test")
    baselines = default_baselines(track, test)
    if not any(baseline.anchor != "end" for baseline in baselines):
        raise UserError(f"no baseline is for the task '{track.definition.task}' of {track.name}")
    main = track.definition.main_score
    sign = track.metrics[main].sign
    scored: dict[str, Scores] = {}
    costs: dict[str, dict[str, Any]] = {}
    for baseline in baselines:
        made = predict_baseline(baseline, track, test, partial(announce, baseline.name))
        scored[baseline.name] = score_stored(track, test, made.stored)
        costs[baseline.name] = made.costs
    baselines.sort(key=lambda baseline: sign * scored[baseline.name][main].value, reverse=True)
    best = next(baseline.name for baseline in baselines if baseline.anchor != "end")
    rows = {}
    for baseline in baselines:
        name = baseline.name
        rows[name] = Row(
            options=json.loads(json.dumps(baseline.options)),  # tuples become lists, as in a file that is read
            version=baseline.version,
            scores=scored[name].table(),
            difference={} if name == best else difference(scored[name], scored[best]),
            **costs[name],
        )
    return TrackTable(
        split=test.fingerprint,
        instances=len(test),
        main_score=main,
        losses=[name for name, metric in track.metrics.items() if not metric.higher_is_better],
        best=best,
        rows=rows,
    )


def difference(one: Scores, other: Scores) -> dict[str, ScoreRecord]:
    """By score its value of `one` less that of `other`, with the standard error of the paired difference over instances."""
    return {m: ScoreRecord.of(one.sums[m] - other.sums[m], one.counts_of(m)) for m in one.sums}


# --- Reading and writing: a Markdown file for people, and beside it the same numbers in full. ---


def numbers_of(page: Path) -> Path:
    """The JSON file beside a page."""
    return page.with_name("scores.json")


def read_table(path: Path) -> Table:
    """Reads the numbers.

    Raises:
        UserError: The file cannot be read or is not of the schema.
    """
    with explain_validation(str(path), Table.model_fields):
        return Table.model_validate_json(read_text(path))


def write_tables(page: Path, measured: dict[str, TrackTable]) -> None:
    """Writes measured tracks into a page, and their numbers into the file beside it. Other tracks there stay as they are.

    Args:
        page: A Markdown file with a place for the tables.
        measured: By track name.

    Raises:
        UserError: The page cannot be read or has no place for the tables.
    """
    text = read_page(page)
    numbers = numbers_of(page)
    before = read_table(numbers).tracks if numbers.exists() else {}
    table = Table(tracks=before | measured)
    write_json(numbers, table.model_dump(mode="json"))
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    with atomic_write(page) as file:
        file.write(f"{text[:start]}\n{markdown(table)}{text[end:]}")


def read_page(page: Path) -> str:
    """Reads a page that has a place for the tables.

    Raises:
        UserError: It cannot be read, or has no such place.
    """
    text = read_text(page)
    if not re.search(f"{re.escape(BEGIN)}.*{re.escape(END)}", text, flags=re.DOTALL):
        raise UserError(f"{page} has no lines '{BEGIN}' and '{END}' to put the tables between")
    return text


def markdown(table: Table) -> str:
    """Makes a Markdown table for each track, in the order in which they were measured."""
    return "".join(f"\n### {name}\n\n{_track_markdown(track)}" for name, track in table.tracks.items()) + "\n"


def _track_markdown(track: TrackTable) -> str:
    scores, differences = score_cells(track), difference_cells(track)
    rows = [[*s, *d[1:]] for s, d in zip(scores, differences, strict=True)]
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    return "".join([lines[0], f"|{' --- |' * len(rows[0])}\n", *lines[1:]])


def score_cells(track: TrackTable) -> list[list[str]]:
    """The head, then a row for each baseline with its name and every score, as text."""
    head = ["baseline", *(f"{label(m)} {'↓' if m in track.losses else '↑'}" for m in track.metrics)]
    return [head, *([name, *(str(row.scores[m]) for m in track.metrics)] for name, row in track.rows.items())]


def difference_cells(track: TrackTable) -> list[list[str]]:
    """The head, then a row for each baseline with its name, its losses less those of the best, and its times, as text."""
    head = ["baseline", *(f"{label(m)} minus {track.best}" for m in track.losses), "wall time", "processor time"]
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
