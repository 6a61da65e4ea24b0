"""What a result says of the precision, and of the implementations of the ops that trained and that scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import regbench
from regbench.results import read_result

PLUGIN = """
import torch
import regbench
from regbench.ops.backend import Implementation, Op

def half(x):
    CALLS.append(("half", x.dtype))
    return x.cumsum(1)

def plain(x):
    CALLS.append(("naive", x.dtype))
    return x.cumsum(1)

CALLS = []
OP = Op("summing", {
    "half": Implementation(f"{__name__}:half", ("cpu",), exact=(torch.bfloat16,)),
    "naive": Implementation(f"{__name__}:plain", ("cpu",)),
})

class Sums(regbench.Mixer):
    def __init__(self, options):
        super().__init__(options)
        self.linear = torch.nn.Linear(options.d_model, options.d_model)

    def forward(self, x):
        h = self.linear(x)
        return OP.choose("auto", h.device, h.dtype)(h)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from regbench.ops import backend

    monkeypatch.setattr(backend, "_ops", dict(backend.known_ops()))
    path = tmp_path / "sums.py"
    path.write_text(PLUGIN)
    return path


def run(plugin: Path, tiny_file: Path, **changes: Any) -> tuple[regbench.Result, dict[str, Any]]:
    settings = {"d_model": 8, "training.train_tokens": 2000} | changes.pop("settings", {})
    out = plugin.parent / "out"
    result = regbench.run(str(tiny_file), str(plugin), settings=settings, out=out, **changes)
    assert read_result(out) == result
    return result, json.loads((out / "result.json").read_text())["environment"]


def test_under_bfloat16_the_forms_that_trained_stand_beside_those_that_scored(plugin: Path, tiny_file: Path) -> None:
    result, written = run(plugin, tiny_file, settings={"training.precision": "bfloat16"})
    assert written["precision"] == "bfloat16"
    assert written["backend"] == {"summing": "naive"}
    assert written["training_backend"] == {"summing": "half"}
    page = (plugin.parent / "out" / "report.html").read_text()
    assert "backend in training" in page
    assert "summing: half" in page
    assert result.training["precision"] == "bfloat16"


def test_where_nothing_differs_nothing_more_is_written(plugin: Path, tiny_file: Path) -> None:
    _, written = run(plugin, tiny_file)
    assert written["precision"] == "float32"
    assert written["backend"] == {"summing": "naive"}
    assert "training_backend" not in written
    assert "backend in training" not in (plugin.parent / "out" / "report.html").read_text()


def test_a_form_asked_for_is_the_one_in_both(plugin: Path, tiny_file: Path) -> None:
    _, written = run(plugin, tiny_file, settings={"training.precision": "bfloat16"}, backend="half")
    assert written["backend"] == {"summing": "half"}
    assert "training_backend" not in written
