"""Shared by all tests: a cache of their own, a tiny track, and a way to call the command line.

PyTorch is imported by the fixtures: what starts the processes of `pytest -n` reads this file too, and needs none of it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from regbench.tracks import Track

TINY = {
    "name": "tiny-v1",
    "task": "pfa",
    "parameters": {
        "n_symbols": 4,
        "min_states": 3,
        "max_states": 4,
        "min_alphabet": 3,
        "max_alphabet": 4,
        "min_edges": 1,
        "max_edges": 2,
        "min_strings": 2,
        "max_strings": 3,
        "min_length": 1,
        "max_length": 8,
    },
    "splits": {"train": 60, "validation": 20, "test": 24, "seed": 3},
    "budget": {"train_tokens": 6000},
    "main_score": "legal_accuracy",
}


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from or left in the user's cache."""
    os.environ["REGBENCH_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _distributions_are_read_once() -> Iterator[None]:
    """Every look into the registry would read the entry points of all that is installed; here nothing is installed meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", functools.cache(importlib.metadata.entry_points))
        yield


PICTURES = ("plot_scores_by_position", "plot_training")


@pytest.fixture(scope="session", autouse=True)
def _pictures_are_named() -> Iterator[None]:
    """Runs in this process draw no pictures, which takes longer than a tiny training, unless they ask for `drawn`."""

    def name(_: object, path: Path, *__: object) -> None:
        path.write_bytes(b"\x89PNG")

    with pytest.MonkeyPatch.context() as patch:
        for picture in PICTURES:
            patch.setattr(f"regbench.report.page.{picture}", name)
        yield


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Runs within the block draw their pictures."""
    from regbench.report import pictures

    with pytest.MonkeyPatch.context() as patch:
        for picture in PICTURES:
            patch.setattr(f"regbench.report.page.{picture}", getattr(pictures, picture))
        yield


@pytest.fixture
def drawn() -> Iterator[None]:
    """Runs of this test draw their pictures."""
    with drawing():
        yield


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The YAML file of a track that trains in about a second."""
    path = tmp_path_factory.mktemp("track") / "tiny-v1.yaml"
    path.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny(tiny_file: Path) -> Track:
    from regbench.tracks import load_track

    return load_track(str(tiny_file))


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The file of a small mixer."""
    from tests.helpers.typed import AVERAGE

    path = tmp_path / "average.py"
    path.write_text(AVERAGE)
    return path


@pytest.fixture
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are typed there, into a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def regbench(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls the command line in a process of its own, in an empty folder."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "regbench", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "160", **environment},
            timeout=1800,
            check=False,
        )

    return call


MARKOV = {
    "name": "markov-text-v1",
    "task": str(Path(__file__).parent / "helpers" / "markov_text.py"),
    "parameters": {},
    "splits": {"train": 60, "validation": 16, "test": 20, "seed": 1},
    "budget": {"train_tokens": 3000},
    "main_score": "nll",
}


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The YAML file of a track whose task does not know its truth."""
    path = tmp_path_factory.mktemp("text-track") / "markov-text-v1.yaml"
    path.write_text(yaml.safe_dump(MARKOV), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def text_track(text_file: Path) -> Track:
    from regbench.tracks import load_track

    return load_track(str(text_file))


@pytest.fixture(scope="session")
def text_run(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of a tiny `cgt` on it."""
    from regbench import runner

    folder = tmp_path_factory.mktemp("text-run") / "run"
    settings = {"d_model": 8, "d_y": 4, "n_layers": 2, "n_heads": 2, "templates": 2, "rank": 2}
    training = {"training.train_tokens": 2000, "training.batch_size": 8, "training.evaluations": 2}
    with drawing():
        runner.run(str(text_file), "cgt", settings=settings | training, out=folder)
    return folder


TINY_CGT = {"d_model": 16, "d_y": 8, "n_heads": 2, "templates": 4, "rank": 2, "training.train_tokens": 3000}


@pytest.fixture(scope="session")
def run_folder(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of `cgt` with two seeds."""
    from regbench import runner

    folder = tmp_path_factory.mktemp("runs") / "cgt"
    runner.run(str(tiny_file), "cgt", seeds=(0, 4), settings=TINY_CGT, out=folder)
    return folder
