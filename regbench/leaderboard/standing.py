"""The entries of a track as others stand beside them: their scores for a comparison, and the rank that a run would have."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regbench.evaluation.find_predictors import KnownScores
from regbench.leaderboard.entry import Entry, sample_of
from regbench.leaderboard.spread import prior_of
from regbench.leaderboard.store import ENTRY_BYTES, Stored, find_board, find_entry, stored_in
from regbench.leaderboard.table import rows_of
from regbench.metrics.significance import Prior, Sample
from regbench.results import ArchitectureRecord, Result, ScoreRecord, SeedRecord, TrackRecord
from regbench.tracks import Track
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused

FULL = 0.9
"""The least share of the track's training tokens with which an entry is ranked: others are held against full trainings."""


class Entries:
    """The board here, for `regbench.evaluation.find_predictors`."""

    def names(self, track: Track) -> list[str]:
        """The names of the entries of a track: of the board here, and of the table that ships with regbench."""
        here, shipped = map(_name, _of_track(track.name)), (row["entry"] for row in rows_of(track.name))
        return sorted({*here, *shipped})

    def track_of(self, file: str) -> str | None:
        """The name of the track that an entry's file is of. None where it is no such file."""
        return find_entry(file).entry.track if _is_file(file) else None

    def seconds(self, track: Track) -> float | None:
        """The median over entries of how long one seed trained, in seconds. None without entries.

        Entries are not checked here, which would take seconds. One that cannot be read is left out.
        """
        found: list[float] = []
        for stored in _of_track(track.name):
            with contextlib.suppress(Refused, ValueError, LookupError, TypeError):
                content = json.loads(stored.folder.read(stored.path.name, ENTRY_BYTES))
                found += [seed["seconds"] for seed in content["result"]["seeds"]]
        return statistics.median(found) if found else None

    def scores(self, name: str, track: Track) -> KnownScores | None:
        """The scores of an entry of a track, by its name or its file; see `names`. None where there is none of that name."""
        found = [find_entry(name)] if _is_file(name) else [one for one in _of_track(track.name) if _name(one) == name]
        if not found:
            return _shipped(name, track)
        stored, entry = found[0], found[0].entry
        if stored.faults:
            raise UserError(f"{stored.path} is no whole entry: {stored.faults[0]}")
        record = entry.result.track
        test = track.instances("test").fingerprint
        if record.digest != track.definition.digest or record.fingerprints["test"] != test:
            if entry.track == track.name:
                raise UserError(f"{stored.path} is an entry of another definition of {track.name} than today's")
            raise UserError(
                f"{stored.path} is an entry of {entry.track}, not of {track.name}; give --track {entry.track}"
            )
        scores = {metric: entry.result.score(metric) for metric in entry.metrics}
        main = sample_of(entry.result.seeds, entry.instances, record.main_score)
        return KnownScores(entry.name, scores, main, entry.result)

    def prior(self, track: Track) -> Prior:
        return prior_of(track.definition.digest, track.metrics[track.definition.main_score])


@dataclass(frozen=True)
class Standing:
    """Where a result would stand among the entries of its track."""

    rank: int  # 1 for the best. Entries with the same architecture, options and training count as others
    entries: int  # how many entries with the full budget there are without it, claimed ones too
    above: list[tuple[str, ScoreRecord]]
    """The names and scores of up to three entries that are better, the nearest last."""
    below: list[tuple[str, ScoreRecord]]  # the same of up to three that are not better, the nearest first


def budget_share(result: Result, track: Track | None) -> float:
    """The share of the track's budget that the shortest training saw. 1 where the track is gone."""
    if track is None:
        return 1.0
    return min(seed.tokens for seed in result.seeds) / track.definition.budget.train_tokens


def percent(share: float) -> int:
    """A share of the budget in percent. It is rounded, but not up to `FULL`: 89.99 % has no rank, and is not 90 %."""
    return round(100 * share) if share >= FULL else min(round(100 * share), round(100 * FULL) - 1)


def standing_of(result: Result, track: Track) -> Standing | None:
    """The rank by the mean over seeds that a result would have. None where its track has no entries."""
    main = result.track.main_score
    entries = [entry for entry in whole_entries(result.track) if budget_share(entry.result, track) >= FULL]
    if not entries:
        return None
    sign = track.metrics[main].sign
    own = statistics.fmean(seed.scores[main].value for seed in result.seeds)
    ranked = sorted(((entry.name, entry.result.score(main)) for entry in entries), key=lambda e: -sign * e[1].value)
    better = [one for one in ranked if sign * one[1].value > sign * own]
    return Standing(len(better) + 1, len(ranked), better[-3:], ranked[len(better) :][:3])


def whole_entries(track: TrackRecord) -> Iterator[Entry]:
    """The entries on the board here of this definition of a track, without those that cannot be read or have been changed."""
    for stored in _of_track(track.name):
        try:
            whole = not stored.faults and stored.entry.result.track.digest == track.digest
        except Refused:  # `regbench leaderboard` says so
            continue
        if whole:
            yield stored.entry


def _of_track(name: str) -> list[Stored]:
    """The entries of a track on the board here. Empty where there is no board."""
    try:
        return stored_in(find_board(None) / "entries" / name)
    except UserError:
        return []


def _shipped(name: str, track: Track) -> KnownScores | None:
    """The scores of an entry of the table that ships with regbench, and of its result what stands there."""
    rows = [row for row in rows_of(track.name) if row["entry"] == name]
    if not rows:
        return None
    seeds: dict[str, dict[str, ScoreRecord]] = {}
    for row in rows:
        record = ScoreRecord(value=float(row["value"]), stderr=float(row["stderr"]))
        seeds.setdefault(row["seed"], {})[row["score"]] = record
    main = [records[track.definition.main_score] for records in seeds.values()]
    architecture = ArchitectureRecord.model_construct(
        name=rows[0]["architecture"],
        parameters=int(rows[0]["parameters"]),
        state_bytes=int(rows[0]["state"]) if rows[0]["state"] else None,
        state_at={},
    )
    tokens = {row["seed"]: int(row["tokens"]) for row in rows}
    trained = [SeedRecord.model_construct(seed=int(seed), tokens=tokens[seed], reach=None) for seed in seeds]
    return KnownScores(
        name,
        {metric: ScoreRecord.over_seeds([one[metric] for one in seeds.values()]) for metric in track.task.scores},
        Sample([one.value for one in main], np.empty(0), error=statistics.fmean(one.stderr for one in main)),
        Result.model_construct(architecture=architecture, seeds=trained, evaluation=None),
    )


def _is_file(name: str) -> bool:
    return name.endswith(".json") and Path(name).is_file()


def _name(stored: Stored) -> str:
    """The name of an entry, from that of its file, without the digits behind it."""
    return stored.path.stem.rpartition("-")[0]
