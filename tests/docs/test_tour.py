"""The tour of examples/ runs as a script."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT

TOUR = ROOT / "examples" / "tour.py"


@pytest.mark.ci
def test_it_trains_a_mixer_of_its_own_and_draws(
    tmp_path: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.compile", lambda model, **_: model)
    arguments = ["--track", str(tiny_file), "--tokens", "600", "--picture", str(tmp_path / "tour.png")]
    monkeypatch.setattr(sys, "argv", [str(TOUR), "--", *arguments])
    runpy.run_path(str(TOUR), run_name="__main__")
    assert (tmp_path / "tour.png").stat().st_size > 10_000
    assert len(list((tmp_path / "runs" / "tiny-v1").glob("*/result.json"))) == 2
