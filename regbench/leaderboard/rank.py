"""From entries to ranked boards. The mean over seeds ranks; a test that knows seeds and instances says which ranks are ties."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from regbench.evaluation.baselines import with_chance
from regbench.evaluation.language_models import LanguageModelEntry
from regbench.leaderboard.claim import todays_track
from regbench.leaderboard.entry import Entry, sample_of
from regbench.leaderboard.spread import Priors, fit_priors
from regbench.leaderboard.standing import FULL, budget_share, percent
from regbench.leaderboard.tiers import Evidence, Tier
from regbench.metrics.metric import METRICS, Metric, Metrics, metrics_told
from regbench.metrics.significance import SIGNIFICANCE, Prior, ahead, default_prior
from regbench.results import BaselineRecord, ScoreRecord, normalized_scores
from regbench.tracks.track import Track, track_names
from regbench.utils.errors import UserError

SOLVED = 0.985
"""The normalized score from which an entry counts as having solved its track."""

TIES = (
    "A rank such as 9–11 is a tie: the entry can have any of these ranks. The test counts the noise of seeds and of instances. "
    f"With a probability of {100 * (1 - SIGNIFICANCE):g} % all ranges of a board are right."
)
"""Explains ranges of ranks, on the page and in the tables."""


ABOUT_TIERS = (
    "The tier says what stands behind an entry. A *claimed* entry passes every check on its figures. Of a *verified* entry the "
    "weights were asked about fresh instances. A *reproduced* entry was trained again by somebody else. On a board with entries "
    "of a higher tier, claimed entries are listed below the others and have no rank."
)
"""Explains the column of tiers."""

FIRST = (
    "First place is for a reproduced entry. An entry that would be first and is not reproduced is listed below the next one, "
    "without a rank. On a board where no entry is reproduced, first place is open: all ranks are provisional and stand in "
    "brackets."
)
"""Explains who is shown as first."""


@dataclass(frozen=True)
class Row:
    """One predictor on a board."""

    name: str
    # by metric. Of an entry the mean over seeds, with its standard error over seeds; of a baseline the error is over instances
    scores: Mapping[str, ScoreRecord]
    normalized: float | None  # by the main score: 0 chance, 1 oracle. None where the track has no such baselines
    # 1 for the best mean. None of a baseline, of less than the full budget, and of a claimed entry on a board with higher tiers
    rank: int | None = None
    # the best and the worst rank that the test leaves open: 1 + the number of entries that are ahead, and the number of entries
    # that are not behind. Both are `rank` without a tie. None without a rank
    ties: tuple[int, int] | None = None
    better: frozenset[str] = frozenset()  # the names of the ranked entries ahead. They need not be the first ones
    learned: tuple[int, int] | None = None  # how many seeds have learned, and of how many, where some have not
    entry: Entry | None = None
    baseline: BaselineRecord | None = None
    evidence: Evidence | None = None
    budget_share: float = 1.0  # of the track's training tokens. With less than `FULL` it has no rank
    provisional: bool = False  # whether no entry of its board is reproduced, so that ranks are shown in brackets

    @property
    def kind(self) -> Literal["entry", "baseline"]:
        return "baseline" if self.baseline is not None else "entry"

    @property
    def held(self) -> bool:
        """Whether it has rank 1 and is not reproduced while another entry is. Then no rank is shown."""
        return self.rank == 1 and not self.provisional and self.tier != "reproduced"

    @property
    def tier(self) -> Tier | None:
        return None if self.evidence is None else self.evidence.tier

    @property
    def anchor(self) -> Literal["start", "end"] | None:
        """Whether the normalized score is 0 here ("start", chance) or 1 ("end", the oracle)."""
        return self.baseline.anchor if self.baseline is not None else None

    @property
    def shown_ties(self) -> tuple[int, int] | None:
        """The range of ranks that is shown. Where first place is given, that of an entry that is not reproduced begins at 2."""
        if self.ties is None or self.held:
            return None
        best, worst = self.ties
        return (best, worst) if self.provisional or self.tier == "reproduced" else (max(best, 2), worst)

    @property
    def place(self) -> str:
        """The rank as people read it: "3", with ties "9–11", provisional "(9–11)". Empty if no rank is shown."""
        if self.shown_ties is None:
            return ""
        best, worst = self.shown_ties
        text = str(best) if best == worst else f"{best}–{worst}"
        return f"({text})" if self.provisional else text

    @property
    def mark(self) -> str:
        """What stands behind the name of an entry without a rank: why it has none. Of a claimed entry the tier says it."""
        if self.held:
            return "would be first: not reproduced yet"
        return f"{percent(self.budget_share)} % of the budget" if self.budget_share < FULL else ""

    @property
    def learns(self) -> str:
        """In how many of its seeds an entry learns, where it does not in all. Else empty."""
        return "learns in {} of {} seeds".format(*self.learned) if self.learned else ""

    @property
    def title(self) -> str:
        """The name, and in brackets what there is to say of the entry."""
        notes = "; ".join(filter(None, (self.mark, self.learns)))
        return f"{self.name} ({notes})" if notes else self.name


@dataclass(frozen=True)
class Board:
    """One track's entries and baselines, best first by the main score."""

    track: str
    summary: str  # the track in one line
    digest: str  # of the track's definition
    metrics: tuple[str, ...]  # the main score first
    known: Metrics
    n_instances: int  # the size of the test split
    rows: tuple[Row, ...]
    priors: Priors = field(default_factory=dict)  # what is expected of the seeds. Empty with too few entries to fit it
    language_models: tuple[LanguageModelEntry, ...] = ()  # best first. They have no rank

    @property
    def main_score(self) -> str:
        return self.metrics[0]

    @property
    def entries(self) -> list[Entry]:
        """The entries as listed: by rank, and then those without one."""
        return [row.entry for row in self.rows if row.entry is not None]

    @property
    def leader(self) -> Row | None:
        """The best reproduced entry that may be first. Without one the entry with the best score, which is not shown as first."""
        shown = (row for row in self.rows if row.tier == "reproduced" and row.ties is not None and row.ties[0] == 1)
        return next(shown, None) or next((row for row in self.rows if row.rank == 1), None)

    @property
    def baselines(self) -> dict[str, BaselineRecord]:
        return {row.name: row.baseline for row in self.rows if row.baseline is not None}

    @property
    def solved(self) -> tuple[int, int]:
        """How many entries have a normalized score of `SOLVED` or more, and of how many."""
        scores = [row.normalized for row in self.rows if row.entry is not None]
        return sum(score is not None and score >= SOLVED for score in scores), len(scores)

    @property
    def mark(self) -> str:
        """How many solve it, where half of them do, so that it tells few apart. Empty of a track with an axis of sizes."""
        solved, entries = self.solved
        marked = 0 < entries <= 2 * solved and self.known[self.main_score].over != "area"
        return f"Solved by {solved} of {entries} entries." * marked

    @property
    def about_spread(self) -> str:
        """What is expected of the seeds, and whether they fall on both sides of a gap."""
        main, rows = self.known[self.main_score], [row for row in self.rows if row.entry is not None]
        prior, two = self.priors.get(main.name) or default_prior(main), sum(row.learned is not None for row in rows)
        middle = statistics.median(row.scores[main.name].value for row in rows)
        return (
            f"Seeds are expected to spread by {prior.at(middle, self.n_instances):.2g} at {middle:.3f}, the median {main.label}. "
            f"This counts as {prior.freedom:g} degrees of freedom. It was fitted to the seeds of "
            + ("all boards: too few are here." if prior.spread == default_prior(main).spread else "this board.")
            + f" In {two} of the entries some seeds learn and some do not. There five seeds tell more than three."
            * (two > 0)
        )


def rank(
    entries: Sequence[Entry],
    own: Track | None = None,
    evidence: Mapping[str, Evidence] | None = None,
    spread: Mapping[str, Priors] | None = None,
) -> list[Board]:
    """A board for each track that has entries, by name.

    `own` is a track of your own. `evidence` is by the digest of an entry: others are claimed. `spread` is what is expected of the
    seeds, by the digest of a track's definition: else it is fitted to the entries.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: e.name):
        groups.setdefault(entry.track, []).append(entry)
    return [_board(groups[track], own, evidence or {}, spread or {}) for track in sorted(groups)]


def _board(
    entries: Sequence[Entry], own: Track | None, evidence: Mapping[str, Evidence], spread: Mapping[str, Priors]
) -> Board:
    _check_names(entries)
    first = entries[0]
    digest, main = first.result.track.digest, first.result.track.main_score
    track = todays_track(first.track, own)
    known = metrics_told(first.result)
    known |= {} if track is None else {name: track.metrics[name] for name in known if name in track.metrics}
    sign = known[main].sign
    baselines = {name: record for e in entries for name, record in e.result.baselines.items()}
    if track is not None:
        baselines = with_chance(baselines, track, track.instances("test"))
    priors = spread.get(digest) or fit_priors(entries, known, baselines)
    prior = priors.get(main) or default_prior(known[main])

    def row(name: str, scores: Mapping[str, ScoreRecord], **more: Any) -> Row:
        return Row(name, scores, normalized_scores(scores, baselines).get(main), **more)

    rows = [
        row(
            e.name,
            {metric: e.result.score(metric) for metric in e.metrics},
            entry=e,
            evidence=evidence.get(e.digest, Evidence(entry=e.digest)),
            budget_share=budget_share(e.result, track),
            learned=_learned([seed.scores[main].value for seed in e.result.seeds], prior, known[main]),
        )
        for e in entries
    ]
    rows.sort(key=lambda one: (-sign * one.scores[main].value, one.name))
    rows = _with_ranks(rows, known[main], prior)
    higher = any(one.rank is not None and one.tier != "claimed" for one in rows)
    rows += [row(name, record.scores, baseline=record) for name, record in baselines.items()]
    rows.sort(
        key=lambda one: (
            higher and one.tier == "claimed",  # below all others
            -sign * one.scores[main].value,
            one.kind,
            one.rank or 0,
            one.name,
        )
    )
    for held in [one for one in rows if one.held]:  # below the next one
        rows.remove(held)
        rows.insert(1 + next(i for i, other in enumerate(rows) if other.rank == 2), held)
    return Board(
        track=first.track,
        summary=track_names().get(first.track, ""),
        digest=digest,
        metrics=_columns(known, main, () if track is None else tuple(track.task.group_scores)),
        known=known,
        n_instances=len(first.instances.counts),
        rows=tuple(rows),
        priors=priors,
    )


def _columns(known: Metrics, main: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """The main score, then the others by what they are over, and over all positions before groups of them."""
    order, places = [*METRICS, *known], {name: place for place, name in enumerate(groups)}

    def place(name: str) -> tuple[bool, int, bool, int]:
        over = known[name].over
        return name != main, order.index(over), name != over, places.get(name, 0)

    return tuple(sorted(known, key=place))


def _learned(seeds: Sequence[float], prior: Prior, metric: Metric) -> tuple[int, int] | None:
    """How many seeds are on the better side of a gap, and of how many. None where all have learned the same."""
    learned = prior.learned(seeds, metric.sign)
    return None if learned is None else (learned, len(seeds))


def _with_ranks(rows: Sequence[Row], main: Metric, prior: Prior) -> list[Row]:
    """The rows of entries, best first, with ranks for those of the whole budget. Claimed ones get none beside a higher tier."""
    whole = [row for row in rows if row.budget_share >= FULL]
    ranked = [row for row in whole if row.tier != "claimed"] or whole
    provisional = all(row.tier != "reproduced" for row in ranked)
    entries = [row.entry for row in ranked if row.entry is not None]
    if not entries:
        return list(rows)
    samples = [sample_of(entry.result.seeds, entry.instances, main.name) for entry in entries]
    counts = entries[0].instances.counts_of(main.name)
    # By row and column: who is ahead of whom.
    found = ahead(samples, counts, prior, higher_is_better=main.higher_is_better)
    places: dict[str, dict[str, Any]] = {
        row.name: {
            "rank": i + 1,
            "ties": (1 + int(found[:, i].sum()), len(entries) - int(found[i].sum())),
            "better": frozenset(other.name for other, better in zip(ranked, found[:, i], strict=True) if better),
            "provisional": provisional,
        }
        for i, row in enumerate(ranked)
    }
    return [replace(row, **places.get(row.name, {})) for row in rows]


def _check_names(entries: Sequence[Entry]) -> None:
    """Refuses two entries of one name or of one configuration. That they are of the same instances was verified of each."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        for key in (entry.name, entry.configuration_digest):
            if key in seen:
                raise UserError(f"{entry.track} has an entry twice: {seen[key].file_name} and {entry.file_name}")
            seen[key] = entry
