"""The instances of a task as another process makes them: under another hash seed, on another number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

from regbench.tasks.base import Splits, Task

_MAKE = """
import importlib, json, sys
from regbench.utils import threads
from regbench.tasks.base import Splits

threads.available = lambda: int(sys.argv[1])
module, name, parameters, splits = json.loads(sys.argv[2])
cls = getattr(importlib.import_module(module), name)
task = cls(cls.Parameters(**parameters))
print(*(task.generate(Splits(**splits), split).fingerprint for split in ("train", "validation", "test")))
"""


def assert_same_elsewhere(task: Task, splits: Splits) -> None:
    """One fingerprint a split, whatever the hash seed and the threads; and another for another seed."""
    here = [task.generate(splits, split).fingerprint for split in ("train", "validation", "test")]
    cls = type(task)
    what = json.dumps([cls.__module__, cls.__name__, task.parameters.model_dump(mode="json"), asdict(splits)])
    for threads, hash_seed in ((1, 0), (3, 17)):
        done = subprocess.run(
            [sys.executable, "-c", _MAKE, str(threads), what],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert done.stdout.split() == here
    other = Splits(splits.train, splits.validation, splits.test, splits.seed + 1)
    assert task.generate(other, "test").fingerprint not in here
