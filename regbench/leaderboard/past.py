"""Built-in architectures whose source has changed since an entry was made: the source of the entry's commit is run.

The whole of regbench as it was at the commit runs, in a process of its own. The commit must be in the history of this
repository: no other source is run here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regbench.data.instances import Instances
from regbench.evaluation.predictions import Predictions
from regbench.leaderboard.history import missing, tree_at
from regbench.leaderboard.job import CHILD, Job, predict_apart
from regbench.leaderboard.origin import is_todays
from regbench.results import ArchitectureRecord
from regbench.utils.errors import UserError
from regbench.utils.files import cache_root

# It ends with whoever runs it, however that ends: the input of the process is then at its end.
_COMMAND = """
import os, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(143)), daemon=True).start()
from regbench.cli import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Past:
    """This repository at a commit.

    Attributes:
        commit: The commit.
        tree: The folder with its packages.
    """

    commit: str
    tree: Path

    def predict(self, job: Job, weights: Sequence[bytes], asked: Sequence[Instances]) -> Iterator[Predictions]:
        """What a built-in architecture of then predicts: for each seed all that it is asked.

        Args:
            job: The architecture.
            weights: The checkpoint of each seed.
            asked: What the model of each seed is asked, one after the other.

        Raises:
            Refused: It cannot be built as it was then, or cannot take these weights.
        """
        yield from predict_apart(
            job,
            weights,
            asked,
            who=f"the source of commit {self.commit[:12]}",
            command=lambda folder: [sys.executable, str(folder / CHILD)],
            environment=self._environment(),
        )

    def command(self, arguments: list[str]) -> int:
        """Runs `regbench` as it was then, and returns its exit code. What it prints goes to standard error."""
        command = [sys.executable, "-P", "-c", _COMMAND, *arguments]
        with subprocess.Popen(command, env=self._environment(), stdin=subprocess.PIPE, stdout=2) as process:
            return process.wait()

    def _environment(self) -> dict[str, str]:
        """The cache is one of its own: what another version kept need not be of its form."""
        cache = cache_root() / "commits" / self.commit[:12]
        return {**os.environ, "PYTHONPATH": str(self.tree), "REGBENCH_CACHE": str(cache)}


@contextmanager
def past_of(record: ArchitectureRecord, commit: str | None) -> Iterator[Past | None]:
    """The repository at a commit. None where today's code of the architecture is that of the record.

    Args:
        record: A built-in architecture.
        commit: The commit that it was run from.

    Raises:
        UserError: The commit is not in the history here.
    """
    if is_todays(record, commit):
        yield None
    elif reason := missing(commit):
        raise UserError(f"{record.source} is not today's, and {reason}")
    else:
        with tree_at(str(commit)) as tree:
            yield Past(str(commit), tree)
