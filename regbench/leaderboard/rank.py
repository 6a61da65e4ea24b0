"""From entries to ranked boards: the median over seeds decides, and a paired bootstrap says which ranks are within noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regbench.leaderboard.entry import Entry
from regbench.metrics.metric import METRICS, Metrics
from regbench.metrics.scores import normalized_scores
from regbench.results import BaselineRecord, ScoreRecord
from regbench.tracks.track import Track, frozen_tracks, track_names
from regbench.utils.errors import UserError

RESAMPLES = 10_000
SIGNIFICANCE = 0.05
"""Two entries whose difference has a larger p-value are level with each other."""
_BOOTSTRAP_SEED = 20240123


@dataclass(frozen=True)
class Row:
    """One predictor on a board.

    name: as shown.  kind: "entry" is ranked; "baseline" stands among them unranked.
    scores: by metric; of an entry the median over seeds and the spread (standard deviation over seeds / sqrt(n)), of a baseline
    the mean and its standard error over instances.
    way: how far from the unigram model (0) to the truth (1) by the main score; None where the track has no such two.
    rank: 1 for the best entry; None of a baseline.  level_with: the ranks of other entries within noise of this one.
    p_next: two-sided p-value of the difference to the entry one rank below; None of the last one and of baselines.
    entry, baseline: all there is to know of it: `entry.result.seeds[i].curves`, `baseline.curves`, ...; one of them is None.
    """

    name: str
    kind: Literal["entry", "baseline"]
    scores: Mapping[str, ScoreRecord]
    way: float | None
    rank: int | None = None
    level_with: tuple[int, ...] = ()
    p_next: float | None = None
    entry: Entry | None = None
    baseline: BaselineRecord | None = None

    @property
    def anchor(self) -> Literal["start", "end"] | None:
        """Whether the way starts here ("start", the unigram model) or ends ("end", the truth)."""
        return self.baseline.anchor if self.baseline is not None else None


@dataclass(frozen=True)
class Board:
    """One track's entries and baselines, best first by the main score.

    track: its name.  summary: the track in a line; "" where its file is gone.  digest: of its definition.
    main_score, metrics: the score that ranks; all scores, that one first.  known: what each of them is.
    retired: why entries can no longer be submitted here; None of a current track.
    n_instances: of the test split.
    """

    track: str
    summary: str
    digest: str
    main_score: str
    metrics: tuple[str, ...]
    known: Metrics
    n_instances: int
    retired: str | None
    rows: tuple[Row, ...]

    @property
    def entries(self) -> list[Entry]:
        """By rank."""
        return [row.entry for row in self.rows if row.entry is not None]

    @property
    def file_stem(self) -> str:
        """What its tables are called: the track's name, and where that now means something else its digest too."""
        frozen = frozen_tracks().get(self.track)
        edited = frozen is not None and frozen["digest"] != self.digest
        return f"{self.track}-{self.digest[:8]}" if edited else self.track


def rank(entries: Sequence[Entry], own: Track | None = None) -> list[Board]:
    """A board for each track there are entries of: current ones first, then the retired, each by name.

    own: one's own track, which counts as current though it is not among the built-in ones.

    Raises:
        UserError: two entries of a track have one name or one configuration, or do not agree on what they were measured by.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: e.name):
        groups.setdefault((entry.track, entry.result.track.digest), []).append(entry)
    boards = [_board(group, own) for group in groups.values()]
    return sorted(boards, key=lambda board: (board.retired is not None, board.track, board.digest))


def retirement(track: str, digest: str) -> str | None:
    """Why a track takes no more entries; None where it does. A track retires when a higher version of it appears."""
    names = track_names()
    stem, _, version = track.rpartition("-v")
    if track not in names:
        return "its definition is no longer here"
    frozen = frozen_tracks().get(track)
    if frozen is not None and frozen["digest"] != digest:
        return f"made on another definition of {track}"
    later = [n for n in names if n.rpartition("-v")[0] == stem and int(n.rpartition("-v")[2]) > int(version)]
    return f"{max(later, key=lambda n: int(n.rpartition('-v')[2]))} has taken its place" if later else None


def compare(totals: NDArray[np.float64], resamples: int = RESAMPLES) -> NDArray[np.float64]:
    """Two-sided p-values of "no difference", by a paired bootstrap over instances: (E, N) -> (E, E), 1 on the diagonal.

    totals: each entry's sums over an instance's scored positions, averaged over its seeds. Every resample draws N instances with
    replacement, the same for all entries, so what makes an instance hard for all of them cancels; since all are scored on
    the same positions, the sign of a difference of sums is that of the scores. The noise over seeds is not in it.
    p = 2 (1 + k) / (1 + resamples), at most 1, where k counts the resamples on the rarer side of no difference; a resample
    without a difference counts on both. (Efron and Tibshirani 1993, "An Introduction to the Bootstrap".)
    """
    n = totals.shape[1]
    rng = np.random.Generator(np.random.PCG64(_BOOTSTRAP_SEED))
    below = np.zeros((len(totals), len(totals)), np.int64)
    above = np.zeros_like(below)
    small = 1e-9 * np.abs(totals).sum(1).max(initial=0.0)  # what rounding leaves of no difference
    for start in range(0, resamples, 1000):
        size = min(1000, resamples - start)
        drawn = rng.integers(0, n, (size, n)) + n * np.arange(size)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
        sums = weights @ totals.T
        for i in range(len(totals)):
            difference = sums[:, i : i + 1] - sums
            below[i] += (difference <= small).sum(0)
            above[i] += (difference >= -small).sum(0)
    return np.minimum(1.0, 2.0 * (1 + np.minimum(below, above)) / (1 + resamples))


def _board(entries: Sequence[Entry], own: Track | None) -> Board:
    first = entries[0]
    digest = first.result.track.digest
    current = own is not None and (own.name, own.definition.digest) == (first.track, digest)
    _check_agreement(entries)
    main = first.result.track.main_score
    described = METRICS if own is None else Metrics(METRICS | own.metrics)
    known = Metrics({name: described[name] for name in first.metrics})
    best_first = -1 if known[main].higher_is_better else 1
    ordered = sorted(entries, key=lambda e: (best_first * e.result.score(main).value, e.name))
    p = compare(np.stack([e.instances.total(main) / len(e.result.seeds) for e in ordered]))
    baselines = {name: record for e in entries for name, record in e.result.baselines.items()}
    rows = [_entry_row(e, i, p, baselines) for i, e in enumerate(ordered)]
    rows += [_baseline_row(name, record, main, baselines) for name, record in baselines.items()]
    rows.sort(key=lambda row: (best_first * row.scores[main].value, row.kind, row.rank or 0, row.name))
    return Board(
        track=first.track,
        summary=track_names().get(first.track, ""),
        digest=digest,
        main_score=main,
        metrics=tuple(first.metrics),
        known=known,
        n_instances=len(first.instances.counts),
        retired=None if current else retirement(first.track, digest),
        rows=tuple(rows),
    )


def _entry_row(entry: Entry, i: int, p: NDArray[np.float64], baselines: Mapping[str, BaselineRecord]) -> Row:
    main = entry.result.track.main_score
    scores = {metric: entry.result.score(metric) for metric in entry.metrics}
    return Row(
        name=entry.name,
        kind="entry",
        scores=scores,
        way=normalized_scores(scores, baselines).get(main),
        rank=i + 1,
        level_with=tuple(int(j) + 1 for j in np.flatnonzero(p[i] >= SIGNIFICANCE) if j != i),
        p_next=float(p[i, i + 1]) if i + 1 < len(p) else None,
        entry=entry,
    )


def _baseline_row(name: str, record: BaselineRecord, main: str, baselines: Mapping[str, BaselineRecord]) -> Row:
    way = normalized_scores(record.scores, baselines).get(main)
    return Row(name=name, kind="baseline", scores=record.scores, way=way, baseline=record)


def _check_agreement(entries: Sequence[Entry]) -> None:
    """What must be one and the same for entries to be compared."""
    first = entries[0]
    names: dict[str, Entry] = {}
    configurations: dict[str, Entry] = {}
    for entry in entries:
        for seen, key in ((names, entry.name), (configurations, entry.configuration)):
            if key in seen:
                raise UserError(f"{entry.track} has an entry twice: {seen[key].file_name} and {entry.file_name}")
            seen[key] = entry
        if entry.result.track != first.result.track or set(entry.metrics) != set(first.metrics):
            raise UserError(f"{entry.file_name} and {first.file_name} are not of the same {entry.track}")
        if entry.instances.counts != first.instances.counts:
            raise UserError(f"{entry.file_name} and {first.file_name} are scored on different positions")
        for name, record in entry.result.baselines.items():
            other = first.result.baselines.get(name, record)
            for metric, score in record.scores.items():
                if metric not in other.scores or abs(score.value - other.scores[metric].value) > 1e-4:
                    raise UserError(f"{entry.file_name} and {first.file_name} disagree on the baseline {name}")
