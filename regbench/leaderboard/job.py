"""Predictions that are made in a process of its own: what the process is given, how it runs, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from regbench.data.instances import Instances
from regbench.evaluation.predictions import Predictions, expected_arrays
from regbench.models.predictor import rows_at_once
from regbench.tasks.base import Task
from regbench.utils.folder import Folder
from regbench.utils.guard import Refused

SECONDS = 3600
"""The longest that a process may take."""

CHILD = "child.py"
_STRANGER = "stranger.py"
_LAST_WORDS = 2000


@dataclass(frozen=True)
class Job:
    """What a process of its own predicts with.

    Attributes:
        architecture: The name of a built-in architecture. Of a stranger's file the class in it, or "" for the only one.
        options: The architecture's options.
        task: The task of the instances.
        source: The stranger's file. None of a built-in architecture.
    """

    architecture: str
    options: Mapping[str, Any]
    task: Task
    source: bytes | None = None


def fill(folder: Path, job: Job, weights: Sequence[bytes], asked: Sequence[Instances]) -> None:
    """Writes into a new folder what the process needs: its program, the options, the weights, the tokens and their lengths.

    Args:
        folder: The folder.
        job: The architecture.
        weights: The checkpoint of each seed.
        asked: What the model of each seed is asked, one after the other.
    """
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("job_child.py"), folder / CHILD)
    name, io = job.architecture, job.task.io
    if job.source is not None:
        (folder / _STRANGER).write_bytes(job.source)
        name = f"{_STRANGER}:{name}" if name else _STRANGER
    for seed, content in enumerate(weights):
        (folder / f"weights-{seed}.safetensors").write_bytes(content)
    for place, instances in enumerate(asked):
        np.savez(folder / f"in-{place}.npz", tokens=instances.tokens, lengths=instances.lengths)
    description = {
        "architecture": name,
        "of_a_file": job.source is not None,
        "options": job.options,
        # The source of an old commit knows no field that came later. Those are None for every task that was there then.
        "io": {"kind": io.kind, **{name: value for name, value in asdict(io).items() if value is not None}},
        "seeds": len(weights),
        "at_once": [rows_at_once(io, instances.tokens.shape[1], 64) for instances in asked],
    }
    (folder / "job.json").write_text(json.dumps(description))


def predict_apart(
    job: Job,
    weights: Sequence[bytes],
    asked: Sequence[Instances],
    *,
    who: str,
    command: Callable[[Path], list[str]],
    environment: Mapping[str, str],
    limit: Callable[[], None] | None = None,
) -> Iterator[Predictions]:
    """What the architecture predicts in a process of its own: for each seed all that it is asked.

    Args:
        job: The architecture.
        weights: The checkpoint of each seed.
        asked: What the model of each seed is asked, one after the other. The process gets their tokens and lengths alone.
        who: Whose code runs, for messages.
        command: Makes the command that runs `CHILD` from the job's folder. It may add to the folder, and put more beside it.
        environment: That of the process.
        limit: Is called in the process before it begins.

    Raises:
        Refused: The process failed, took more than `SECONDS`, or left no predictions for these instances.
    """
    with tempfile.TemporaryDirectory(prefix="regbench-job-") as name:
        folder = Path(name) / "job"
        fill(folder, job, weights, asked)
        with open(Path(name) / "log", "w+b") as log:  # where the process cannot put something else in its place
            try:
                done = subprocess.run(
                    command(folder),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    preexec_fn=limit,
                    timeout=SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise Refused(f"{who} took more than {SECONDS} s") from None
            except subprocess.SubprocessError:
                raise Refused(f"{who} could not be kept within its limits, and was not run") from None
            if done.returncode != 0:
                raise Refused(f"{who} failed: {_last_line(log)}")
        for seed in range(len(weights)):  # each file is read when it is its turn
            for place, instances in enumerate(asked):
                try:
                    arrays = Folder(folder).arrays(f"out-{seed}-{place}.npz", expected_arrays(job.task, instances))
                except Refused as error:
                    raise Refused(f"{who} left no predictions: {error}") from None
                found = Predictions.from_arrays({**arrays, "lengths": instances.lengths})
                if found.fault is not None:
                    raise Refused(f"{who} left no predictions: {found.fault}")
                yield found


def _last_line(log: IO[bytes]) -> str:
    """The last line that a process wrote into a file, without what is not printable."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS))
    said = log.read(_LAST_WORDS).decode("utf-8", "replace").strip().splitlines() or ["no output"]
    return "".join(character if character.isprintable() else "?" for character in said[-1])[:300]
