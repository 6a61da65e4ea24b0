"""Submitting: a finished run becomes an entry if no check finds anything wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regbench.config import Config
from regbench.leaderboard.case import Case, Findings, RunFolder, read_predictions
from regbench.leaderboard.entry import Entry, canonical, check_name
from regbench.leaderboard.guard import Folder, Refused
from regbench.leaderboard.origin import is_built_in
from regbench.leaderboard.rank import retirement
from regbench.leaderboard.store import ENTRY_BYTES, SOURCE_BYTES, Stored, stored_entries
from regbench.leaderboard.verify import name_faults, verify_run
from regbench.results import Result
from regbench.tracks import Track
from regbench.training.options import resolve_training
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_full_disk


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
    publish_predictions: bool = False,
    source: Path | None = None,
    track: Track | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Submission:
    """Checks a run folder and writes its entry. The entry takes the place of one of the same configuration.

    Args:
        run: The run folder.
        board: The leaderboard's folder.
        name: The entry's name; by default the architecture's name and the settings that are not its defaults.
        publish_predictions: Whether to copy the predictions beside the entry, so that anyone can compute the scores again.
        source: The file of an architecture that is not built in; by default where the run found it.
        track: A track of one's own, if the run is of that.
        announce: Called with a line before something that takes long.

    Raises:
        UserError: There is no finished run, the name is not allowed or another entry's, or the source is not found.
    """
    if name is not None:
        check_name(name)
    folder = RunFolder(run)
    kept = None if is_built_in(folder.result.architecture) else read_source(folder, source)
    case, findings = verify_run(run, track, kept, announce)
    reason = retirement(case.result.track.name, case.result.track.digest) if track is None else None
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
    before = sorted({path for other in (stored, *_replaced(board, entry)) for path in other.files})
    with explain_full_disk(board):
        written = _write(stored, entry, case, publish_predictions)
        gone = [old for old in before if old not in written]
        for old in gone:
            old.unlink(missing_ok=True)
    return Submission(findings, stored.path, [old for old in before if old in written], gone)


def default_name(configuration: Config, result: Result) -> str:
    """The architecture's name and the settings that are not its defaults.

    An example is "gla+ngh-1-2-3+mimetic": `ngh` is `ngram_heads`, and a setting without a value is true.
    """
    defaults = _defaults(result) if is_built_in(result.architecture) else {}
    parts = [_slug(result.architecture.name)]
    for key, value in configuration.settings.items():
        if key not in defaults or json.dumps(defaults[key]) != json.dumps(value):
            part = "ngh" if key == "ngram_heads" else _slug(key.removeprefix("training."))
            parts.append(part if value is True else f"{part}-{_slug(json.dumps(value))}")
    return "+".join(parts)


def read_source(run: RunFolder, given: Path | None) -> bytes:
    """The file of an architecture that is not built in. It is read and never run.

    Args:
        run: The run folder.
        given: Where the file is; by default where the run found it.

    Raises:
        UserError: The file is not found, or the architecture is not from a file.
    """
    named = run.config.architecture
    path = given or Path(re.sub(r"\.py:\w+$", ".py", named))
    if path.suffix != ".py":
        raise UserError(
            f"'{named}' comes from another distribution: run it from a file (--arch path/to/file.py), which is kept here"
        )
    try:
        return Folder(path.parent).read(path.name, SOURCE_BYTES)
    except Refused as error:
        raise UserError(
            f"the architecture's source is kept with the entry: {error}; where it is: --source FILE"
        ) from None


def same_configuration(a: Entry, b: Entry) -> bool:
    """Whether two entries are of one configuration: alike in every option that both have."""
    pairs = (
        (a.result.architecture.options, b.result.architecture.options),
        (a.result.training, b.result.training),
    )
    alike = all(canonical(x[key]) == canonical(y[key]) for x, y in pairs for key in x.keys() & y.keys())
    first, second = a.result.architecture, b.result.architecture
    return alike and (a.track, first.name, first.source) == (b.track, second.name, second.source)


def _defaults(result: Result) -> dict[str, Any]:
    """The defaults of all settings, by the names that `--set` has for them."""
    cls = registry.load(registry.ARCHITECTURE, result.architecture.name)
    training = resolve_training(cls, {}).model_dump(mode="json")
    own: dict[str, Any] = cls.Options().model_dump(mode="json")
    return {**own, **{f"training.{key}": value for key, value in training.items()}}


def _slug(text: str) -> str:
    """`text` in small letters, digits and _, joined by what a name may have between them."""
    words = re.split(r"[^a-z0-9_.]+", text.lower())
    return "-".join(word.strip(".") for word in words if word.strip("."))


def _replaced(board: Path, entry: Entry) -> list[Stored]:
    """The entries of the same configuration.

    Raises:
        UserError: Another configuration has this name.
    """
    found = []
    for stored in stored_entries(board):
        if stored.path.parent.name != entry.track:
            continue
        other = stored.read()[0]
        if other.digits == entry.digits or (other.name == entry.name and same_configuration(entry, other)):
            found.append(stored)
        elif other.name == entry.name:
            raise UserError(f"{stored.path} is another configuration of the name '{entry.name}': give one with --name")
    return found


def _write(stored: Stored, entry: Entry, case: Case, publish_predictions: bool) -> list[Path]:
    """Writes what belongs to the entry, and the entry last. Returns the paths of all files."""
    folder, written = stored.path.parent, [stored.path]
    if case.source is not None:
        written.append(folder / stored.source_name)
        with atomic_write(written[-1], "wb") as file:
            file.write(case.source)
    if publish_predictions:
        assert case.run is not None
        for seed in case.result.seeds:
            kept = read_predictions(case.run.folder, f"seed-{seed.seed}/predictions.npz", case.reference)
            written.append(folder / stored.predictions_name(seed.seed))
            kept.save(written[-1])
    with atomic_write(stored.path) as file:
        file.write(canonical(entry.content()))
    return written
