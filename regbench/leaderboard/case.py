"""A case: what someone claims, what there is to compare it with, and what the checks find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from regbench.config import Config
from regbench.leaderboard.entry import InstanceScores
from regbench.leaderboard.reference import Reference
from regbench.leaderboard.run_folder import RunFolder, Scored
from regbench.results import BaselineRecord, Result


class Note(str):
    """A finding that is no fault: something that could not be checked, or that the reader should know."""


@dataclass(frozen=True)
class Case:
    """What someone claims, and what there is to compare it with.

    Attributes:
        result: The claim.
        configuration: What the claim says the run was asked.
        reference: The track.
        instances: The claimed scores of the test instances. None where they could not be computed.
        source: The bytes of the architecture's file kept beside the entry. None of a built-in architecture.
        run: The run folder, where there is one.
        scored: The predictions of every seed, in the result's order, where there are any.
        announce: Called with a line before something that takes long.
        baselines: The track's baselines. None where they are to be computed.
    """

    result: Result
    configuration: Config
    reference: Reference
    instances: InstanceScores | None = None
    source: bytes | None = None
    run: RunFolder | None = None
    scored: Sequence[Scored] | None = None
    announce: Callable[[str], None] = lambda _: None
    baselines: Mapping[str, BaselineRecord] | None = None


Check = Callable[[Case], Iterator[str]]
"""Yields a line for each fault, or a `Note`. RULES.md calls a check by the name of its function."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        check: The name of the check that found it.
        text: What is wrong, in one line.
    """

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


@dataclass
class Findings:
    """All that was found, in order.

    Attributes:
        faults: What is wrong.
        notes: What is worth knowing.
    """

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, checks: Iterable[Check], case: Case) -> bool:
        """Runs the checks and keeps what they find. Returns whether they found no fault."""
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
