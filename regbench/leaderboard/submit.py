"""Submitting: a finished run becomes an entry if no check finds anything wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from regbench.leaderboard.case import Case, Findings
from regbench.leaderboard.entry import Entry, canonical, check_name
from regbench.leaderboard.names import default_name, name_faults
from regbench.leaderboard.origin import is_built_in, same_configuration
from regbench.leaderboard.rank import retirement
from regbench.leaderboard.run_folder import RunFolder
from regbench.leaderboard.store import ENTRY_BYTES, SOURCE_BYTES, Stored, stored_entries
from regbench.leaderboard.tiers import Evidence, Submitted, check_by, read_evidence, today, write_evidence
from regbench.leaderboard.verify import verify_run
from regbench.tracks import Track
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, exclusive, explain_full_disk
from regbench.utils.folder import Folder
from regbench.utils.guard import Refused


@dataclass
class Submission:
    """What came of a submission.

    Attributes:
        findings: What the checks found.
        path: The entry's file. None if the run was refused.
        replaced: Files of earlier entries that were overwritten.
        removed: Files of earlier entries that are gone.
    """

    findings: Findings
    path: Path | None = None
    replaced: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)


def submit(
    run: Path,
    board: Path,
    *,
    name: str | None = None,
    by: str | None = None,
    publish_predictions: bool = False,
    replace: bool = False,
    source: Path | None = None,
    track: Track | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Submission:
    """Checks a run folder and writes its entry.

    Args:
        run: The run folder.
        board: The leaderboard's folder.
        name: The entry's name; by default the architecture's name and the settings that are not its defaults.
        by: Who submits, for the evidence beside the entry. Somebody else can then reproduce it.
        publish_predictions: Whether to copy the predictions beside the entry, so that anyone can compute the scores again.
        replace: Whether it takes the place of an entry of the same configuration.
        source: The file of an architecture that is not built in; by default where the run found it.
        track: A track of your own, if the run is of that.
        announce: Called with a line before something that takes long.

    Raises:
        UserError: There is no finished run, the name is not allowed or another entry's, or the source is not found. Or an entry
            of the same configuration is there, and is not to be replaced or has a higher tier.
    """
    if name is not None:
        check_name(name)
    if by is not None:
        check_by(by)
    folder = RunFolder(run)
    folder.require()
    kept = None if is_built_in(folder.result.architecture) else read_source(folder, source)
    case, findings = verify_run(run, track, kept, announce)
    own = track is not None and track.name == case.result.track.name
    reason = None if own else retirement(case.result.track.name, case.result.track.digest)
    findings.take("retired", [f"{case.result.track.name} takes no more entries: {reason}"] if reason else [])
    name = name if name is not None else default_name(case.configuration, case.result)
    findings.take("name", name_faults(name, case.result))
    if findings.faults:
        return Submission(findings)
    assert case.instances is not None
    entry = Entry.seal(name, case.configuration, case.result, case.instances)
    if len(canonical(entry.content())) > ENTRY_BYTES:
        findings.take("form", [f"an entry has at most {ENTRY_BYTES:,} bytes"])
        return Submission(findings)
    stored = Stored(board / "entries" / entry.track / entry.file_name)
    with explain_full_disk(board), exclusive(board, patience=math.inf):  # else two at once would not see each other
        earlier = _replaced(board, entry)
        for other in earlier:
            if not replace:
                raise UserError(f"{other.path} is the same configuration: --replace puts this run in its place")
            if (tier := read_evidence(other).tier) != "claimed":
                raise UserError(f"{other.path} is {tier}, and this run is only claimed: it cannot replace it")
        before = sorted({path for other in (stored, *earlier) for path in other.files})
        written = _write(stored, entry, case, publish_predictions, by)
        gone = [old for old in before if old not in written]
        for old in gone:
            old.unlink(missing_ok=True)
    return Submission(findings, stored.path, [old for old in before if old in written], gone)


def read_source(run: RunFolder, given: Path | None) -> bytes:
    """The file of an architecture that is not built in. It is read and never run.

    Args:
        run: The run folder.
        given: Where the file is; by default where the run found it.

    Raises:
        UserError: The file is not found, or the architecture is not from a file.
    """
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

    Raises:
        UserError: Another configuration has this name.
    """
    built_in = is_built_in(entry.result.architecture)
    found = []
    for stored in stored_entries(board):
        if stored.path.parent.name != entry.track:
            continue
        other = stored.entry
        same = other.configuration_digest == entry.configuration_digest
        comparable = built_in or other.name == entry.name
        if same or (comparable and same_configuration(entry.result, other.result)):
            found.append(stored)
        elif other.name == entry.name:
            raise UserError(f"{stored.path} is another configuration of the name '{entry.name}': give one with --name")
    return found


def _write(stored: Stored, entry: Entry, case: Case, publish_predictions: bool, by: str | None) -> list[Path]:
    """Writes what belongs to the entry, and the entry last. Returns the paths of all files."""
    folder, written = stored.path.parent, [stored.path]
    if case.source is not None:
        written.append(folder / stored.source_name)
        with atomic_write(written[-1], "wb") as file:
            file.write(case.source)
    if publish_predictions:
        assert case.run is not None
        for seed in case.result.seeds:
            written.append(folder / stored.predictions_name(seed.seed))
            case.run.predictions(seed.seed, case.reference).save(written[-1])
    if by is not None:
        write_evidence(stored, Evidence(entry=entry.digest, submitted=Submitted(date=today(), by=by)))
        written.append(folder / stored.evidence_name)
    with atomic_write(stored.path) as file:
        file.write(canonical(entry.content()))
    return written
