"""Reproducing: an entry's configuration is run again, and its scores are compared with the entry's.

Two trainings of one seed with the same machine and versions end in the same predictions, to the bit. Elsewhere the rounding of
one sum sends them as far apart as two seeds. So scores are compared within the noise of seeds and instances, by
`regbench.metrics.significance`. Only built-in architectures are trained here, by today's source. Whoever trusts the file of
another one trains it, and gives the run. Then its weights predict again, under bubblewrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from regbench import runner
from regbench.leaderboard.against_run import repredict
from regbench.leaderboard.claim import RunFolder, find_reference
from regbench.leaderboard.entry import Entry, InstanceScores, sample_of
from regbench.leaderboard.origin import is_built_in, same_configuration
from regbench.leaderboard.spread import prior_of
from regbench.leaderboard.store import Stored
from regbench.leaderboard.tiers import SAME, Reproduced, add_evidence, check_by, is_far, read_evidence, today
from regbench.leaderboard.verify import verify_entry, verify_run
from regbench.metrics.significance import Change, compare
from regbench.results import Result, require_finished
from regbench.tracks import Track, load_track
from regbench.training.progress import Reporter
from regbench.utils.errors import UserError

_OF_AN_ENTRY = ("source", "baselines")
"""Checks that a second training need not pass."""


@dataclass(frozen=True)
class Reproduction:
    """An entry beside its second run."""

    stored: Stored
    result: Result  # of the second run, as is the folder
    folder: Path
    changes: dict[str, Change]  # by score, from the entry to the run
    far: bool  # whether the mean main score is far from the entry's by the noise of the entry alone; see `is_far`
    identical: tuple[int, ...]  # the seeds whose predictions are the same to the bit
    errors: dict[str, float]  # by score, the standard error over instances of the run's mean over seeds

    @property
    def entry(self) -> Entry:
        return self.stored.entry

    @property
    def differs(self) -> list[str]:
        main = self.entry.metrics[0]
        return [
            metric
            for metric, change in self.changes.items()
            if change.worse or change.better or (metric == main and self.far)
        ]


def reproduce(
    stored: Stored,
    *,
    seeds: Sequence[int] = (),
    out: Path | None = None,
    run: Path | None = None,
    track: str | None = None,
    reporter: Reporter | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Reproduction:
    """Trains what an entry's configuration asks for, and compares all scores.

    Args:
        stored: The entry and its files.
        seeds: Which of the entry's seeds; by default all.
        out: The run folder, by default under `runs/reproduced/`. An unfinished run there goes on.
        run: A finished run of the same configuration, e.g. of a sweep. Then nothing is trained.
        track: The YAML file of your own track, if the entry is of that.
        reporter: Shows the progress of the run.
        announce: Called with a line before something that takes long.
    """
    own = load_track(track) if track is not None else None
    announce(f"checking {stored.path}")
    findings = verify_entry(stored, track=own, costly=False)
    if findings.faults:
        raise UserError(f"{stored.path} is no entry that could be reproduced: {findings.faults[0]}")
    entry = stored.entry
    if run is not None:
        return compare_runs(stored, _finished(run, entry), run, own)
    if not is_built_in(entry.result.architecture):
        file = entry.result.architecture.source
        raise UserError(
            f"{entry.name} is not built in, so it is not trained here. Read {stored.path.with_name(stored.source_name)}, copy it "
            f"to {file}, train it ({entry.command}), and give the run with --run"
        )
    where = track if own is not None and own.name == entry.track else entry.track
    folder, chosen = out or Path("runs") / "reproduced" / stored.path.stem, _chosen(entry, seeds)
    if (folder / "config.yaml").exists():
        announce(f"going on with {folder}")
        runner.resume(folder, reporter)
    else:
        asked = entry.configuration.model_copy(update={"track": where, "seeds": chosen})
        runner.run_config(asked, folder, reporter)
    result = _finished(folder, entry)
    if tuple(seed.seed for seed in result.seeds) != chosen:
        raise UserError(f"{folder} holds a run of other seeds; choose another --out")
    return compare_runs(stored, result, folder, own)


def _finished(run: Path, entry: Entry) -> Result:
    """The result of a finished run of an entry's configuration."""
    require_finished(run)
    result = RunFolder(run).result
    mine, architecture = entry.result, result.architecture
    if result.track != mine.track or not same_configuration(mine, result):
        raise UserError(f"{run} is a run of another configuration than {entry.name}")
    if architecture.source_sha256 != mine.architecture.source_sha256 and not is_built_in(architecture):
        raise UserError(f"{run} is by another {architecture.source} than the entry")
    _chosen(entry, [seed.seed for seed in result.seeds])
    return result


def _chosen(entry: Entry, seeds: Sequence[int]) -> tuple[int, ...]:
    known = tuple(seed.seed for seed in entry.result.seeds)
    strange = [seed for seed in seeds if seed not in known]
    if strange:
        raise UserError(f"{entry.name} has no seed {strange[0]}, only {', '.join(map(str, known))}")
    return tuple(seeds) or known


def keep_reproduction(
    made: Reproduction,
    by: str,
    track: Track | None,
    *,
    run_their_code: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> None:
    """Writes into the evidence beside an entry that all its seeds were trained again, by whom and where.

    The run is checked like one that is to become an entry, and its weights must predict what was scored. With `run_their_code`
    those of an architecture that is not built in do so under bubblewrap.
    """
    check_reproducer(made.stored, by, run_their_code=run_their_code)
    result = made.result
    seeds = [seed.seed for seed in result.seeds]
    if made.differs or seeds != [seed.seed for seed in made.entry.result.seeds]:
        raise UserError("only a run of all seeds whose scores agree makes an entry reproduced")
    if [seed.seconds for seed in result.seeds] == [seed.seconds for seed in made.entry.result.seeds]:
        raise UserError(f"{made.folder} is the run that {made.entry.name} was made from, and no second training")
    findings = verify_run(made.folder, track, costly=False)[1]
    findings.faults = [fault for fault in findings.faults if fault.check not in _OF_AN_ENTRY]
    if not findings.faults:
        repredict(made.folder, findings, track, made.stored.source, announce)
    if findings.faults:
        raise UserError(f"{made.folder} has a fault: {findings.faults[0]}")
    machine = result.environment
    again = Reproduced(
        date=today(),
        by=by,
        machine=", ".join(dict.fromkeys((machine.platform, machine.processor, machine.device)))[:200],
        seeds=seeds,
        scores=[{metric: score.value for metric, score in seed.scores.items()} for seed in result.seeds],
        identical=list(made.identical),
        errors=made.errors,
    )
    add_evidence(made.stored, reproduced=again)


def check_reproducer(stored: Stored, by: str, *, run_their_code: bool = False) -> None:
    """Refuses what cannot make an entry reproduced, so that nobody trains for nothing."""
    check_by(by, stored)
    if not is_built_in(stored.entry.result.architecture):
        if read_evidence(stored).challenge is None:
            raise UserError(f"{stored.path.name} is not built in and not yet verified: regbench challenge comes first")
        if not run_their_code:
            raise UserError(f"{stored.path.name} is not built in: --run-their-code lets its weights predict, isolated")


def compare_runs(stored: Stored, result: Result, folder: Path, track: Track | None) -> Reproduction:
    """Compares an entry with a finished run in a folder. `track`: one of your own, if the entry is of that."""
    entry = stored.entry
    reference = find_reference(entry.track, track)
    run = RunFolder(folder)
    scored = [run.scored(seed.seed, reference) for seed in result.seeds]
    again = InstanceScores.of([one.scores for one in scored])
    changes, errors = {}, {}
    for metric in entry.result.metrics:
        then = sample_of(entry.result.seeds, entry.instances, metric)
        now = sample_of(result.seeds, again, metric)
        known = reference.track.metrics[metric]
        changes[metric] = compare(
            then,
            now,
            entry.instances.counts_of(metric),
            prior_of(entry.result.track.digest, known),
            higher_is_better=known.higher_is_better,
            level=SAME,
            same=True,
        )
        errors[metric] = again.over_seeds(metric).stderr
    far = is_far(entry, reference.track, [seed.scores[entry.metrics[0]].value for seed in result.seeds])
    theirs = {seed.seed: seed.predictions_sha256 for seed in entry.result.seeds}
    identical = tuple(seed.seed for seed in result.seeds if theirs[seed.seed] == seed.predictions_sha256)
    return Reproduction(stored, result, folder, changes, far, identical, errors)
