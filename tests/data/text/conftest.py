"""A small corpus: four topics with words of their own, twelve documents each."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

TOPICS = {
    "kitchen": "flour butter oven knead simmer salt bowl whisk",
    "harbour": "anchor crane tide rope hull pilot buoy keel",
    "garden": "spade compost seed prune hedge mulch bloom root",
    "orbit": "thrust apogee burn stage drag probe vector node",
}


def write_corpus(folder: Path, documents: int = 12, words: int = 300) -> Path:
    """Files <topic>/<number>.txt of random words, the same every time."""
    rng = random.Random(0)
    for topic, vocabulary in TOPICS.items():
        (folder / topic).mkdir(parents=True)
        for number in range(documents):
            chosen = rng.choices([*vocabulary.split(), "and", "the", "with"], k=words)
            (folder / topic / f"{number:02d}.txt").write_text(" ".join(chosen) + ".\n")
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is empty."""
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
