"""The task `text_mixture`: excerpts that are of their documents, cuts, splits, and the same bytes for the same text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbench import cli
from regbench.data.instances import Instances
from regbench.metrics.metric import METRICS
from regbench.tasks.base import Splits
from regbench.tasks.text_mixture import TextMixture, TextMixtureParameters
from regbench.tracks import load_track
from regbench.tracks.track import frozen_tracks
from regbench.utils.errors import UserError
from tests.data.text.conftest import TOPICS, write_corpus
from tests.tasks.conftest import write_text_track

SPLITS = Splits(train=300, validation=40, test=80, seed=0)
NAMES = ("train", "validation", "test")
SMALL: dict[str, Any] = {"length": 64, "min_cut": 16, "max_cut": 40, "vocab_size": 400}
MADE = "c007541f0f91e0da7f36e0de7defb35f0124fbf0dbc3e2f609fd838336eacc8b"
"""The fingerprint of two excerpts before there could be three."""
FEW = frozenset({"asyncio", "email", "html", "http", "json", "logging", "pydoc_data"})  # of the library


@pytest.fixture(scope="module")
def task(folder: Path) -> TextMixture:
    return TextMixture(TextMixtureParameters(source=str(folder), **SMALL))


@pytest.fixture(scope="module")
def made(task: TextMixture) -> dict[str, Instances]:
    return {split: task.generate(SPLITS, split) for split in NAMES}


def document_text(folder: Path, task: TextMixture, number: int) -> str:
    return (folder / task.corpus.index.names[number]).read_text()


def test_each_excerpt_is_a_window_of_its_document(folder: Path, task: TextMixture, made: dict[str, Instances]) -> None:
    for split, instances in made.items():
        assert instances.tokens.shape == (SPLITS.size(split), 64)
        assert instances.tokens.max() < task.io.separator
        for row in range(len(instances)):
            cut = int(instances.truth["cut"][row])
            for place, tokens in enumerate((instances.tokens[row, :cut], instances.tokens[row, cut:])):
                number = int(instances.truth["document"][row, place])
                whole = task.encode(document_text(folder, task, number))
                windows = np.lib.stride_tricks.sliding_window_view(whole, len(tokens))
                assert (windows == tokens).all(-1).any()
                topic = task.topic_names[instances.truth["topic"][row, place]]
                assert topic == task.corpus.index.names[number].split("/")[0]
                assert task.decode(tokens.astype(np.int64)) in document_text(folder, task, number)


def test_the_two_are_of_different_topics(made: dict[str, Instances]) -> None:
    for instances in made.values():
        topic, document = instances.truth["topic"], instances.truth["document"]
        assert (topic[:, 0] != topic[:, 1]).all()
        assert (document[:, 0] != document[:, 1]).all()
    assert len(np.unique(made["train"].truth["topic"])) == len(TOPICS)


def test_with_one_topic_the_two_are_different_documents(folder: Path) -> None:
    task = TextMixture(TextMixtureParameters(source=str(folder / "orbit"), **SMALL | {"vocab_size": 300}))
    path = folder / "orbit"
    assert len(task.topic_names) == len(list(path.glob("*.txt")))  # no subfolder: each file is a topic
    rows = [json.dumps({"text": file.read_text()}) for file in sorted(path.glob("*.txt"))]
    (folder.parent / "orbit.jsonl").write_text("\n".join(rows))
    task = TextMixture(TextMixtureParameters(source=str(folder.parent / "orbit.jsonl"), **SMALL | {"vocab_size": 300}))
    assert task.topic_names == ("orbit",)
    for split in NAMES:
        document = task.generate(SPLITS, split).truth["document"]
        assert (document[:, 0] != document[:, 1]).all()


def test_cuts_documents_and_windows_are_uniform(task: TextMixture) -> None:
    instances = task.generate(Splits(train=6000, validation=1, test=1, seed=1), "train")
    cut, document = instances.truth["cut"], instances.truth["document"]
    counts = np.bincount(cut)
    assert counts[:16].sum() == 0
    assert len(counts) == 41
    np.testing.assert_allclose(counts[16:] / 6000, 1 / 25, atol=5 * np.sqrt(1 / 25 / 6000))
    share = 1 / int(task.corpus.index.of_split("train").sum())
    found = np.bincount(document[:, 0], minlength=len(task.corpus.index))[task.corpus.index.of_split("train")]
    np.testing.assert_allclose(found / 6000, share, atol=5 * np.sqrt(share / 6000))
    packed = task.corpus.packed
    first = instances.tokens[:, 0].astype(int)
    one = int(np.bincount(document[:, 0]).argmax())
    whole = packed.tokens[packed.starts[one] : packed.starts[one + 1]]
    expected = np.bincount(whole, minlength=400) / len(whole)
    seen = np.bincount(first[document[:, 0] == one], minlength=400) / (document[:, 0] == one).sum()
    assert np.abs(seen - expected).sum() < 0.9  # total variation of about 50 draws from 60 words is below 0.45


def test_progress_groups_and_what_is_scored(task: TextMixture, made: dict[str, Instances]) -> None:
    instances = made["test"]
    progress, behind = task.progress(instances), task.groups(instances)["behind_cut"]
    for row, cut in enumerate(instances.truth["cut"].tolist()):
        assert progress[row].tolist() == [-1] * cut + list(range(64 - cut))
        assert behind[row].tolist() == [False] * cut + [True] * (64 - cut)
    assert instances.scored.all()
    assert (instances.lengths == 64).all()
    assert not task.knows_truth
    with pytest.raises(UserError, match="the true distributions are unknown"):
        task.truth(instances)
    for name in task.scores:
        metric = task.group_scores.get(name, (name, ""))[0]
        assert metric in METRICS


def test_three_excerpts(folder: Path, made: dict[str, Instances]) -> None:
    three = TextMixture(TextMixtureParameters(source=str(folder), length=64, vocab_size=400, excerpts=3))
    instances = three.generate(Splits(train=3, validation=3, test=400, seed=0), "test")
    truth, packed = instances.truth, three.corpus.packed
    for cut, middle in ((truth["cut"], 64 // 3), (truth["second_cut"], 2 * 64 // 3)):
        assert np.unique(cut).tolist() == list(range(middle - 8, middle + 9))
    assert truth["topic"].shape == truth["document"].shape == (400, 3)
    assert (truth["topic"][:, 1:] != truth["topic"][:, :-1]).all()
    assert (truth["topic"][:, 0] == truth["topic"][:, 2]).any()
    for row in range(20):
        cuts = [int(truth[name][row]) for name in ("cut", "second_cut")]
        for place, tokens in enumerate(np.split(instances.tokens[row], cuts)):
            number = int(truth["document"][row, place])
            whole = packed.tokens[packed.starts[number] : packed.starts[number + 1]]
            assert (np.lib.stride_tricks.sliding_window_view(whole, len(tokens)) == tokens).all(-1).any()
        expected = [*[-1] * cuts[0], *range(cuts[1] - cuts[0]), *range(64 - cuts[1])]
        assert three.progress(instances)[row].tolist() == expected
    assert three.show(instances, 0).count("\n\nexcerpt ") == 2
    assert made["test"].fingerprint == MADE


def test_io_names_every_token(task: TextMixture, tmp_path: Path) -> None:
    io = task.io
    assert (io.vocab_size, io.separator, io.max_length, len(io.names)) == (400, 399, 64, 400)
    assert io.names[-1] == "<separator>"
    for i in range(10):
        (tmp_path / f"{i}.txt").write_text(f"{i} few words")
    few = TextMixture(TextMixtureParameters(source=str(tmp_path), **SMALL))
    assert len(few.io.names) == len(set(few.io.names)) == 400
    assert few.io.names[-2] == "<unused-398>"
    assert few.decode(np.array([399, 398, *few.encode("few"), 398])) == "few"


def test_statistics_say_what_they_mean(folder: Path, task: TextMixture, made: dict[str, Instances]) -> None:
    said, instances = task.statistics(made["test"]), made["test"]
    assert said["tokens"] == said["scored_tokens"] == 80 * 64
    assert said["mean_cut"] == instances.truth["cut"].mean()
    assert said["documents"] == len(np.unique(instances.truth["document"]))
    texts = [task.decode(row.astype(np.int64)) for row in instances.tokens]
    assert said["characters_a_token"] == pytest.approx(sum(map(len, texts)) / said["tokens"])
    counts = np.ones(399)
    for number in np.flatnonzero(task.corpus.index.of_split("train")):
        np.add.at(counts, task.encode(document_text(folder, task, int(number))), 1)
    nats = -np.log(counts / counts.sum())
    assert said["unigram_nats"] == pytest.approx(nats[instances.tokens.astype(int)].mean())


def test_documents_too_short_are_left_out_and_too_few_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    rows = [{"text": file.read_text()} for file in sorted(folder.rglob("*.txt"))]
    short = [{"text": f"short {i}"} for i in range(100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows + short))
    task = TextMixture(TextMixtureParameters(source=str(path), **SMALL))
    used = np.unique(task.generate(SPLITS, "train").truth["document"])
    assert used.max() < len(rows)
    assert np.diff(task.corpus.packed.starts)[used].min() >= 48
    longer = TextMixtureParameters(source=str(path), length=2048, min_cut=1024, max_cut=1536, vocab_size=400)
    with pytest.raises(UserError, match=r"0 of the 11 documents for test have 1536 tokens or more") as caught:
        TextMixture(longer).generate(SPLITS, "test")
    assert "\n" not in str(caught.value)


def test_a_source_is_what_it_looks_like(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def source(name: str, **more: Any) -> Any:
        return TextMixture(TextMixtureParameters(source=name, **SMALL, **more)).corpus.source

    assert type(source("stdlib")).__name__ == "StandardLibrary"
    assert source(str(folder)).path == folder
    monkeypatch.chdir(folder.parent)
    assert source("texts").path == Path("texts")
    assert source("gone.parquet", text_field="body").text_field == "body"
    c4 = source("c4")
    assert (c4.dataset, c4.config, c4.split, c4.limit) == ("allenai/c4", "en", "train", 100_000)
    wikipedia = source("wikipedia", config="20231101.de", topic_field="title", max_documents=50)
    assert (wikipedia.dataset, wikipedia.config, wikipedia.limit) == ("wikimedia/wikipedia", "20231101.de", 50)
    assert source("someone/news").dataset == "someone/news"


def test_what_cannot_be_printed_cannot_reach_the_terminal(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text(f"\x1b[31mred [bold]{i}\x0c " * 40)
    task = TextMixture(TextMixtureParameters(source=str(tmp_path), **SMALL))
    shown = task.show(task.generate(SPLITS, "test"), 0)
    assert "\x1b" not in shown
    assert "\x0c" not in shown
    assert "[bold]" in shown


def test_show_names_the_topics_and_where_the_second_begins(task: TextMixture, made: dict[str, Instances]) -> None:
    lines = task.show(made["test"], 3).splitlines()
    cut, topic = int(made["test"].truth["cut"][3]), made["test"].truth["topic"][3]
    first, second = (task.topic_names[number] for number in topic)
    assert lines[0].startswith(f"excerpt 1: topic {first}, document {first}/")
    (begin,) = (line for line in lines if line.startswith(f"excerpt 2: topic {second}, document"))
    assert begin.endswith(f"from token {cut} on")


def test_an_edited_file_is_never_served_from_the_cache(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "texts", documents=6)
    path = write_text_track(tmp_path / "own-v1.yaml", "text_mixture", {"source": str(folder), **SMALL})
    before = load_track(str(path)).instances("train")
    assert load_track(str(path)).instances("train").fingerprint == before.fingerprint
    for file in folder.rglob("*.txt"):
        file.write_text(file.read_text().replace("the", "hte"))
    after = load_track(str(path)).instances("train")
    assert after.fingerprint != before.fingerprint
    assert "hte" in load_track(str(path)).task.decode(after.tokens.ravel().astype(np.int64))  # type: ignore[attr-defined]


def test_the_built_in_tracks_are_the_papers_and_a_small_one() -> None:
    """Made without reading any text, and frozen for no one."""
    paper, small = load_track("text-mixture-v1"), load_track("text-mixture-small-v1")
    assert paper.task.parameters == TextMixtureParameters()
    for track in (paper, small):
        assert track.frozen is None
        assert track.name not in frozen_tracks()
        assert "corpus" not in vars(track.task) or "index" not in vars(track.task.corpus)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "modules", [pytest.param(FEW, marks=pytest.mark.ci), pytest.param(sys.stdlib_module_names, marks=pytest.mark.slow)]
)
def test_data_says_with_which_python(
    modules: frozenset[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small track of the standard library, from its source to an instance drawn."""
    monkeypatch.setattr(sys, "stdlib_module_names", modules)
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["data", "text-mixture-small-v1"]) == 0
    said = capsys.readouterr()
    assert f"text: the standard library of Python {sys.version.split()[0]}" in said.out
    for text in ("unigram nats", "characters a token", "train and test 0", "excerpt 2: topic"):
        assert text in said.out
    assert said.err == ""
    assert cli.main(["ls", "tracks"]) == 0
    assert "text-mixture-small-v1" in capsys.readouterr().out
