"""A small mixer in a file, and a quick run of it, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regbench

PLUGIN = """
import torch
import regbench


class Average(regbench.Mixer):
    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
"""
QUICK = {"d_model": 8, "training.batch_size": 8, "training.evaluations": 3}


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "average.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def go(tiny_file: Path, plugin: Path, tmp_path: Path) -> Callable[..., regbench.Result]:
    def call(out: str = "out", **changes: Any) -> regbench.Result:
        arguments = {"track": str(tiny_file), "arch": str(plugin), "settings": QUICK, "out": tmp_path / out} | changes
        return regbench.run(**arguments)

    return call
