"""Verifying an entry by itself, or with the predictions or the whole run it was made from. Nothing that came with it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from regbench.leaderboard import against_run, figures, origin
from regbench.leaderboard.case import Case, Check, Findings
from regbench.leaderboard.entry import InstanceScores, canonical
from regbench.leaderboard.names import name_faults
from regbench.leaderboard.plausible import plausible
from regbench.leaderboard.reference import Reference, find_reference
from regbench.leaderboard.run_folder import RunFolder, Scored, read_scored
from regbench.leaderboard.store import Stored
from regbench.leaderboard.tiers import check_evidence
from regbench.results import BaselineRecord, Result
from regbench.tracks import Track
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused

CHECKS: tuple[Check, ...] = (
    *figures.STRUCTURE,
    *figures.ALONE,
    *origin.CHECKS,
    *figures.FIGURES,
    plausible,
    *against_run.CHECKS,
    *figures.COSTLY,
)
"""Every check on a claim, in the order of what it costs. RULES.md says what each holds."""


def verify_entry(
    stored: Stored,
    *,
    track: Track | None = None,
    run: Path | None = None,
    predictions: Path | None = None,
    costly: bool = True,
    baselines: Mapping[str, BaselineRecord] | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Findings:
    """All that can be found wrong with an entry and its files. Whatever the file holds, nothing is raised.

    Args:
        stored: The entry and its files.
        track: A track of your own, if the entry may be of that.
        run: The folder of the run that the entry was made from, to compare with.
        predictions: A folder with `seed-N/predictions.npz`; by default those kept beside the entry, if any.
        costly: Whether the baselines are compared, if nothing else is wrong.
        baselines: The track's baselines; by default they are computed.
        announce: Called with a line before something that takes long.
    """
    findings = Findings()
    try:
        entry = stored.entry
    except Refused as error:
        findings.take("schema", [str(error)])
        return findings
    findings.take("form", stored.faults)
    findings.take("name", name_faults(entry.name, entry.result))
    step = "track"
    try:
        reference = find_reference(entry.track, track)
        step = "source"
        source = stored.source
        step = "logs"
        folder = RunFolder(run) if run is not None else None
        if folder is not None and _text(folder.result) != _text(entry.result):
            findings.take(step, ["result.json is not the entry's result"])
        step = "predictions"
        scored = _scored(stored, reference, run or predictions)
        case = Case(
            entry.result, entry.configuration, reference, entry.instances, source, folder, scored, announce, baselines
        )
        step = "configuration"
        _examine(case, findings, costly=costly)
        if not findings.faults:
            findings.take("tier", check_evidence(stored, reference.track))
    except UserError as error:  # also a track that this machine makes otherwise, or a baseline that breaks its contract
        findings.take(step, [str(error)])
    return findings


def verify_run(
    path: Path,
    track: Track | None,
    source: bytes | None = None,
    announce: Callable[[str], None] = lambda _: None,
    *,
    costly: bool = True,
) -> tuple[Case, Findings]:
    """All that can be found wrong with a run folder that is to become an entry.

    Args:
        path: The run folder.
        track: A track of your own, if the run may be of that.
        source: The bytes of the architecture's file, if it is not built in.
        announce: Called with a line before something that takes long.
        costly: Whether the baselines are compared, if nothing else is wrong.

    Raises:
        UserError: It is not the folder of a finished run, or the track is unknown.
    """
    folder, findings = RunFolder(path), Findings()
    folder.require()
    result = folder.result
    reference = find_reference(result.track.name, track)
    scored: list[Scored] = []
    for seed in result.seeds:
        try:
            scored.append(folder.scored(seed.seed, reference))
        except Refused as error:
            findings.take("predictions", [str(error)])
    complete = len(scored) == len(result.seeds)
    instances = InstanceScores.of([one.scores for one in scored]) if complete else None
    case = Case(
        result, folder.configuration, reference, instances, source, folder, scored if complete else None, announce
    )
    _examine(case, findings, costly=costly)
    return case, findings


def _examine(case: Case, findings: Findings, *, costly: bool) -> None:
    """Makes all checks and adds what they find. Those that rely on others are made only if these found nothing."""
    whole = findings.run(figures.STRUCTURE, case)
    findings.run((*figures.ALONE, *origin.CHECKS), case)
    if whole:
        findings.run((*figures.FIGURES, plausible, *against_run.CHECKS), case)
    if costly and not findings.faults:
        findings.run(figures.COSTLY, case)


def _scored(stored: Stored, reference: Reference, folder: Path | None) -> list[Scored] | None:
    """The predictions in a folder, or those beside the entry. None if there are none beside it."""
    seeds = [seed.seed for seed in stored.entry.result.seeds]
    if folder is not None:
        return [RunFolder(folder).scored(seed, reference) for seed in seeds]
    names = [stored.predictions_name(seed) for seed in seeds]
    if not any(stored.folder.has(name) for name in names):
        return None
    return [read_scored(stored.folder, name, reference) for name in names]


def _text(result: Result) -> str:
    return canonical(result.model_dump(mode="json"))
