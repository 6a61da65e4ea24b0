"""A quick run of a small mixer, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regbench

QUICK = {"d_model": 8, "training.batch_size": 8, "training.evaluations": 3}


@pytest.fixture
def go(tiny_file: Path, plugin: Path, tmp_path: Path) -> Callable[..., regbench.Result]:
    def call(out: str = "out", **changes: Any) -> regbench.Result:
        arguments = {"track": str(tiny_file), "arch": str(plugin), "settings": QUICK, "out": tmp_path / out} | changes
        return regbench.run(**arguments)

    return call
