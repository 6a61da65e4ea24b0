"""What is examined, and what is found: the checks of `figures`, `origin` and `evidence` take a `Case` and yield findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from regbench.leaderboard.entry import InstanceScores
from regbench.leaderboard.recipe import Recipe
from regbench.leaderboard.reference import Reference
from regbench.leaderboard.run_folder import RunFolder, Scored
from regbench.results import Result


class Note(str):
    """A finding that is no fault: something that could not be checked, or that the reader should know."""


@dataclass(frozen=True)
class Case:
    """What someone claims, and what there is to compare it with.

    result, instances, recipe: the claim; instances are None as long as they could not be computed.
    reference: the track.  source: the bytes of the architecture's file kept beside the entry, None of a built-in.
    run: the folder of the run, where it is there.  scored: predictions of every seed, in the result's order, where they are.
    announce: is told what takes long.
    """

    result: Result
    recipe: Recipe
    reference: Reference
    instances: InstanceScores | None = None
    source: bytes | None = None
    run: RunFolder | None = None
    scored: Sequence[Scored] | None = None
    announce: Callable[[str], None] = lambda _: None


Check = Callable[[Case], Iterator[str]]
"""Yields a line for each fault, or a `Note`. The name of the function is what RULES.md calls it."""


@dataclass(frozen=True)
class Fault:
    """One line about what is wrong, and the check that found it."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


@dataclass
class Findings:
    """All that was found, in order."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, checks: Iterable[Check], case: Case) -> bool:
        """Runs the checks and keeps what they find; whether none found a fault."""
        before = len(self.faults)
        for check in checks:
            self.take(check.__name__, check(case))
        return len(self.faults) == before

    def take(self, check: str, found: Iterable[str]) -> None:
        """Keeps the findings of one check."""
        for text in found:
            if isinstance(text, Note):
                self.notes.append(str(text))
            else:
                self.faults.append(Fault(check, text))
