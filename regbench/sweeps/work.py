"""One piece of a sweep's work, as any process does it: a function of a job and a folder, the same for every engine."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from regbench.config import Config
from regbench.tracks import load_track
from regbench.training.progress import Progress, Reporter
from regbench.utils import registry
from regbench.utils.errors import Unavailable, UserError, blame
from regbench.utils.files import exclusive, remove_leftovers

Action = Literal["train", "score", "finish"]

PATIENCE = 20.0
"""Seconds that are waited for a folder which a process of a killed sweep still holds: it may live a moment longer."""

_OF_THE_MACHINE = ("cuda", "cublas", "cudnn", "nccl", "can't start new thread", "allocate memory", "out of memory")
"""Words in the messages of RuntimeErrors that say what the machine lacks."""

_EVERY = 0.5
"""Seconds between two notes of how far a training is."""


@dataclass(frozen=True)
class Job:
    action: Action
    """"train" a seed and stop before the test split; train it and "score" it on the test split; "finish" a run whose seeds are
    all scored.
    """
    folder: str
    """A seed's folder, or a run's."""
    config: Config
    seed: int | None
    """Which seed; none of a run."""
    label: str
    size: int = 0
    """How much training it is beside other jobs: in tokens. 0: nothing is trained, so it counts as no cell."""
    source: str | None = None
    """Digest of the architecture's code that was planned with; None: whatever it is now."""
    track: list[str | None] | None = None
    """`Track.sources` of the track that was planned with; None: whatever they are now."""

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "config": self.config.model_dump(mode="json")}

    @classmethod
    def read(cls, content: dict[str, Any]) -> Self:
        return cls(**{**content, "config": Config(**content["config"])})


@dataclass(frozen=True)
class Note:
    text: str
    share: float = 0.0
    """Of its training that is done, 0 to 1."""


@dataclass(frozen=True)
class Ended:
    message: str | None = None
    """Why it failed, in one line; None where it did not."""
    refused: bool = False
    """Whether the configuration is to blame; see `regbench.sweeps.state.Failure`."""


Event = Note | Ended


class Engine(Protocol):
    """Where jobs are done: a pool of processes here, or Ray."""

    def free(self) -> int:
        """How many jobs could begin at once now."""

    def submit(self, job: Job) -> None:
        """Begins a job."""

    def wait(self, seconds: float) -> list[tuple[Job, Event]]:
        """What has happened since the last call; waits so long for something to happen."""

    def close(self) -> None:
        """Ends all that still runs; what is half done can be resumed."""


class Telling(Reporter):
    """A reporter of a run that tells an engine, now and then."""

    def __init__(self, tell: Callable[[Note], None]) -> None:
        self._tell, self._last = tell, 0.0

    def phase(self, text: str) -> None:
        self._tell(Note(text))

    def trained(self, progress: Progress, total_steps: int, loss: float, tokens_per_second: float) -> None:
        if (now := time.monotonic()) - self._last >= _EVERY:
            self._last = now
            text = f"training  loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
            self._tell(Note(text, progress.step / total_steps))


def do(job: Job, folder: Path, tell: Callable[[Note], None]) -> Ended:
    """Does a job in a folder; never raises but for what ends the process."""
    from regbench import runner

    reporter = Telling(tell)
    try:
        if changed := _changed(job):
            return Ended(changed)
        if job.seed is None:
            runner.resume(folder, reporter)
        else:
            with exclusive(folder, patience=PATIENCE):
                remove_leftovers(folder)
                (folder / "failed.json").unlink(missing_ok=True)
                (runner.train_seed if job.action == "train" else runner.score_seed)(
                    job.config, job.seed, folder, reporter
                )
    except UserError as error:
        return Ended(str(error), refused=not _is_of_the_machine(error))
    except Exception as error:
        traceback.print_exc()
        return Ended(blame(error))
    return Ended()


def _changed(job: Job) -> str | None:
    """Why a job is no longer what was planned, in one line; None where it is."""
    architecture, track = job.config.architecture, job.config.track
    try:
        if job.track is not None and job.track != load_track(track).sources:
            what = f"the track {track}"
        elif job.source is not None and job.source != registry.source_digest(
            registry.load(registry.ARCHITECTURE, architecture)
        ):
            what = f"the code of {architecture}"
        else:
            return None
    except UserError as error:  # it could be loaded then
        return str(error)
    return f"{what} has changed since the sweep was started: start it again"


def _is_of_the_machine(error: BaseException) -> bool:
    """Whether the machine or a file is behind a failure, as a full disk is: another time the configuration may train."""
    import torch

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Unavailable | OSError | MemoryError | torch.OutOfMemoryError | torch.AcceleratorError):
            return True
        if isinstance(cause, RuntimeError) and any(words in str(cause).lower() for words in _OF_THE_MACHINE):
            return True
        cause = cause.__cause__
    return False
