"""Verifying an entry by itself or with its run, and submitting: a run becomes an entry if nothing is wrong.

Nothing that came with an entry is run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from regbench.leaderboard import against_run, figures, origin
from regbench.leaderboard.claim import Case, Check, Findings, RunFolder, Scored, find_reference
from regbench.leaderboard.entry import Entry, InstanceScores, check_name, text_of
from regbench.leaderboard.origin import default_name, git, is_built_in, name_faults, same_configuration
from regbench.leaderboard.store import ENTRY_BYTES, EVIDENCE, SOURCE_BYTES, Stored, stored_in
from regbench.leaderboard.tiers import (
    EVIDENCE_BYTES,
    Evidence,
    Submitted,
    check_by,
    check_evidence,
    read_evidence,
    today,
)
from regbench.results import BaselineRecord
from regbench.tracks import Track
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_writing
from regbench.utils.folder import Folder
from regbench.utils.guard import Refused, of_schema, parse_json

CHECKS: tuple[Check, ...] = (
    *figures.STRUCTURE,
    *figures.ALONE,
    *origin.CHECKS,
    *figures.FIGURES,
    against_run.predictions,
    *figures.COSTLY,
)
"""Every check on a claim, in the order of what it costs."""


def verify_entry(
    stored: Stored,
    *,
    track: Track | None = None,
    run: Path | None = None,
    costly: bool = True,
    baselines: Mapping[str, BaselineRecord] | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Findings:
    """All that can be found wrong with an entry and its files. Whatever the file holds, nothing is raised.

    `track` is one of your own, if the entry may be of that, and `run` the folder of the run that it was made from. The
    track's `baselines` are compared if `costly`, and computed if they are not given.
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
        step = "predictions"
        folder = RunFolder(run) if run is not None else None
        if folder is not None and text_of(folder.result) != text_of(entry.result):
            findings.take(step, ["result.json is not the entry's result"])
        seeds = [seed.seed for seed in entry.result.seeds]
        scored = [folder.scored(seed, reference) for seed in seeds] if folder is not None else None
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
    source: Path | None = None,
    announce: Callable[[str], None] = lambda _: None,
    *,
    costly: bool = True,
) -> tuple[Case, Findings]:
    """All that can be found wrong with a run folder that is to become an entry. Arguments are as those of `submit`."""
    folder, findings = RunFolder(path), Findings()
    folder.require()
    result = folder.result
    kept = None if is_built_in(result.architecture) else _read_source(folder, source)
    reference = find_reference(result.track.name, track)
    scored: list[Scored] = []
    for i, seed in enumerate(result.seeds, 1):
        announce(f"scoring what seed {seed.seed} predicted, {i} of {len(result.seeds)}")
        try:
            scored.append(folder.scored(seed.seed, reference))
        except Refused as error:
            findings.take("predictions", [str(error)])
    complete = len(scored) == len(result.seeds)
    instances = InstanceScores.of([one.scores for one in scored]) if complete else None
    whole = scored if complete else None
    case = Case(result, folder.configuration, reference, instances, kept, folder, whole, announce)
    _examine(case, findings, costly=costly)
    return case, findings


def _examine(case: Case, findings: Findings, *, costly: bool) -> None:
    """Makes all checks and adds what they find. Those that rely on others are made only if these found nothing."""
    whole = findings.run(figures.STRUCTURE, case)
    findings.run((*figures.ALONE, *origin.CHECKS), case)
    if whole:
        findings.run((*figures.FIGURES, against_run.predictions), case)
    if costly and not findings.faults:
        findings.run(figures.COSTLY, case)


# --- Submitting. ---


@dataclass
class Submission:
    findings: Findings
    path: Path | None = None  # the entry's file. None if the run was refused
    replaced: list[Path] = field(default_factory=list)  # files of earlier entries that were overwritten
    removed: list[Path] = field(default_factory=list)  # files of earlier entries that are gone


def submit(
    run: Path,
    board: Path,
    *,
    name: str | None = None,
    by: str | None = None,
    replace: bool = False,
    source: Path | None = None,
    track: Track | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Submission:
    """Checks a run folder and writes its entry into the folder of a board.

    Args:
        run: The run folder.
        board: The leaderboard's folder.
        name: The entry's name; by default the architecture's name and the settings that are not its defaults.
        by: Who submits, for the evidence beside the entry. Somebody else can then challenge and reproduce it.
        replace: Whether it takes the place of an entry of the same configuration.
        source: The file of an architecture that is not built in; by default where the run found it.
        track: A track of your own, if the run is of that.
        announce: Called with a line before something that takes long.
    """
    if name is not None:
        check_name(name)
    if by is not None:
        check_by(by)
    case, findings = verify_run(run, track, source, announce)
    name = name if name is not None else default_name(case.configuration, case.result)
    findings.take("name", name_faults(name, case.result))
    if findings.faults:
        return Submission(findings)
    assert case.instances is not None
    entry = Entry.seal(name, case.configuration, case.result, case.instances)
    if len(text_of(entry)) > ENTRY_BYTES:
        findings.take("form", [f"an entry has at most {ENTRY_BYTES:,} bytes"])
        return Submission(findings)
    stored = Stored(board / "entries" / entry.track / entry.file_name)
    earlier = _replaced(board, entry)
    for other in earlier:
        if not replace:
            raise UserError(f"{other.path} is the same configuration: --replace puts this run in its place")
        if (tier := read_evidence(other).tier) != "claimed":
            raise UserError(f"{other.path} is {tier}, and this run is only claimed: it cannot replace it")
    before = sorted({path for other in (stored, *earlier) for path in other.files})
    with explain_writing(board):
        written = _write(stored, entry, case.source, by)
    gone = [old for old in before if old not in written]
    for old in gone:
        old.unlink(missing_ok=True)
    return Submission(findings, stored.path, [old for old in before if old in written], gone)


def _read_source(run: RunFolder, given: Path | None) -> bytes:
    """The file of an architecture that is not built in, where it is given or where the run found it. It is never run."""
    named = run.config.architecture
    path = given or registry.as_file(named)[0]
    if path is None or path.suffix != ".py":
        raise UserError(
            f"'{named}' comes from another distribution or from a program: run it from a file "
            "(--arch path/to/file.py), which is kept here"
        )
    try:
        return Folder(path.parent).read(path.name, SOURCE_BYTES)
    except Refused as error:
        raise UserError(
            f"the architecture's source is kept with the entry: {error}; where it is: --source FILE"
        ) from None


def _replaced(board: Path, entry: Entry) -> list[Stored]:
    """The entries of the same configuration.

    Files of strangers may differ where their options do not: they are compared only with the file of the same name.
    """
    built_in = is_built_in(entry.result.architecture)
    found = []
    for stored in stored_in(board / "entries" / entry.track):
        other = stored.entry
        same = other.configuration_digest == entry.configuration_digest
        comparable = built_in or other.name == entry.name
        if same or (comparable and same_configuration(entry.result, other.result)):
            found.append(stored)
        elif other.name == entry.name:
            raise UserError(f"{stored.path} is another configuration of the name '{entry.name}': give one with --name")
    return found


def _write(stored: Stored, entry: Entry, source: bytes | None, by: str | None) -> list[Path]:
    """Writes the entry and what belongs to it: all, or on a full disk nothing. Returns the paths of all files."""
    contents = {stored.path: text_of(entry).encode()}
    if source is not None:
        contents[stored.path.with_name(stored.source_name)] = source
    if by is not None:
        evidence = Evidence(entry=entry.digest, submitted=Submitted(date=today(), by=by))
        contents[stored.path.with_name(stored.evidence_name)] = text_of(evidence).encode()
    with ExitStack() as open_files:  # each file takes its name once all are on the disk, and the entry last
        for path, content in contents.items():
            file = open_files.enter_context(atomic_write(path, "wb"))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return list(contents)


# --- A contribution. ---


def contributed(folder: Path, base: str) -> tuple[list[Path], list[str]]:
    """The files below a folder that have changed since the history left a commit, and a line for each with evidence.

    A contribution says who submits. That an entry was challenged or reproduced is written by maintainers alone.
    """
    names = git(folder, "diff", "--name-only", "--no-renames", "--relative", "-z", f"{base}...HEAD")
    if names is None or base.startswith("-"):
        raise UserError(f"{folder} is in no git repository that has the commit {base[:80]!a}")
    changed = [name for name in names.decode("utf-8", "replace").split("\0") if name]
    return [folder / name for name in changed], [
        fault for name in changed for fault in _evidence_in(folder, base, name)
    ]


def _evidence_in(folder: Path, base: str, name: str) -> Iterator[str]:
    """Whether a changed file is evidence of more than who submitted, now or before."""
    if not name.endswith(EVIDENCE):
        return
    there = git(folder, "cat-file", "blob", f"{base}:./{name}")
    now = Folder(folder).read(name, EVIDENCE_BYTES) if Folder(folder).has(name) else None
    try:
        found = [of_schema(Evidence, parse_json(one, name), name) for one in (there, now) if one is not None]
    except Refused as error:
        yield str(error)
        return
    if any(one.tier != "claimed" for one in found):
        yield f"{name}: maintainers challenge and reproduce; a contribution brings an entry, and no evidence"
