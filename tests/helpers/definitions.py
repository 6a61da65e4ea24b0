"""Definitions of tracks that a test makes up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench.tracks import load_track
from regbench.utils.errors import UserError


def assert_refused(task: str, parameters: Mapping[str, Any], message: str, main_score: str, folder: Path) -> None:
    """Checks that a track with these parameters of its task is refused in one line that matches `message`."""
    definition = {
        "name": "tiny-v1",
        "task": task,
        "parameters": dict(parameters),
        "splits": {"train": 2, "validation": 2, "test": 2, "seed": 0},
        "budget": {"train_tokens": 1},
        "main_score": main_score,
    }
    path = folder / "tiny-v1.yaml"
    path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    with pytest.raises(UserError, match=message) as said:
        load_track(str(path))
    assert "\n" not in str(said.value)
