"""What stands behind an entry: its tier, and the evidence for it, in a file beside the entry."""

from __future__ import annotations

import datetime
import hashlib
import math
import statistics
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pydantic

from regbench.data.instances import Instances
from regbench.leaderboard.entry import Entry, canonical, sample_of
from regbench.leaderboard.spread import prior_of
from regbench.leaderboard.store import Stored
from regbench.metrics.metric import METRICS
from regbench.metrics.significance import Change, compare_splits, seed_error, worst_seed
from regbench.results import ScoreRecord
from regbench.tracks import SPLITS, Track
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, exclusive, explain_full_disk, require_writable
from regbench.utils.guard import Refused, of_schema, parse_json
from regbench.utils.settings import Strict

Tier = Literal["claimed", "verified", "reproduced"]
TIERS: tuple[Tier, ...] = ("claimed", "verified", "reproduced")

LEVEL = 0.001
"""One-sided, for all scores together. An honest entry is refused once in a thousand challenges."""

SAME = 0.0005
"""One-sided. An entry that reproduces is called different once in a thousand times, for each score."""

FEWEST, MOST = 100, 20_000
"""Fresh instances of a challenge: at least, at most."""

EVIDENCE_BYTES = 1 << 16
LONGEST_BY = 200


def _of_the_calendar(date: str) -> str:
    datetime.date.fromisoformat(date)
    return date


_Date = Annotated[
    str, pydantic.Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), pydantic.AfterValidator(_of_the_calendar)
]
_Text = Annotated[str, pydantic.Field(min_length=1, max_length=200)]
_By = Annotated[str, pydantic.Field(min_length=1, max_length=LONGEST_BY, pattern=r"\S")]


class Submitted(Strict):
    """Who made an entry.

    Attributes:
        date: When it was submitted.
        by: Who submitted.
    """

    date: _Date
    by: _By


class Challenge(Strict):
    """Weights that were asked about instances which nobody had seen.

    Attributes:
        date: When, e.g. "2026-01-31".
        by: Who asked.
        machine: Where the weights predicted.
        number: Drawn by who asked, after the entry was submitted.
        instances: How many there were.
        fingerprint: Of these instances.
        scores: The means over seeds, with standard errors over the instances.
        expected: What is expected of the claim on these instances, with the standard error of the difference. Without it the
            claim itself is expected: evidence of before November 2026 has none.
    """

    date: _Date
    by: _By
    machine: _Text
    number: int = pydantic.Field(ge=0, lt=2**63)
    instances: int = pydantic.Field(ge=FEWEST, le=MOST)
    fingerprint: str = pydantic.Field(pattern="^[0-9a-f]{64}$")
    scores: dict[str, ScoreRecord]
    expected: dict[str, ScoreRecord] | None = None


class Reproduced(Strict):
    """A second training of all seeds, by somebody else than who submitted.

    Attributes:
        date: When.
        by: Who trained.
        machine: Where.
        seeds: All seeds of the entry.
        scores: For each of them the scores.
        identical: The seeds whose predictions are the same to the bit.
        errors: The standard error over instances of each score's mean over seeds. Evidence before November 2026 has none.
    """

    date: _Date
    by: _By
    machine: _Text
    seeds: list[int]
    scores: list[dict[str, float]]
    identical: list[int]
    errors: dict[str, Annotated[float, pydantic.Field(ge=0)]] | None = None


class Evidence(Strict):
    """All that stands behind an entry.

    Attributes:
        schema_version: 1.
        entry: The digest of the entry.
        submitted: By whom, if it was said at submission. Who submitted cannot reproduce.
        challenge: Makes it verified.
        reproduced: Makes it reproduced.
    """

    schema_version: Literal[1] = 1
    entry: str = pydantic.Field(pattern="^[0-9a-f]{64}$")
    submitted: Submitted | None = None
    challenge: Challenge | None = None
    reproduced: Reproduced | None = None

    @property
    def tier(self) -> Tier:
        """The highest tier that the evidence gives."""
        if self.reproduced is not None:
            return "reproduced"
        return "claimed" if self.challenge is None else "verified"

    @property
    def about(self) -> str:
        """The tier with date and by whom, e.g. "verified 2026-01-31 by A. Reader"."""
        found = self.reproduced or self.challenge or self.submitted
        return self.tier if found is None else f"{self.tier} {found.date} by {found.by}"


def today() -> str:
    """The date in UTC, as evidence has it."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def read_evidence(stored: Stored) -> Evidence:
    """The evidence beside an entry. Without a file the entry is claimed.

    Raises:
        Refused: The file cannot be read, or is not of the schema.
    """
    name = stored.evidence_name
    if not stored.folder.has(name):
        return Evidence(entry="0" * 64)
    return of_schema(Evidence, parse_json(stored.folder.read(name, EVIDENCE_BYTES), name), name)


def check_by(by: str) -> None:
    """Refuses what cannot name who did something.

    Raises:
        UserError: It is empty, long, or has characters that are not shown.
    """
    if not by.strip() or len(by) > LONGEST_BY or not by.isprintable():
        raise UserError(f"--by needs a name of 1 to {LONGEST_BY} characters that can be shown, not {by[:80]!a}")


def same_person(a: str, b: str) -> bool:
    """Whether two names are the same, apart from spaces and capital letters."""
    return a.casefold().split() == b.casefold().split()


def add_evidence(stored: Stored, **found: Submitted | Challenge | Reproduced) -> None:
    """Writes more evidence for an entry. What was found of this very entry before stays.

    Raises:
        UserError: Another entry has taken its place since it was read.
    """
    digest, board = stored.entry.digest, _board_of(stored)
    # As `submit` does: else two at once would not see each other.
    with explain_full_disk(board), exclusive(board, patience=math.inf):
        if not stored.path.is_file() or Stored(stored.path).entry.digest != digest:
            raise UserError(f"{stored.path} has been replaced in the meantime: the evidence is of the former entry")
        earlier = read_evidence(stored)
        kept = earlier if earlier.entry == digest else Evidence(entry=digest)
        write_evidence(stored, kept.model_copy(update=found))


def require_room_for_evidence(stored: Stored) -> None:
    """To be called before long work whose outcome `add_evidence` writes.

    Raises:
        UserError: Nothing can be written beside the entry.
    """
    for folder in (_board_of(stored), stored.path.resolve().parent):
        require_writable(folder)


def _board_of(stored: Stored) -> Path:
    """The leaderboard's folder; of an entry that lies elsewhere, its own."""
    folder = stored.path.resolve().parent
    return folder.parent.parent if folder.parent.name == "entries" else folder


def write_evidence(stored: Stored, evidence: Evidence) -> None:
    """Writes the evidence beside an entry.

    Raises:
        UserError: Nothing can be written there.
    """
    path = stored.path.with_name(stored.evidence_name)
    with explain_full_disk(path), atomic_write(path) as file:
        file.write(canonical(evidence.model_dump(mode="json")))


def evidence_faults(entry: Entry, evidence: Evidence, track: Track | None) -> Iterator[str]:
    """What is wrong with an entry's evidence: another entry, other instances than the number gives, or scores that differ.

    Where the track is gone (None), no instances are drawn.
    """
    if evidence == Evidence(entry=evidence.entry):  # there is none
        return
    if evidence.entry != entry.digest:
        yield "it is of another entry, or the entry has changed since"
        return
    from regbench.leaderboard.origin import is_built_in  # who reads the board needs none of its imports

    metrics = set(entry.metrics)
    if (challenge := evidence.challenge) is not None:
        named = [set(scores) for scores in (challenge.scores, challenge.expected) if scores is not None]
        if any(names != metrics for names in named) or not _drawn_so(entry, challenge, track):
            yield "the challenge was not of the instances or the scores that its number gives"
        elif strange := _unlike_the_claim(entry, challenge):
            yield f"what the challenge expected of the {strange} does not follow from the claim"
        else:
            expected = challenge.expected or _claimed(entry, challenge.scores)
            yield from differing(judge(entry, challenge.scores, expected, track))
    if (again := evidence.reproduced) is not None:
        yield from _reproduction_faults(entry, again, track)
        if evidence.challenge is None and not is_built_in(entry.result.architecture):
            yield "it was reproduced before it was verified, and it is not built in"
        if evidence.submitted is not None and same_person(again.by, evidence.submitted.by):
            yield "it was reproduced by who submitted it"


def _unlike_the_claim(entry: Entry, challenge: Challenge) -> str | None:
    """A score that a challenge expected to be far from the claimed one, or with a wide error. `expected_elsewhere` gives neither.

    On all boards of November 2026 an expected score is at most 3.6 errors away, and its error at most 1.2 times that of the
    claim.
    """
    for metric, expected in (challenge.expected or {}).items():
        claim = entry.instances.over_seeds(metric)
        error = math.hypot(claim.stderr, challenge.scores[metric].stderr)
        if error and (abs(expected.value - claim.value) > 6 * error or expected.stderr > 1.5 * error):
            return metric
    return None


def _drawn_so(entry: Entry, challenge: Challenge, track: Track | None) -> bool:
    """Whether the number of a challenge gives its instances. It counts as so where the track is gone."""
    if track is None:
        return True
    fresh = fresh_split(track, fresh_seed(entry, challenge.number), challenge.instances)
    return fresh.fingerprint == challenge.fingerprint


def _reproduction_faults(entry: Entry, again: Reproduced, track: Track | None) -> Iterator[str]:
    """Where a second training is not of all seeds, or its scores are beyond noise.

    The scores of its instances are not kept, so their noise is the sum of both errors. It is never less than the paired one by
    which `regbench reproduce` judges. Where the second error is not known, it counts as that of the entry.
    """
    seeds = [seed.seed for seed in entry.result.seeds]
    whole = again.seeds == seeds and len(again.scores) == len(seeds) and set(again.identical) <= set(seeds)
    if not whole or any(set(scores) != set(entry.metrics) for scores in again.scores):
        yield "not every seed and score was reproduced"
        return
    if again.errors is not None and set(again.errors) != set(entry.metrics):
        yield "not every score of the second training has an error"
        return
    if not all(abs(value) < 1e100 for scores in (*again.scores, again.errors or {}) for value in scores.values()):
        yield "a score of the second training is beyond measure"
        return
    for metric in entry.metrics:
        then = [seed.scores[metric].value for seed in entry.result.seeds]
        now = [scores[metric] for scores in again.scores]
        first, second = statistics.fmean(then), statistics.fmean(now)
        prior = prior_of(entry.result.track.digest, (METRICS if track is None else track.metrics)[metric])
        error, freedom = seed_error((then, now), prior, len(entry.instances.counts), same=True)
        one = entry.instances.over_seeds(metric).stderr
        noise = math.sqrt(2) * one if again.errors is None else one + again.errors[metric]
        change = Change(second - first, noise, error, freedom, freedom, SAME)
        if change.worse or change.better or (metric == entry.metrics[0] and is_far(entry, track, now)):
            yield f"the {metric} of the second training is {second:.4f}, and that of the entry {first:.4f}"


def is_far(entry: Entry, track: Track | None, scores: Sequence[float]) -> bool:
    """Whether the mean main score of a second training is far from the entry's, by the noise of the entry alone.

    Seeds that collapse would otherwise excuse themselves by their spread. Other scores may be near their best, such as an NLL
    near 0, where seeds differ by more than is expected.

    Args:
        entry: The entry.
        track: Its track. None where it is gone.
        scores: The main score of each seed of the second training.
    """
    main = entry.metrics[0]
    then, counts = sample_of(entry.result.seeds, entry.instances, main), entry.instances.counts_of(main)
    mean = [statistics.fmean(scores)]
    prior = prior_of(entry.result.track.digest, (METRICS if track is None else track.metrics)[main])
    return any(worst_seed(then, mean, counts, prior, higher_is_better=way, level=SAME).worse for way in (True, False))


def fresh_seed(entry: Entry, number: int) -> int:
    """The seed of the instances of a challenge: it follows from the entry, and from a number that is drawn after it."""
    return int.from_bytes(hashlib.sha256(f"{entry.digest}/{number}".encode()).digest()[:7], "big")


def fresh_split(track: Track, seed: int, count: int) -> Instances:
    """Instances of a track's generator that no split has.

    Args:
        track: The track.
        seed: Of the instances.
        count: How many.

    Raises:
        UserError: The generator has too few others.
    """
    task, seen = track.task, _identities(track)
    for drawn in (count + count // 4, 8 * count):
        instances = task.fresh(track.definition.splits, drawn, seed)
        new = [i for i, identity in enumerate(task.identities(instances)) if identity not in seen][:count]
        if len(new) == count:
            return instances[np.array(new)]
    raise UserError(f"{track.name} has too few instances that are in no split for a challenge of {count:,}")


@lru_cache(maxsize=2)
def _identities(track: Track) -> frozenset[bytes]:
    """What the instances of all splits of a track are made from."""
    return frozenset(one for split in SPLITS for one in track.task.identities(track.instances(split)))


def judge(
    entry: Entry, fresh: dict[str, ScoreRecord], expected: dict[str, ScoreRecord], track: Track | None
) -> dict[str, Change]:
    """By score how the mean over seeds on fresh instances differs from the expected one. The level is shared by the scores."""
    known = METRICS if track is None else track.metrics
    return {
        metric: compare_splits(
            (expected[metric].value, expected[metric].stderr),
            fresh[metric].value,
            len(entry.instances.counts_of(metric)),
            higher_is_better=known[metric].higher_is_better,
            level=LEVEL / len(entry.metrics),
        )
        for metric in entry.metrics
    }


def _claimed(entry: Entry, fresh: dict[str, ScoreRecord]) -> dict[str, ScoreRecord]:
    """What is expected where nothing but the claim is known."""
    claims = {metric: entry.instances.over_seeds(metric) for metric in entry.metrics}
    return {
        metric: ScoreRecord(value=claim.value, stderr=math.hypot(claim.stderr, fresh[metric].stderr))
        for metric, claim in claims.items()
    }


def differing(changes: dict[str, Change]) -> list[str]:
    """A line for each score that is worse on fresh instances by more than chance explains."""
    return [
        f"{metric} is worse on fresh instances by "
        + (
            f"{-change.change / change.noise:.1f} standard errors"
            if change.noise
            else f"{-change.change:.4g}, and no noise"
        )
        for metric, change in changes.items()
        if change.worse
    ]


def check_evidence(stored: Stored, track: Track | None) -> Iterator[str]:
    """What is wrong with the evidence beside an entry, if there is any. See `evidence_faults`."""
    try:
        yield from evidence_faults(stored.entry, read_evidence(stored), track)
    except (Refused, UserError) as error:
        yield str(error)
