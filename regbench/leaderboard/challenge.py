"""A challenge: an entry's weights are asked about instances that nobody has seen, and are held against what the entry claims.

Weights that were trained on the test split, predictions that were mixed with the truth, and code that looks answers up all
score lower there. Code that sees what it predicts does not. So a stranger's is asked again, about changed instances.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from regbench.data.instances import Instances
from regbench.evaluation.guards import LARGEST_GAIN, change_behind, gain
from regbench.evaluation.predictions import Predictions
from regbench.leaderboard.against_run import predict_again, weight_faults
from regbench.leaderboard.case import Findings, Note
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.past import past_of
from regbench.leaderboard.plausible import copies
from regbench.leaderboard.reference import Reference, find_reference
from regbench.leaderboard.run_folder import RunFolder
from regbench.leaderboard.store import Stored, stored_in
from regbench.leaderboard.tiers import (
    FEWEST,
    MOST,
    Challenge,
    add_evidence,
    check_by,
    differing,
    fresh_seed,
    fresh_split,
    judge,
    require_room_for_evidence,
    today,
)
from regbench.leaderboard.verify import verify_entry
from regbench.metrics.scores import Scores, score
from regbench.metrics.significance import Change, Split, expected_elsewhere
from regbench.results import ScoreRecord
from regbench.tracks import Track
from regbench.training.provenance import describe_machine
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused

INSTANCES = 500
"""How many fresh instances are asked about by default."""

SEEN = 0.005
"""By how much a prediction may change with what it must not depend on: rounding. Vectors in the targets' standard deviations."""


@dataclass(frozen=True)
class Outcome:
    """What came of a challenge.

    Attributes:
        findings: What is wrong. Without a fault the entry is verified.
        number: The number from which the instances follow.
        changes: By score how the weights did on fresh instances, against what is expected. Empty where it did not come to that.
        fresh: By score the mean over seeds on fresh instances.
        expected: By score what is expected of the claim there, with the standard error of the difference.
    """

    findings: Findings
    number: int
    changes: dict[str, Change]
    fresh: dict[str, ScoreRecord]
    expected: dict[str, ScoreRecord]


def challenge(
    stored: Stored,
    run: Path,
    *,
    by: str,
    track: Track | None = None,
    number: int | None = None,
    instances: int = INSTANCES,
    run_their_code: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Challenges an entry with the weights of its run. If nothing is wrong, the evidence is written beside the entry.

    Args:
        stored: The entry and its files.
        run: The run folder, with the weights of every seed.
        by: Who asks, for the evidence.
        track: A track of your own, if the entry is of that.
        number: From an earlier challenge, to repeat it; by default one is drawn.
        instances: How many fresh instances.
        run_their_code: Whether an architecture that is not built in is run, in a process of its own.
        announce: Called with a line before something that takes long.

    Raises:
        UserError: The entry's architecture is not built in, and is not to be run or cannot be isolated. Or its source has
            changed and that of its commit is not here. Or a number is out of range.
    """
    check_by(by)
    if number is None:
        number = secrets.randbits(62)
    if not 0 <= number < 2**63:
        raise UserError(f"the number of a challenge is from 0 to 2^63 - 1, not {number}")
    if not FEWEST <= instances <= MOST:
        raise UserError(f"a challenge has {FEWEST} to {MOST:,} instances, not {instances}")
    findings = verify_entry(stored, track=track, run=run, costly=False)
    if not findings.faults:
        findings.take("copies", _copies(stored))
    if findings.faults:
        return Outcome(findings, number, {}, {}, {})
    entry = stored.entry
    architecture = entry.result.architecture
    if not (is_built_in(architecture) or run_their_code):
        raise UserError(f"{entry.name} is not built in: --run-their-code runs {architecture.source} isolated")
    require_room_for_evidence(stored)
    reference = find_reference(entry.track, track)
    announce(f"drawing {instances} fresh instances of {entry.track}")
    fresh = fresh_split(reference.track, fresh_seed(entry, number), instances)
    scored: list[Scores] = []
    with past_of(architecture, entry.result.code.commit) if is_built_in(architecture) else nullcontext() as past:
        if past is not None:
            announce(f"{architecture.source} has changed: that of commit {past.commit[:12]} is run")
        folder, task = RunFolder(run), reference.track.task
        changed, places = change_behind(fresh, number)
        predicted = predict_again(folder, past, stored.source, task, (reference.test, fresh), announce)
        again = predict_again(folder, past, stored.source, task, (changed,), announce)  # its process has seen no others
        try:
            for seed in entry.result.seeds:
                announce(f"seed {seed.seed}: predicting the test split and the fresh instances")
                findings.take("checkpoint", weight_faults(folder, seed, next(predicted), reference))
                answers = next(predicted)
                scored.append(score(task, fresh, answers.batches()))
                if not is_built_in(architecture):
                    findings.take("challenge", _sees(seed.seed, answers, next(again), fresh, places))
                del answers  # the next seed's may take gigabytes
        except Refused as error:
            findings.take("checkpoint", [str(error)])
    if findings.faults:
        return Outcome(findings, number, {}, {}, {})
    means = {metric: _mean(scored, metric) for metric in entry.metrics}
    expected = _expected(entry, reference, scored, reference.controls_on(fresh))
    changes = judge(entry, means, expected, reference.track)
    findings.take("challenge", differing(changes))
    outcome = Outcome(findings, number, changes, means, expected)
    if not findings.faults:
        _keep(stored, fresh, outcome, by)
    return outcome


def _copies(stored: Stored) -> Iterator[str]:
    """Entries of the same track whose figures are those of this one."""
    for other in stored_in(stored.path.parent):
        if other.path.name != stored.path.name:
            try:
                yield from copies([stored.entry, other.entry])
            except Refused as error:
                yield Note(f"not compared with {other.path.name}: {error}")


def _sees(
    seed: int, answers: Predictions, again: Predictions, fresh: Instances, places: tuple[IntArray, IntArray]
) -> Iterator[str]:
    """Whether predictions have changed with the token that they are of or with later ones, or are better for them.

    Args:
        seed: Of the weights.
        answers: About fresh instances.
        again: About the same, changed from a place on.
        fresh: The fresh instances.
        places: Which instances were changed (K,), and from where on (K,).
    """
    which, place = places
    rows = np.cumsum(fresh.lengths)[which] - fresh.lengths[which] + place
    first, second = (one.packed[rows].astype(np.float64) for one in (answers, again))
    wanted = fresh.tokens[which, place]
    scale = float(wanted[..., -first.shape[-1] :].std()) if answers.of_vectors else 1.0
    apart = float(np.abs(first - second).max())
    if not apart <= SEEN * scale:
        yield f"seed {seed}: a prediction depends on the token that it is of, or on later ones: it changes by {apart:.2g}"
    elif not answers.of_vectors and gain(first, second, wanted) > LARGEST_GAIN:
        yield f"seed {seed}: predictions change little with the token that they are of, and are better for it"


def _mean(scored: list[Scores], metric: str) -> ScoreRecord:
    """The mean over seeds. All seeds answer the same instances: the error is that of the mean answers."""
    return ScoreRecord.of(_sums(scored, metric), scored[0].counts_of(metric))


def _sums(scored: list[Scores], metric: str) -> FloatArray:
    """The sum over each instance's positions, averaged over seeds."""
    return cast(FloatArray, np.mean([one.sums[metric] for one in scored], axis=0))


def _expected(
    entry: Entry, reference: Reference, scored: list[Scores], controls: list[Scores]
) -> dict[str, ScoreRecord]:
    """By score what is expected of a claim on fresh instances, as far as they are harder or easier than the test split.

    Args:
        entry: The claim.
        reference: Of its track.
        scored: For each seed what its weights scored on the fresh instances.
        controls: What the baselines scored there.
    """
    expected = {}
    for metric in entry.metrics:
        then, now = (np.stack([one.sums[metric] for one in of], -1) for of in (reference.controls, controls))
        value, error = expected_elsewhere(
            Split(entry.instances.mean(metric), entry.instances.counts_of(metric), then),
            Split(_sums(scored, metric), scored[0].counts_of(metric), now),
        )
        expected[metric] = ScoreRecord(value=value, stderr=error)
    return expected


def _keep(stored: Stored, fresh: Instances, outcome: Outcome, by: str) -> None:
    """Writes the evidence beside the entry."""
    found = Challenge(
        date=today(),
        by=by,
        machine=describe_machine(),
        number=outcome.number,
        instances=len(fresh),
        fingerprint=fresh.fingerprint,
        scores=outcome.fresh,
        expected=outcome.expected,
    )
    add_evidence(stored, challenge=found)
