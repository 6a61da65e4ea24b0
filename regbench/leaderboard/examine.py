"""All checks on one claim, in the order of what they cost: see `case` for what a check is, and RULES.md for what each holds."""

from __future__ import annotations

from functools import lru_cache

from regbench.leaderboard import evidence, figures, origin
from regbench.leaderboard.case import Case, Check, Findings
from regbench.leaderboard.guard import Refused
from regbench.leaderboard.reference import Reference
from regbench.tracks import Track, load_track, track_names
from regbench.utils.errors import nearest

CHECKS: tuple[Check, ...] = (
    *figures.STRUCTURE,
    *figures.ALONE,
    *origin.CHECKS,
    *figures.FIGURES,
    *evidence.CHECKS,
    *figures.COSTLY,
)
"""Every check there is on a claim. Those of an entry's file are in `verify` and `submit`."""


def examine(case: Case, findings: Findings, *, costly: bool = True) -> Findings:
    """Adds what is found; costly: whether baselines are computed, which is done only where nothing else is wrong."""
    whole = findings.run(figures.STRUCTURE, case)
    findings.run((*figures.ALONE, *origin.CHECKS), case)
    if whole:
        findings.run((*figures.FIGURES, *evidence.CHECKS), case)
    if costly and not findings.faults:
        findings.run(figures.COSTLY, case)
    return findings


def find_reference(name: str, given: Track | None = None) -> Reference:
    """The track a claim is about: the one given, if it is called so, or a built-in one. A name is never taken for a path.

    Raises:
        Refused: there is no such track, or it takes no entries.
    """
    if given is not None and given.name == name:
        return _checkable(_own(given))
    if name not in track_names():
        hint = nearest(name[:80], track_names(), " (one of your own: --track FILE.yaml)")
        raise Refused(f"unknown track {name[:80]!a}{hint}")
    return _checkable(_built_in(name))


def _checkable(reference: Reference) -> Reference:
    """Raises:
    Refused: nobody else could check a claim about this track.
    """
    if not reference.track.task.knows_truth:
        raise Refused(
            f"{reference.track.name} takes no entries: its text depends on the machine it was made on and its truth is unknown, "
            "so nobody else could check a claim"
        )
    return reference


@lru_cache(maxsize=16)
def _built_in(name: str) -> Reference:
    return Reference(load_track(name))


@lru_cache(maxsize=4)
def _own(track: Track) -> Reference:
    return Reference(track)
