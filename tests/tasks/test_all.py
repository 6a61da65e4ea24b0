"""What holds of every task: the same bytes in another process, splits that do not move, parameters that are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from regbench.tasks.base import Splits, Task
from regbench.tracks import load_track
from regbench.utils import registry
from regbench.utils.errors import UserError
from tests.data.text.conftest import write_corpus

SPLITS = Splits(train=60, validation=10, test=30, seed=0)
NAMES = ("train", "validation", "test")
TASKS = tuple(registry.entries(registry.TASK))

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


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """Each with its defaults, but for the text, which is ours, and small."""
    text = {"source": str(write_corpus(tmp_path_factory.mktemp("corpus") / "texts", documents=30)), "vocab_size": 400}
    options = {
        "classification": {**text, "n_exemplars": 5, "excerpt": 8, "n_queries": 6, "n_label_tokens": 20},
        "text": {**text, "length": 64},
        "text_mixture": {**text, "length": 64, "min_cut": 16, "max_cut": 40},
    }
    made = {}
    for name in TASKS:
        cls = registry.load(registry.TASK, name)
        made[name] = cls(cls.Parameters(**options.get(name, {})))
    return made


@pytest.mark.parametrize("name", TASKS)
def test_other_splits_stay_when_training_grows(tasks: dict[str, Task], name: str) -> None:
    """And the instances of the smaller training split are the first of the larger one; for another seed all are others."""
    task, larger = tasks[name], Splits(train=90, validation=10, test=30, seed=0)
    for split in ("validation", "test"):
        same = task.generate(SPLITS, split)
        assert task.generate(larger, split).fingerprint == same.fingerprint
        assert task.generate(Splits(60, 10, 30, seed=1), split).fingerprint != same.fingerprint
    small, large = (task.generate(splits, "train").tokens for splits in (SPLITS, larger))
    np.testing.assert_array_equal(large[:60, : small.shape[1]], small)


@pytest.mark.ci
def test_one_fingerprint_under_any_hash_seed_number_of_threads_and_cache(
    tasks: dict[str, Task], tmp_path: Path
) -> None:
    splits = dict.fromkeys(tasks, SPLITS) | {"pfa": Splits(train=300, validation=50, test=100, seed=0)}
    here = {name: [task.generate(splits[name], split).fingerprint for split in NAMES] for name, task in tasks.items()}
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


SCALE = {"ceiling": [0.9] * 6}
CUTS = {"length": 64, "min_cut": 16, "max_cut": 40}
WRONG: dict[str, list[tuple[Mapping[str, Any], str]]] = {
    "arithmetic": [
        ({"min_a": 10.0}, r"min_a \(10\) is not below max_a \(10\)"),
        ({"max_b": -9.5}, r"min_b \(-9\) is not below max_b \(-9.5\)"),
        ({"max_a": 91.0}, "coefficients that add up to 101 give answers of more than n_digits"),
        ({"n_examples": 1}, "greater than or equal to 2"),
        ({"max_a": float("inf")}, "finite"),
    ],
    "associative_recall": [
        ({"n_pairs": 0}, "greater than or equal to 1"),
        ({"n_keys": 4097}, "less than or equal to 4096"),
        ({"keys": 3}, "keys"),
    ],
    "bigram": [
        ({"predict": "output"}, "'all' or 'outputs'"),
        ({"n_symbols": 6}, r"n_triggers \(5\) leaves fewer than two outputs among n_symbols \(6\)"),
        ({"triggers": "fixed", "first_trigger": 60}, r"first_trigger \(60\) is above 59"),
        ({"first_trigger": 1}, r"first_trigger \(1\) is above 0, the last place of random triggers"),
        ({"n_symbols": 94}, "less than or equal to 93"),
    ],
    "copying": [
        ({"sizes": [4, 4]}, "sizes and then beyond must ascend: 4, 4"),
        ({"sizes": [4], "beyond": [3]}, "must ascend: 4, 3"),
        ({"sizes": [4, 8], "shares": [1]}, "there are 2 sizes and 1 shares"),
        ({"sizes": []}, "at least 1 item"),
    ],
    "linear_regression": [
        ({"d_x": 0}, "greater than or equal to 1"),
        ({"noise": 1e7}, "less than or equal to 1000000"),
        ({"noise": float("nan")}, "finite"),
    ],
    "long_automata": [
        (SCALE | {"floor": [0.5]}, "must have a number for each of the 6 sizes"),
        (SCALE | {"floor": [1.0] * 6}, "below its ceiling"),
    ],
    "modular_arithmetic": [
        ({"sizes": [1, 2], "brackets": True}, "the smallest size is 2"),
        ({"shares": [1] * 4}, "there are no shares"),
    ],
    "mqar": [
        ({"vocabulary": 20, "n_pairs": 10}, r"n_pairs \(10\) is larger than the 9 keys of a vocabulary of 20"),
        ({"n_pairs": 64, "length": 254}, r"length \(254\) is too short: 64 pairs and 64 queries take 256"),
        ({"length": 511}, "multiple of 2"),
        ({"power": 0}, "greater than 0"),
        ({"pairs": 3}, "did you mean 'n_pairs'"),
    ],
    "pfa": [
        ({"max_states": 3}, r"min_states \(4\) is above max_states \(3\)"),
        ({"max_alphabet": 19}, "above n_symbols"),
        ({"min_edges": 4}, "is more than the other states"),
        ({"max_edges": 10**23}, "less than or equal to 126"),
        ({"max_length": 10**11}, "come to 2,000,000,000,019 tokens; the most is 1,048,576"),
        ({"max_strings": 10**11}, "come to 5,099,999,999,999 tokens"),
    ],
    "recall": [
        ({"n_keys": 9}, r"n_keys \(9\) is larger than key_tokens \(8\)"),
        ({"noise_percent": 20}, r"noise_percent \(20\) and noise_tokens \(0\) must both be 0 or both be larger"),
        ({"noise_tokens": 2}, "must both be 0"),
        ({"longest_key": 3, "longest_value": 3, "length": 11}, "too short: two of the longest pairs take 12"),
        ({"one_map": True, "length": 17}, r"length \(17\) is too long: with one_map no key occurs twice"),
        ({"noise": 2}, "unknown key 'noise'"),
    ],
    "recall_pairs": [({"n_keys": 64}, "192 pairs need as many keys; n_keys is 64")],
    "selective_copying": [
        ({"n_copied": 16, "length": 32}, r"length \(32\) is too short: 16 symbols and their copy take 33"),
        ({"n_copies": 3}, "did you mean 'n_copied'"),
        ({"places": "end"}, "'anywhere' or 'before_symbols'"),
    ],
    "state_tracking": [
        ({"groups": ["parity", "s6"]}, "unknown group 's6'; known: parity, z3 to z64, s3, s4, s5, a4"),
        ({"groups": ["party"]}, "unknown group 'party'; did you mean 'parity'"),
        ({"groups": ["a5-swap"]}, "unknown group 'a5-swap'; did you mean 's5-swaps'"),
        ({"groups": []}, "at least 1 item"),
        ({"groups": ["s3", "s3"]}, "a group is given twice: s3, s3"),
        ({"length": 64, "test_length": 64}, r"test_length \(64\) must be larger than length \(64\)"),
    ],
    "state_walk": [
        ({"groups": ["s33"]}, "unknown group 's33'"),
        ({"groups": ["s3", "s3"]}, "a group is given twice: s3, s3"),
        ({"shares": [1] * 6}, "there are no shares"),
    ],
    "text_mixture": [
        (CUTS | {"min_cut": 41}, r"min_cut \(41\) is above max_cut \(40\)"),
        (CUTS | {"max_cut": 64}, r"max_cut \(64\) must be below length \(64\)"),
        (CUTS | {"excerpts": 3}, "max_cut is about two excerpts; with three the switches are near a third"),
        (CUTS | {"vocab_size": 256}, "greater than or equal to 257"),
        (CUTS | {"config": "en"}, "config is for datasets of the Hugging Face Hub, not for 'stdlib'"),
        (CUTS | {"source": "gone.jsonl", "split": "test"}, "split is for datasets of the Hugging Face Hub"),
        (CUTS | {"topic_field": "x"}, r"topic_field is for documents that are rows \(.jsonl, .parquet, datasets\)"),
        (CUTS | {"source": "a.MD", "text_field": "x"}, "text_field is for documents that are rows"),
        (CUTS | {"source": "~no-such-user/x"}, "source '~no-such-user/x': .*home"),
    ],
}


@pytest.mark.parametrize(
    ("name", "fields", "message"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_impossible_parameters_are_refused_in_one_line(
    name: str, fields: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    definition = {
        "name": "tiny-v1",
        "task": name,
        "parameters": dict(fields),
        "splits": {"train": 2, "validation": 2, "test": 2, "seed": 0},
        "budget": {"train_tokens": 1},
        "main_score": "nll",
    }
    path = tmp_path / "tiny-v1.yaml"
    path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    with pytest.raises(UserError, match=message) as said:
        load_track(str(path))
    assert "\n" not in str(said.value)
