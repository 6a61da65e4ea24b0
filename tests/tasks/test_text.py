"""The task `text`: windows that are of one document, splits that share none, and what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbench.data.instances import Instances
from regbench.metrics.scores import score
from regbench.tasks.base import Splits
from regbench.tasks.text import Text, TextParameters
from regbench.tracks import load_track
from regbench.utils.errors import UserError
from tests.data.text.conftest import write_corpus
from tests.tasks.conftest import write_text_track

SPLITS = Splits(train=300, validation=40, test=80, seed=0)
NAMES = ("train", "validation", "test")
SMALL: dict[str, Any] = {"length": 64, "vocab_size": 400}


@pytest.fixture(scope="module")
def task(folder: Path) -> Text:
    return Text(TextParameters(source=str(folder), **SMALL))


@pytest.fixture(scope="module")
def made(task: Text) -> dict[str, Instances]:
    return {split: task.generate(SPLITS, split) for split in NAMES}


def test_each_instance_is_a_window_of_its_document(folder: Path, task: Text, made: dict[str, Instances]) -> None:
    for split, instances in made.items():
        assert instances.tokens.shape == (SPLITS.size(split), 64)
        assert instances.scored.all()
        for row in range(0, len(instances), 7):
            number = int(instances.truth["document"][row])
            name = task.corpus.index.names[number]
            windows = np.lib.stride_tricks.sliding_window_view(task.encode((folder / name).read_text()), 64)
            assert (windows == instances.tokens[row]).all(-1).any()
            assert task.topic_names[instances.truth["topic"][row]] == name.split("/")[0]


def test_errors_are_over_documents(task: Text, made: dict[str, Instances]) -> None:
    """Predictions that are good or bad for a whole document: the error is that of the documents' means, by hand."""
    test = made["test"]
    _, document = np.unique(test.truth["document"], return_inverse=True)
    n = int(document.max()) + 1
    sure = np.random.default_rng(0).uniform(0.1, 0.9, n)[document]
    given = np.repeat((1 - sure)[:, None, None] / 399, 64, axis=1).repeat(400, axis=2)
    np.put_along_axis(given, test.tokens[:, :, None].astype(np.int64), sure[:, None, None], axis=2)
    found = score(task, test, [given])
    counts, sums = 64 * np.bincount(document), 64 * np.bincount(document, -np.log(sure))
    mean = sums.sum() / counts.sum()
    error = np.sqrt(n / (n - 1) * ((sums - mean * counts) ** 2).sum()) / counts.sum()
    assert found["nll"].value == pytest.approx(mean)
    assert found["nll"].stderr == pytest.approx(error)
    assert score(task, test, [given], apart=True)["nll"].stderr < 0.75 * error


@pytest.mark.parametrize("source", ["texts", "./texts", "../own/texts"])
def test_a_relative_source_is_seen_from_the_tracks_folder(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a task that is a file. From where the track is loaded is not in the identity of the text."""
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    write_corpus(own / "texts", documents=6)
    write_corpus(elsewhere / "texts", documents=7)
    path, found = write_text_track(own / "own-v1.yaml", "text", {"source": source, **SMALL}), []
    for here, name in ((own, "own-v1.yaml"), (tmp_path, "own/own-v1.yaml"), (elsewhere, str(path))):
        monkeypatch.chdir(here)
        track = load_track(name)
        found.append((track.task.source_name(), track.task.source_digest(), track.instances("test").fingerprint))
    assert len(set(found)) == 1
    assert found[0][0] == str(Path(source))
    monkeypatch.chdir(own)
    task = Text(TextParameters(source=source, **SMALL))
    assert task.source_digest() == found[0][1], "of parameters without a track, from the current folder"


def test_a_source_in_the_home_folder_is_called_alike_in_every_home(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for home in ("a", "b"):
        (tmp_path / home).mkdir()
        (tmp_path / home / "texts").symlink_to(folder)
        monkeypatch.setenv("HOME", str(tmp_path / home))
        names.append(Text(TextParameters(source="~/texts"))._source().name)
    assert names == ["~/texts", "~/texts"]


def test_a_relative_source_that_is_missing_is_said_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    write_corpus(tmp_path / "texts", documents=6)
    monkeypatch.chdir(tmp_path)
    for source, message in (
        ("./gone", "^no such file or folder: own/gone$"),
        ("texts", "^no such file or folder: own/texts; a relative source is seen from the track's folder$"),
    ):
        write_text_track(tmp_path / "own" / "own-v1.yaml", "text", {"source": source, **SMALL})
        with pytest.raises(UserError, match=message):
            load_track("own/own-v1.yaml").instances("test")
    write_text_track(tmp_path / "own" / "own-v1.yaml", "text", {"source": "someone/news", **SMALL})
    assert load_track("own/own-v1.yaml").task.corpus.source.dataset == "someone/news"  # type: ignore[attr-defined]


def test_too_long_a_window(folder: Path) -> None:
    task = Text(TextParameters(source=str(folder), length=60_000, vocab_size=400))
    for split, needed in (("train", "one is"), ("test", "two are")):
        message = f"have 60000 tokens or more, but {needed} needed: take more text, or shorter instances$"
        with pytest.raises(UserError, match=message):
            task.generate(SPLITS, split)
    with pytest.raises(UserError, match="text: the true distributions are unknown"):
        task.truth(None)  # type: ignore[arg-type]


def test_show_names_the_document(task: Text, made: dict[str, Instances]) -> None:
    topic = task.topic_names[made["test"].truth["topic"][3]]
    assert task.show(made["test"], 3).startswith(f"topic {topic}, document {topic}/")


def test_its_fingerprint_is_frozen(made: dict[str, Instances]) -> None:
    """Of the tests' own text, which is the same everywhere."""
    assert {split: instances.fingerprint[:16] for split, instances in made.items()} == {
        "train": "d72193f971e0ff94",
        "validation": "04a27f2cc862f961",
        "test": "7c5abd2d793dd954",
    }


@pytest.mark.ci
def test_the_built_in_tracks() -> None:
    small, paper = load_track("text-small-v1"), load_track("text-v1")
    assert (small.task.io.vocab_size, small.task.parameters.length, small.task.parameters.source) == (
        1000,
        256,
        "stdlib",
    )
    assert (paper.task.parameters.vocab_size, paper.task.parameters.length) == (8000, 1024)
    assert small.definition.splits.train * 256 == small.definition.budget.train_tokens
