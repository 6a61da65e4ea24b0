"""What one run walks through. A reader of the code follows this path, so it may not grow unseen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from regbench import run

FILES, FUNCTIONS = 45, 343
"""The most that a run with a warm cache may go through; the aim is 45 and 300."""

ENGINE = str(Path(sys.modules["regbench"].__file__ or "").parent)


def walked(job: Callable[[], Any]) -> set[tuple[str, str]]:
    """The files and the functions of the engine that a job calls. Lambdas and comprehensions stand in their functions."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ENGINE) and not code.co_name.startswith("<"):
            found.add((code.co_filename, code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.ci
def test_a_run_goes_through_few_files_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two cores, so that steps are divided."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def job(name: str) -> None:
        run("pfa-small-v1", "mamba", settings={"training.train_tokens": 20_000}, out=tmp_path / name)

    job("first")  # baselines, instances and kernels are kept from here on
    found = walked(lambda: job("second"))
    files = {file for file, _ in found}
    assert len(files) <= FILES, sorted(files)
    assert len(found) <= FUNCTIONS, sorted(found)
