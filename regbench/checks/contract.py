"""What the contracts of architectures and tasks share: a check, its outcome, and how a whole list of checks is run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from regbench.utils.errors import UserError, blame

Check = Callable[[Any], str | None]
"""Takes a subject and returns what is wrong with it, or None. Its name and the first line of its docstring tell what it asks."""


class NotApplicable(Exception):
    """The subject declares that a check does not apply to it. The message says why."""


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one check: a fault, or a note where the check does not apply, or neither where it holds."""

    check: str
    fault: str | None = None
    note: str | None = None
    """Why the check does not apply."""
    cause: BaseException | None = None


def examine(subject: Any, checks: Iterable[Check]) -> Iterator[CheckOutcome]:
    """Runs the checks in turn, without gradients. An exception from the subject's own code is a fault of that check."""
    torch = sys.modules.get("torch")  # where nothing has imported it, there are no gradients
    for check in checks:
        fault: str | None = None
        note: str | None = None
        cause: BaseException | None = None
        try:
            with torch.no_grad() if torch else nullcontext():
                fault = check(subject)
        except NotApplicable as reason:
            note = str(reason)
        except UserError as error:
            fault, cause = str(error), error
        except (Exception, SystemExit) as error:
            fault, cause = f"it raises {blame(error)}", error
        yield CheckOutcome(check.__name__, fault, note, cause)


def refuse(subject: Any, checks: Iterable[Check], what: str) -> None:
    """Runs the checks up to the first fault. `what` is the subject for people, as "architecture 'mamba'"."""
    for outcome in examine(subject, checks):
        if outcome.fault:
            raise UserError(f"{what} cannot be scored: {outcome.fault}") from outcome.cause
