"""How far a training is, and who is told of it. Imports no PyTorch, so that the command line starts fast."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from regbench.training.options import TrainingOptions

MEASURED = "measured."
"""Before the name of each figure of `Model.measured`, in the rows of `metrics.jsonl`."""

POINT = ("step", "tokens", "validation_loss")
"""What a row of the training curve holds beside the terms of the loss."""

TAKEN = (*POINT, "learning_rate", "tokens_per_second")
"""What a row of `metrics.jsonl` holds beside them. No term may be called so."""


@dataclass
class Progress:
    """Where training stands. Every checkpoint holds all of it."""

    step: int = 0
    tokens: int = 0  # real tokens seen; padding is not counted
    seconds: float = 0.0
    best_step: int = 0  # the step whose weights have the lowest validation loss
    best_validation_loss: float = math.inf  # that loss, in nats (of vectors, a squared error)
    validation_loss: float = math.inf  # the newest one
    lowered: int = 0  # how many plateaus have lowered the learning rate
    plateau_loss: float = math.inf  # the validation loss that a plateau is measured from
    plateau_epochs: int = 0  # evaluations since then without a better one
    curve: list[dict[str, float]] = field(default_factory=list)  # a row for each evaluation
    terms: list[str] = field(default_factory=list)

    def note_epoch(self, loss: float, options: TrainingOptions) -> None:
        """Lowers the learning rate after more than `plateau_patience` evaluations without a better validation loss.

        Better means lower by one part in 10,000, as in `torch.optim.lr_scheduler.ReduceLROnPlateau`.
        """
        if loss < self.plateau_loss * (1.0 - 1e-4):
            self.plateau_loss, self.plateau_epochs = loss, 0
            return
        self.plateau_epochs += 1
        if self.plateau_epochs > options.plateau_patience:
            self.lowered, self.plateau_epochs = self.lowered + 1, 0


class Reporter:
    """Is told what a run does. This one says nothing; the command line draws it, and a script may subclass it."""

    def begin(self, folder: Path) -> None:
        """The run writes into `folder`."""

    def phase(self, text: str) -> None:
        """A new phase begins."""

    def estimated(self, seconds: float) -> None:
        """The first steps of a training were timed. The rest is expected to take so long; validation is not counted."""

    def trained(self, progress: Progress, total_steps: int, loss: float, tokens_per_second: float) -> None:
        """Training has come to `progress`, of `total_steps`; `loss` is the mean since the last call."""


SILENT = Reporter()

_SECONDS = 5.0
"""Between two lines of how far something is."""


def now_and_then(what: str, announce: Callable[[str], None]) -> Callable[[int, int], None]:
    """Says how far something is while it lasts. What it gives is told how many instances are done, and how many there are."""
    told = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done < total and time.monotonic() - told >= _SECONDS:
            told = time.monotonic()
            announce(f"{what}: {done:,} of {total:,} instances")

    return progress
