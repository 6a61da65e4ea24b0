"""Every task makes the same bytes in another process: under another hash seed, on more threads, with another cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from regbench.tasks.base import Splits, Task
from regbench.utils import registry
from tests.data.text.conftest import write_corpus

SPLITS = Splits(train=60, validation=10, test=30, seed=0)
NAMES = ("train", "validation", "test")
MORE = {"pfa": Splits(train=300, validation=50, test=100, seed=0)}

MAKE = """
import json, sys
from regbench.tasks.base import Splits
from regbench.utils import registry

found = {}
for name, (parameters, splits) in json.loads(sys.argv[1]).items():
    cls = registry.load(registry.TASK, name)
    task = cls(cls.Parameters(**parameters))
    found[name] = [task.generate(Splits(**splits), split).fingerprint for split in ("train", "validation", "test")]
print(json.dumps(found))
"""


def fingerprints(task: Task, splits: Splits) -> list[str]:
    return [task.generate(splits, split).fingerprint for split in NAMES]


@pytest.mark.ci
def test_one_fingerprint_under_any_hash_seed_number_of_threads_and_cache(tmp_path: Path) -> None:
    """And another for another seed."""
    text = str(write_corpus(tmp_path / "texts", documents=30))
    options = {
        "text": {"source": text, "length": 64, "vocab_size": 400},
        "text_mixture": {"source": text, "length": 64, "min_cut": 16, "max_cut": 40, "vocab_size": 400},
    }
    tasks: dict[str, Task] = {}
    for name in registry.entries(registry.TASK):
        cls = registry.load(registry.TASK, name)
        tasks[name] = cls(cls.Parameters(**options.get(name, {})))
    splits = {name: MORE.get(name, SPLITS) for name in tasks}
    here = {name: fingerprints(task, splits[name]) for name, task in tasks.items()}
    for name, task in tasks.items():
        other = Splits(**asdict(splits[name]) | {"seed": 1})
        assert task.generate(other, "test").fingerprint not in here[name]

    asked = json.dumps({n: [t.parameters.model_dump(mode="json"), asdict(splits[n])] for n, t in tasks.items()})
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE, asked],
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads, "REGBENCH_CACHE": cache},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, threads, cache in (
            ("0", "1", str(tmp_path / "empty")),
            ("17", "3", os.environ["REGBENCH_CACHE"]),
            ("4", "2", "/dev/null/no-cache"),
        )
    ]
    for process in processes:
        assert json.loads(process.communicate(timeout=300)[0]) == here
