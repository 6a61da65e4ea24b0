"""A challenge: an entry's weights are asked for the next token of cut prompts, and are held against what the entry claims.

Each prompt is the beginning of a fresh instance, cut at a random place. What follows does not exist where it is answered: not in
the prompt, not beside it, and in no other process. So code that sees what it predicts scores lower, as do weights that were
trained on the test split, predictions that were mixed with the truth, and code that looks answers up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from regbench.evaluation.cuts import Cuts, prompts
from regbench.leaderboard.against_run import Asked, checkpoint_of, predict_again, weight_faults
from regbench.leaderboard.claim import Findings, RunFolder, find_reference
from regbench.leaderboard.origin import git, is_built_in
from regbench.leaderboard.store import Stored
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
    today,
)
from regbench.leaderboard.verify import verify_entry
from regbench.metrics.scores import by_problem
from regbench.metrics.significance import Change, Split, expected_elsewhere
from regbench.results import ScoreRecord
from regbench.tracks import Track
from regbench.training.provenance import describe_machine
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused

CUTS = 5000
"""How many fresh instances are cut by default."""


@dataclass(frozen=True)
class ChallengeOutcome:
    """What came of a challenge. Without a fault the entry is verified."""

    findings: Findings
    number: int  # from it the instances follow
    changes: dict[str, Change] = field(default_factory=dict)
    """By score how the weights did, against what is expected. Empty where it did not come to that."""
    fresh: dict[str, ScoreRecord] = field(default_factory=dict)  # by score the mean over seeds on the cut prompts
    expected: dict[str, ScoreRecord] = field(default_factory=dict)
    """By score what is expected of the claim there, with the standard error of the difference."""


def challenge(
    stored: Stored,
    run: Path,
    *,
    by: str,
    track: Track | None = None,
    cuts: int = CUTS,
    run_their_code: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> ChallengeOutcome:
    """Challenges an entry with the weights of its run. If nothing is wrong, the evidence is written beside the entry.

    The entry is committed, as the instances follow from the commit. `by` is not who submitted. `track` is one of your own, if the
    entry is of that. An architecture that is not built in is run only with `run_their_code`.
    """
    check_by(by, stored)
    if not FEWEST <= cuts <= MOST:
        raise UserError(f"a challenge has {FEWEST} to {MOST:,} cuts, not {cuts}")
    findings = verify_entry(stored, track=track, run=run, announce=announce, costly=False)
    if findings.faults:
        return ChallengeOutcome(findings, 0)
    entry, folder = stored.entry, RunFolder(run)
    architecture = entry.result.architecture
    if not (is_built_in(architecture) or run_their_code):
        raise UserError(f"{entry.name} is not built in: --run-their-code runs {architecture.source} under bubblewrap")
    number = number_of(stored, folder)
    reference = find_reference(entry.track, track)
    task = reference.track.task
    announce(f"drawing {cuts:,} fresh instances of {entry.track}")
    seed = fresh_seed(entry, number)
    fresh = fresh_split(reference.track, seed, cuts)
    cut = Cuts.draw(task, fresh, seed)
    order = np.random.default_rng(seed).permutation(cuts)
    asked = Asked(prompts(fresh, order, cut.places[order], task.io.separator), last=True)
    sums: list[dict[str, FloatArray]] = []
    try:
        for one, answer in zip(
            entry.result.seeds,
            predict_again(folder, stored.source, reference, [Asked(reference.test), asked], announce),
            strict=True,
        ):
            findings.take("checkpoint", weight_faults(folder, one, answer, reference))
            rows = np.empty_like(answer.rows[1])
            rows[order] = answer.rows[1]
            sums.append(cut.sums(task, fresh, cut.batches(rows, fresh)))
    except Refused as error:
        findings.take("checkpoint", [str(error)])
    if findings.faults:
        return ChallengeOutcome(findings, number)
    announce("scoring the answers, and those of n-grams beside them")
    controls = [cut.sums(task, fresh, reference.batches(one, fresh)) for one in reference.controls(fresh)]
    means, expected = {}, {}
    for metric in entry.metrics:
        # All seeds answer the same prompts: the error is that of the mean answers.
        counts, own = by_problem(cut.counts[metric], fresh.problem), np.mean([of[metric] for of in sums], axis=0)
        means[metric] = ScoreRecord.of(own, counts)
        hard, here = (
            np.stack([of[metric] for of in some], -1)
            for some in ([one.sums for one in reference.control_scores], controls)
        )
        claim = Split(entry.instances.mean(metric), entry.instances.counts_of(metric), hard)
        value, wide = expected_elsewhere(claim, Split(own, counts, here))
        expected[metric] = ScoreRecord(value=value, stderr=wide)
    changes = judge(entry, means, expected, reference.track)
    findings.take("challenge", differing(changes))
    if not findings.faults:
        found = Challenge(
            date=today(),
            by=by,
            machine=describe_machine(),
            number=number,
            instances=cuts,
            fingerprint=fresh.fingerprint,
            scores=means,
            expected=expected,
        )
        add_evidence(stored, challenge=found)
    return ChallengeOutcome(findings, number, changes, means, expected)


def number_of(stored: Stored, run: RunFolder) -> int:
    """It follows from the commit that holds the entry, which nobody could choose, and from the weights."""
    path = stored.path.resolve()
    git.cache_clear()
    commit = (git(path.parent, "log", "-1", "--format=%H", "--", path.name) or b"").decode().strip()
    if not commit or git(path.parent, "diff", "--quiet", "HEAD", "--", path.name) is None:
        raise UserError(
            f"{stored.path} is not committed: commit it first, as the fresh instances follow from the commit"
        )
    digest = hashlib.sha256(commit.encode())
    for seed in stored.entry.result.seeds:
        digest.update(hashlib.sha256(checkpoint_of(run, seed.seed)).digest())
    return int.from_bytes(digest.digest()[:8], "big") >> 1
