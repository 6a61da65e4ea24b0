"""The result schema: strict, whole, and read back as it was written."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest

from regbench.results import Result, read_result
from regbench.utils.errors import UserError
from regbench.utils.files import write_json

SCORE = {"value": 0.5, "stderr": 0.01}
CURVE = {"position": [1.0], "value": [0.5], "count": [3]}


def example(seeds: int = 1) -> dict[str, Any]:
    seed = {
        "seed": 0,
        "scores": {"tvd": SCORE},
        "share_of_the_way": {"tvd": 0.5},
        "curves": {"tvd": CURVE},
        "training_curve": [{"step": 1, "tokens": 10, "loss": {"cross_entropy": 1.0}, "validation_loss": 1.0}],
        "best_step": 1,
        "steps": 1,
        "tokens": 10,
        "seconds": 1.0,
        "tokens_per_second": 10.0,
        "peak_memory_bytes": 1,
        "predictions_sha256": "0" * 64,
    }
    return {
        "schema_version": 1,
        "track": {"name": "t-v1", "version": 1, "digest": "d", "main_score": "tvd", "fingerprints": {"test": "f"}},
        "architecture": {
            "name": "a",
            "source": "a.py",
            "source_sha256": "s",
            "options": {},
            "parameters": 1,
            "state_bytes": None,
        },
        "training": {},
        "seeds": [
            {**seed, "seed": i, "scores": {"tvd": {"value": 0.5 + 0.1 * i**2, "stderr": 0.01}}} for i in range(seeds)
        ],
        "baselines": {
            "b": {"scores": {"tvd": SCORE}, "curves": {"tvd": CURVE}, "options": {}, "seconds": 0.1, "anchor": None}
        },
        "selection": {"split": "validation", "trials": 1},
        "environment": {
            "python": "3.11",
            "platform": "x",
            "processor": "y",
            "device": "cpu",
            "threads": 2,
            "precision": "float32",
            "backend": {},
            "packages": {},
        },
        "code": {"commit": None, "dirty": None},
    }


def test_schema_version_comes_first_and_reading_gives_what_was_written(tmp_path: Path) -> None:
    result = Result.model_validate_json(json.dumps(example(3)))
    write_json(tmp_path / "result.json", result.model_dump(mode="json"))
    assert (tmp_path / "result.json").read_text().startswith('{\n "schema_version": 1')
    assert read_result(tmp_path) == result


def test_several_seeds_are_summed_up_by_their_mean_and_spread() -> None:
    one, three = (Result.model_validate_json(json.dumps(example(n))).score("tvd") for n in (1, 3))
    assert (one.value, one.stderr) == (0.5, 0.01)
    assert three.value == pytest.approx(2 / 3)
    assert three.stderr == pytest.approx(0.2082 / 3**0.5, abs=1e-4)


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        place: Any = content
        *parents, last = path.split(".")
        for key in parents:
            place = place[int(key)] if key.isdigit() else place[key]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("extra", 1), "unknown key 'extra'"),
        (put("seeds.0.extra", 1), "unknown key 'seeds.0.extra'"),
        (put("schema_version", 2), "schema_version"),
        (put("seeds", []), "seeds: list should have at least 1 item"),
        (put("seeds.0.seconds", float("nan")), "NaN or infinity"),
        (put("seeds.0.scores.tvd.value", float("inf")), "NaN or infinity"),
        (put("track.main_score", "mse"), "the main score 'mse' is none of the seed's scores"),
        (put("track.name", "../x.yaml"), "track.name: a track's name has small letters"),
        (put("track.fingerprints", {}), "the fingerprint of the test split is missing"),
        (put("seeds.0.curves", {}), "has not exactly the scores and curves of the others"),
        (put("seeds.0.curves.tvd.value", []), "a curve is empty, or its columns differ in length"),
        (put("seeds.0.training_curve.0.loss", {}), "a row of a training curve has no loss"),
        (put("seeds.0.scores.tvd.stderr", -0.1), "greater than or equal to 0"),
        (put("seeds.0.steps", "3"), "seeds.0.steps: input should be a valid integer"),
        (put("selection.split", "test"), "selection.split"),
        (lambda c: c.pop("track"), "'track' is missing"),
    ],
)
def test_what_is_not_of_the_schema_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = copy.deepcopy(example())
    change(content)
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        read_result(tmp_path)
    assert "\n" not in str(caught.value)


def test_nan_is_refused_when_writing_too() -> None:
    content = example()
    content["seeds"][0]["seconds"] = float("nan")
    with pytest.raises(pydantic.ValidationError, match="finite number"):
        Result(**content)


@pytest.mark.parametrize("text", ["", "{", "[]", "\udc80"])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match="x.json"):
        read_result(path)
    with pytest.raises(UserError, match="cannot read"):
        read_result(tmp_path / "nowhere.json")
