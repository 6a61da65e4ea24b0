"""From the leaderboard's folder to ranked boards: every entry is verified, and what is on no track of today is looked up.

Baselines take minutes to compute. `baselines.json` keeps those of every track with entries, so that entries are compared with
them and not with each other. `retired.json` lists the definitions that are gone and whose entries stay readable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from regbench.leaderboard.entry import Entry, canonical
from regbench.leaderboard.figures import mean_fault, sums_fault
from regbench.leaderboard.language_models import read_language_models
from regbench.leaderboard.plausible import copies
from regbench.leaderboard.rank import Board, rank
from regbench.leaderboard.reference import find_reference, todays_track
from regbench.leaderboard.spread import kept_spread
from regbench.leaderboard.store import Stored, stored_entries
from regbench.leaderboard.tiers import Evidence, check_evidence, read_evidence
from regbench.leaderboard.verify import verify_entry
from regbench.metrics.metric import METRICS
from regbench.results import BaselineRecord
from regbench.tracks import Track
from regbench.utils.errors import UserError
from regbench.utils.folder import Folder
from regbench.utils.guard import Refused, parse_json

BASELINES, RETIRED = "baselines.json", "retired.json"
_DIGEST = re.compile("[0-9a-f]{64}")
_FILE_BYTES = 16 << 20
_MOST_POSITIONS = 2**48
"""Of a test split. Sums and squares of fewer are exact enough, and do not overflow."""

Known = Mapping[str, Mapping[str, BaselineRecord]]
"""By the digest of a track's definition the baselines on its test split."""


def load_boards(
    folder: Path, track: Track | None = None, announce: Callable[[str], None] = lambda _: None
) -> tuple[list[Board], list[str]]:
    """The ranked boards of all entries, and a line for each fault in the entries. With a fault there are no boards.

    Args:
        folder: The leaderboard's folder.
        track: A track of your own, if entries may be of that.
        announce: Called with a line before something that takes long.
    """
    entries: list[Entry] = []
    evidence: dict[str, Evidence] = {}
    faults: list[str] = []
    try:
        retired, known = _retired(folder), kept_baselines(folder)
        for stored in stored_entries(folder):
            try:
                evidence[stored.entry.digest] = read_evidence(stored)
            except Refused as error:
                faults.append(f"{stored.path.name}: {error}")
                continue
            entries.append(stored.entry)
            found = _faults(stored, track, known, retired, announce)
            faults += [f"{stored.path.name}: {fault}" for fault in dict.fromkeys(found)]
        if not faults:
            faults = copies(entries)
        models, wrong = read_language_models(folder, retired)
        faults += wrong
        boards = [] if faults else rank(entries, track, evidence, kept_spread(folder))
        boards = [replace(b, language_models=tuple(models.get((b.track, b.digest), ()))) for b in boards]
    except UserError as error:
        return [], [*faults, str(error)]
    return boards, faults


def kept_baselines(folder: Path) -> dict[str, dict[str, BaselineRecord]]:
    """What `baselines.json` of a leaderboard holds.

    Raises:
        Refused: It is not of the schema.
    """
    try:
        return {
            digest: {name: BaselineRecord.model_validate({**record, "seconds": 0.0}) for name, record in found.items()}
            for digest, found in _mapping(folder, BASELINES).items()
        }
    except (pydantic.ValidationError, AttributeError, TypeError):
        raise Refused(f"{BASELINES}: not of the schema; remove it, and `regbench leaderboard` makes it again") from None


def baselines_file(folder: Path, boards: list[Board], track: Track | None, announce: Callable[[str], None]) -> str:
    """The text of `baselines.json`: what is there, and the baselines of tracks that are new on the board."""
    known: dict[str, Mapping[str, BaselineRecord]] = {**kept_baselines(folder)}
    for board in boards:
        if board.digest not in known and todays_track(board.track, board.digest, track) is not None:
            known[board.digest] = find_reference(board.track, track).baselines(announce)
    return canonical(
        {
            digest: {name: record.model_dump(mode="json", exclude={"seconds"}) for name, record in found.items()}
            for digest, found in known.items()
        }
    )


def retired_faults(entry: Entry) -> Iterator[str]:
    """What is wrong with the figures of an entry whose track is gone: all that needs no instances."""
    instances, result = entry.instances, entry.result
    if unknown := sorted(set(entry.metrics) - set(METRICS)):
        yield f"{unknown[0][:60]} is no score"
        return
    counted = [instances.counts, *instances.group_counts.values()]
    lengths = {len(column) for one in instances.sums for column in one.values()} | {len(counts) for counts in counted}
    if len(lengths) != 1 or len(instances.sums) != len(result.seeds) or not all(map(any, counted)):
        yield "not every instance has a score"
        return
    if any(set(one) != set(entry.metrics) for one in instances.sums):
        yield "not every seed has the scores of every instance"
        return
    if max(map(sum, counted)) >= _MOST_POSITIONS:
        yield "the instances have more positions than a track can have"
        return
    for place, seed in enumerate(result.seeds):
        for metric, record in seed.scores.items():
            sums, counts = np.array(instances.sums[place][metric]), instances.counts_of(metric)
            fault = sums_fault(METRICS[metric], sums, counts) or mean_fault(record, sums, counts)
            if fault:
                yield f"seed {seed.seed}: {metric}: {fault}"
    if not all(0 <= value < 1e100 for seed in result.seeds for value in (seed.seconds, seed.tokens_per_second)):
        yield "seconds or tokens per second are beyond measure"
    for name, baseline in result.baselines.items():
        for metric, record in baseline.scores.items():
            lowest, highest = METRICS[metric].limits
            if not lowest <= record.value <= highest:
                yield f"{name}: {metric} is {record.value:g}, outside {lowest:g} to {highest:g}"


def _faults(
    stored: Stored,
    track: Track | None,
    known: Known,
    retired: Mapping[str, Any],
    announce: Callable[[str], None],
) -> Iterator[str]:
    name, digest = stored.entry.track, stored.entry.result.track.digest
    if todays_track(name, digest, track) is not None:
        found = verify_entry(stored, track=track, baselines=known.get(digest), announce=announce)
        yield from (str(fault) for fault in found.faults)
        return
    yield from (f"form: {fault}" for fault in stored.faults)
    if digest in retired.get(name, ()):
        faults = list(retired_faults(stored.entry))
        yield from faults or (f"tier: {fault}" for fault in check_evidence(stored, None))
    else:
        yield (
            f"track: {name} with the digest {digest[:12]!a} is no track of today, and {RETIRED} does not list it; "
            "if it is yours, give its file: --track FILE.yaml"
        )


def _retired(folder: Path) -> dict[str, Any]:
    """By the name of a track the digests of its definitions that are gone."""
    found = _mapping(folder, RETIRED)
    known = [digest for digests in found.values() for digest in (digests if isinstance(digests, list) else [None])]
    if not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in known):  # it names files
        raise Refused(f"{RETIRED}: it must map the name of a track to a list of digests")
    return found


def _mapping(folder: Path, name: str) -> dict[str, Any]:
    if not Folder(folder).has(name):
        return {}
    content = parse_json(Folder(folder).read(name, _FILE_BYTES), name)
    if not isinstance(content, dict):
        raise Refused(f"{name}: it must be an object")
    return content
