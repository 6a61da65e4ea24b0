"""What stands behind an entry: its tier, and the evidence for it, in a file beside the entry.

No file can prove that what it says was done. Evidence counts as much as the maintainer who commits it.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import statistics
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import pydantic

from regbench.data.instances import Instances
from regbench.leaderboard.entry import Entry, sample_of, text_of
from regbench.leaderboard.spread import prior_of
from regbench.leaderboard.store import Stored
from regbench.metrics.significance import Change, compare_splits, seed_error, worst_seed
from regbench.results import ScoreRecord
from regbench.tracks import SPLITS, Track
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_writing
from regbench.utils.guard import of_schema, parse_json
from regbench.utils.settings import Strict

Tier = Literal["claimed", "verified", "reproduced"]
TIERS: tuple[Tier, ...] = ("claimed", "verified", "reproduced")

LEVEL = 0.001
"""One-sided, for all scores together. An honest entry is refused once in a thousand challenges."""

SAME = 0.0005
"""One-sided. An entry that reproduces is called different once in a thousand times, for each score."""

FEWEST, MOST = 100, 20_000
"""Fresh instances of a challenge: at least, at most."""

BEGAN = datetime.date(2026, 11, 21)
"""The first day of the project. Nothing was done before."""

EVIDENCE_BYTES = 1 << 16
LONGEST_BY = 200


def _of_the_project(date: str) -> str:
    if not BEGAN <= datetime.date.fromisoformat(date) <= _now() + datetime.timedelta(days=1):  # clocks differ
        raise ValueError(f"not between {BEGAN} and today")
    return date


def _now() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


_Date = Annotated[
    str, pydantic.Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), pydantic.AfterValidator(_of_the_project)
]
_Text = Annotated[str, pydantic.Field(min_length=1, max_length=200)]
_By = Annotated[str, pydantic.Field(min_length=1, max_length=LONGEST_BY, pattern=r"\S")]


class Submitted(Strict):
    date: _Date
    by: _By


class Challenge(Strict):
    """Weights that were asked about instances which nobody had seen."""

    date: _Date
    by: _By
    machine: _Text
    number: int = pydantic.Field(ge=0, lt=2**63)
    """From it the instances follow. Of challenges by cut prompts it follows from the entry's commit and the weights."""
    instances: int = pydantic.Field(ge=FEWEST, le=MOST)
    fingerprint: str = pydantic.Field(pattern="^[0-9a-f]{64}$")  # of these instances
    scores: dict[str, ScoreRecord]  # the means over seeds, with standard errors over the instances
    expected: dict[str, ScoreRecord] | None = None
    """What is expected of the claim on these instances, with the standard error of the difference. Without it the claim itself
    is expected: evidence of before 25 November 2026 has none."""


class Reproduced(Strict):
    """A second training of all seeds, by somebody else than who submitted."""

    date: _Date
    by: _By
    machine: _Text
    seeds: list[int]
    scores: list[dict[str, float]]  # of each seed
    identical: list[int]  # the seeds whose predictions are the same to the bit
    errors: dict[str, Annotated[float, pydantic.Field(ge=0)]] | None = None
    """The standard error over instances of each score's mean over seeds. Evidence of before November 2026 has none."""


class Evidence(Strict):
    """All that stands behind the entry of a digest."""

    schema_version: Literal[1] = 1
    entry: str = pydantic.Field(pattern="^[0-9a-f]{64}$")
    submitted: Submitted | None = None
    challenge: Challenge | None = None
    reproduced: Reproduced | None = None

    @property
    def tier(self) -> Tier:
        if self.reproduced is not None:
            return "reproduced"
        return "claimed" if self.challenge is None else "verified"

    @property
    def about(self) -> str:
        """The tier with date and by whom, e.g. "verified 2026-11-30 by A. Reader"."""
        found = self.reproduced or self.challenge or self.submitted
        return self.tier if found is None else f"{self.tier} {found.date} by {found.by}"


def today() -> str:
    """The date in UTC, as evidence has it."""
    return _now().isoformat()


# --- Files. ---


def read_evidence(stored: Stored) -> Evidence:
    """The evidence beside an entry. Without a file the entry is claimed. A file that is not of the schema raises `Refused`."""
    name = stored.evidence_name
    if not stored.folder.has(name):
        return Evidence(entry="0" * 64)
    return of_schema(Evidence, parse_json(stored.folder.read(name, EVIDENCE_BYTES), name), name)


def add_evidence(stored: Stored, **found: Submitted | Challenge | Reproduced) -> None:
    """Writes more evidence for an entry. What was found of this very entry before stays."""
    digest, earlier = stored.entry.digest, read_evidence(stored)
    kept = earlier if earlier.entry == digest else Evidence(entry=digest)
    write_evidence(stored, kept.model_copy(update=found))


def write_evidence(stored: Stored, evidence: Evidence) -> None:
    path = stored.path.with_name(stored.evidence_name)
    with explain_writing(path), atomic_write(path, "wb") as file:
        file.write(text_of(evidence).encode())


# --- People. ---


def check_by(by: str, stored: Stored | None = None) -> None:
    """Refuses what cannot name who did something, and who submitted the entry that is to be judged."""
    if not _words(by) or len(by) > LONGEST_BY or not by.isprintable():
        raise UserError(f"--by needs a name of 1 to {LONGEST_BY} characters that can be shown, not {by[:80]!a}")
    submitted = None if stored is None else read_evidence(stored).submitted
    if stored is not None and submitted is not None and same_person(by, submitted.by):
        raise UserError(f"{submitted.by} submitted {stored.path.name}: somebody else must judge it")


def same_person(a: str, b: str) -> bool:
    """Whether two names are the same, apart from spaces, punctuation, capital letters and other forms of the same letter."""
    return _words(a) == _words(b)


def _words(name: str) -> list[str]:
    return re.sub(r"[\W_]+", " ", unicodedata.normalize("NFKC", name).casefold()).split()


# --- Whether the evidence holds. ---


def check_evidence(stored: Stored, track: Track) -> Iterator[str]:
    """What is wrong with the evidence beside an entry, if any: it is of another entry, or scores differ. No instance is drawn."""
    try:
        entry, evidence = stored.entry, read_evidence(stored)
    except UserError as error:
        yield str(error)
        return
    challenge, again, submitted = evidence.challenge, evidence.reproduced, evidence.submitted
    if evidence.entry != entry.digest and (challenge or again or submitted):
        yield "it is of another entry, or the entry has changed since"
        return
    if challenge is not None:
        yield from _challenge_faults(entry, challenge, track)
    if again is not None:
        from regbench.leaderboard.origin import is_built_in  # who reads the board needs none of its imports

        yield from _reproduction_faults(entry, again, track)
        if challenge is None and not is_built_in(entry.result.architecture):
            yield "it was reproduced before it was verified, and it is not built in"
        if submitted is not None and same_person(again.by, submitted.by):
            yield "it was reproduced by who submitted it"


def _challenge_faults(entry: Entry, challenge: Challenge, track: Track) -> Iterator[str]:
    """Where a challenge is of other scores, expects what does not follow from the claim, or is not passed.

    `expected_elsewhere` expects nothing far from the claim. On all boards of November 2026 it is at most 3.6 errors away.
    """
    named = [set(scores) for scores in (challenge.scores, challenge.expected) if scores is not None]
    if any(names != set(entry.metrics) for names in named):
        yield "the challenge was not of this entry's scores"
        return
    wanted = {}
    for metric, fresh in challenge.scores.items():
        claim = entry.instances.over_seeds(metric)
        error = math.hypot(claim.stderr, fresh.stderr)
        wanted[metric] = (challenge.expected or {}).get(metric, ScoreRecord(value=claim.value, stderr=error))
        if _too_wide(fresh.value, fresh.stderr, challenge.instances):
            yield f"the standard error of the {metric} on fresh instances is {fresh.stderr:.3g}, more than there can be"
        elif error and (abs(wanted[metric].value - claim.value) > 6 * error or wanted[metric].stderr > 1.5 * error):
            yield f"what the challenge expected of the {metric} does not follow from the claim"
    yield from differing(judge(entry, challenge.scores, wanted, track))


def _too_wide(value: float, error: float, instances: int) -> bool:
    """Whether a mean cannot have such a standard error. Of numbers from 0 on it is at most about the mean.

    It is also not far above that of single positions whose spread is the size of the score, which is more than there is.
    """
    return not 0 <= error <= min(1.5 * max(value, 0.05), 6 * max(1.0, value) / math.sqrt(instances))


def _reproduction_faults(entry: Entry, again: Reproduced, track: Track) -> Iterator[str]:
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
    if not all(abs(value) < 1e100 for scores in again.scores for value in scores.values()):
        yield "a score of the second training is beyond measure"
        return
    for metric in entry.metrics:
        then = [seed.scores[metric].value for seed in entry.result.seeds]
        now = [scores[metric] for scores in again.scores]
        first, second = statistics.fmean(then), statistics.fmean(now)
        prior = prior_of(entry.result.track.digest, track.metrics[metric])
        error, freedom = seed_error((then, now), prior, len(entry.instances.counts), same=True)
        one = entry.instances.over_seeds(metric).stderr
        other = one if again.errors is None else again.errors[metric]
        noise = math.hypot(one, one) if again.errors is None else one + other
        change = Change(second - first, noise, error, freedom, freedom, SAME)
        if again.errors is not None and _too_wide(second, other, len(entry.instances.counts)):
            yield f"the standard error of the {metric} of the second training is {other:.3g}, more than there can be"
        elif change.worse or change.better or (metric == entry.metrics[0] and is_far(entry, track, now)):
            yield f"the {metric} of the second training is {second:.4f}, and that of the entry {first:.4f}"


def is_far(entry: Entry, track: Track, scores: Sequence[float]) -> bool:
    """Whether the mean main score of a second training is far from the entry's, by the noise of the entry alone.

    Seeds that collapse would otherwise excuse themselves by their spread. Other scores may be near their best, such as an NLL
    near 0, where seeds differ by more than is expected. `scores` are the main score of each seed of the second training.
    """
    main = entry.metrics[0]
    then, counts = sample_of(entry.result.seeds, entry.instances, main), entry.instances.counts_of(main)
    mean, prior = [statistics.fmean(scores)], prior_of(entry.result.track.digest, track.metrics[main])
    return any(worst_seed(then, mean, counts, prior, higher_is_better=way, level=SAME).worse for way in (True, False))


# --- Fresh instances. ---


def fresh_seed(entry: Entry, number: int) -> int:
    """The seed of the instances of a challenge: it follows from the entry, and from a number that is known only after it."""
    return int.from_bytes(hashlib.sha256(f"{entry.digest}/{number}".encode()).digest()[:7], "big")


def fresh_split(track: Track, seed: int, count: int) -> Instances:
    """So many instances of a track's generator, from a seed, that no split has."""
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
    entry: Entry, fresh: Mapping[str, ScoreRecord], expected: Mapping[str, ScoreRecord], track: Track
) -> dict[str, Change]:
    """By score how the mean over seeds on fresh instances differs from the expected one. The level is shared by the scores."""
    return {
        metric: compare_splits(
            (expected[metric].value, expected[metric].stderr),
            fresh[metric].value,
            len(entry.instances.counts_of(metric)),
            higher_is_better=track.metrics[metric].higher_is_better,
            level=LEVEL / len(entry.metrics),
        )
        for metric in entry.metrics
    }


def differing(changes: Mapping[str, Change]) -> list[str]:
    """A line for each score that is worse on fresh instances by more than chance explains."""
    return [
        f"{metric} is worse on fresh instances by "
        + (f"{-one.change / one.noise:.1f} standard errors" if one.noise else f"{-one.change:.4g}, and no noise")
        for metric, one in changes.items()
        if one.worse
    ]
