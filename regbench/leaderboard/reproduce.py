"""Reproducing: an entry's command run again, and its scores compared with the entry's.

Two trainings of one seed on the same machine and versions end in the same predictions, to the bit. Elsewhere the rounding of a
single sum is enough to send them apart as two seeds are. So scores are held against the noise of seeds and instances, by
`regbench.metrics.significance`. Only architectures that regbench has are trained: nothing of the entry is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from regbench import runner
from regbench.leaderboard.entry import Entry, InstanceScores
from regbench.leaderboard.examine import find_reference
from regbench.leaderboard.guard import Refused
from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.recipe import Recipe
from regbench.leaderboard.run_folder import RunFolder
from regbench.leaderboard.store import Stored
from regbench.leaderboard.verify import verify_entry
from regbench.metrics.significance import Change, Sample, compare
from regbench.results import Result
from regbench.tracks import Track, load_track
from regbench.training.progress import Reporter
from regbench.utils.errors import UserError

LEVEL = 0.0005
"""Of either side: an entry that reproduces is called different once in a thousand times, for each score."""


@dataclass(frozen=True)
class Reproduction:
    """An entry beside its second run.

    changes: by score, from the entry to the run.  means: by score, that of the entry and of the run, over seeds.
    identical: the seeds whose predictions are the same to the bit.
    """

    entry: Entry
    result: Result
    folder: Path
    changes: dict[str, Change]
    means: dict[str, tuple[float, float]]
    identical: tuple[int, ...]

    @property
    def differs(self) -> list[str]:
        """The scores that chance does not explain."""
        return [metric for metric, change in self.changes.items() if change.worse or change.better]


def reproduce(
    path: Path,
    *,
    seeds: Sequence[int] = (),
    out: Path | None = None,
    track: str | None = None,
    reporter: Reporter | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Reproduction:
    """Trains what an entry's command says, and compares all scores.

    Args:
        seeds: which of the entry's; by default all.
        out: the run folder, by default under `runs/reproduced/`; an unfinished run of it goes on.
        track: the YAML file of one's own track, if the entry is of that.

    Raises:
        UserError: the entry has faults, is of an architecture that is not built in, or has no such seed.
    """
    own = load_track(track) if track is not None else None
    findings = verify_entry(path, track=own, costly=False)
    if findings.faults:
        raise UserError(f"{path} is no entry that could be reproduced: {findings.faults[0]}")
    entry = Stored(path).read()[0]
    recipe = Recipe.parse(entry.command)
    if not is_built_in(entry.result.architecture):
        raise UserError(f"{entry.name} is not built in, and nothing that came with an entry is run: {recipe} trains it")
    chosen = _chosen(entry, seeds)
    asked = replace(recipe, seeds=chosen)
    folder = out or Path("runs") / "reproduced" / path.stem
    if (folder / "config.yaml").exists():
        _check_same(folder, asked, track)
        announce(f"going on with {folder}")
        result = runner.resume(folder, reporter)
    else:
        result = runner.run(
            track or asked.track,
            asked.architecture,
            asked.seeds,
            settings=asked.settings,
            backend=asked.backend,
            device=asked.device,
            trials=asked.trials,
            out=folder,
            reporter=reporter,
        )
    return compare_runs(entry, result, folder, own)


def _chosen(entry: Entry, seeds: Sequence[int]) -> tuple[int, ...]:
    known = tuple(seed.seed for seed in entry.result.seeds)
    strange = [seed for seed in seeds if seed not in known]
    if strange:
        raise UserError(f"{entry.name} has no seed {strange[0]}, only {', '.join(map(str, known))}")
    return tuple(seeds) or known


def _check_same(folder: Path, asked: Recipe, track: str | None) -> None:
    """Raises:
    UserError: the run in the folder is another, be it only of another track, backend or device.
    """
    try:
        there = RunFolder(folder).config
    except Refused as error:
        raise UserError(f"{folder} cannot be gone on with: {error}") from None
    if Recipe.of(there, asked.track) != asked or there.track != (track or asked.track):
        raise UserError(f"{folder} holds another run; choose another --out")


def compare_runs(entry: Entry, result: Result, folder: Path, track: Track | None = None) -> Reproduction:
    """An entry beside a finished run of its track, whose folder holds the predictions. track: one's own, if it is of that."""
    reference = find_reference(entry.track, track)
    run = RunFolder(folder)
    scored = [run.scored(seed.seed, reference) for seed in result.seeds]
    again = InstanceScores.of([one.scores for one in scored])
    changes, means = {}, {}
    for metric in entry.result.metrics:
        samples = []
        for records, instances in ((entry.result.seeds, entry.instances), (result.seeds, again)):
            values = [seed.scores[metric].value for seed in records]
            samples.append(Sample(values, instances.total(metric) / len(records)))
        counts = np.asarray(entry.instances.counts_of(metric))
        better = reference.track.metrics[metric].higher_is_better
        changes[metric] = compare(samples[0], samples[1], counts, higher_is_better=better, level=LEVEL)
        means[metric] = (samples[0].mean, samples[1].mean)
    theirs = {seed.seed: seed.predictions_sha256 for seed in entry.result.seeds}
    identical = tuple(seed.seed for seed in result.seeds if theirs[seed.seed] == seed.predictions_sha256)
    return Reproduction(entry, result, folder, changes, means, identical)
