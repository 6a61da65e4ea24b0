"""A corpus: splits that share nothing, an encoding learned from one of them, and a cache that is never stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbench.data.text.bpe import BPE
from regbench.data.text.corpus import SPLITS, Corpus, read_index
from regbench.data.text.sources import Document, Files, StandardLibrary
from regbench.utils.errors import UserError

from .conftest import write_corpus

TOKENISE = """
import sys
from pathlib import Path
from regbench.data.text.corpus import Corpus
from regbench.data.text.sources import Files
corpus = Corpus(Files(Path(sys.argv[1])), 400)
print(corpus.digest, corpus.packed.tokens.sum())
"""


def test_every_document_is_in_one_split(folder: Path) -> None:
    index = read_index(Files(folder))[0]
    assert len(index) == 48
    assert index.topics == ("garden", "harbour", "kitchen", "orbit")
    masks = np.array([index.of_split(split) for split in SPLITS])
    np.testing.assert_array_equal(masks.sum(0), 1)
    assert masks.sum(1).tolist() == [44, 2, 2]
    assert len(np.unique(index.identity, axis=0)) == 48
    for i, document in enumerate(Files(folder).documents()):
        assert (index.names[i], index.topics[index.topic[i]]) == (document.name, document.topic)


def test_shares_are_90_5_and_5_percent_by_hash(tmp_path: Path) -> None:
    """By nothing but each text: under other names, in another order, the same texts are held out."""

    def held_out(names: Sequence[str]) -> dict[str, list[str]]:
        class Source:
            name = "made up"

            def documents(self) -> Any:
                return (Document(name, "t", f"text {name[::-1]}") for name in names)

        index = read_index(Source())[0]
        return {split: sorted(np.array(index.names)[index.of_split(split)].tolist()) for split in SPLITS}

    names = [f"{i:03d}" for i in range(200)]
    found = held_out(names)
    assert [len(found[split]) for split in SPLITS] == [180, 10, 10]
    assert held_out(names[::-1]) == found
    assert found["test"] != names[:10]


def test_the_same_text_twice_is_one_document(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "texts"
    shutil.copytree(folder, copy)
    shutil.copytree(folder / "orbit", copy / "zzz")
    (copy / "zzz" / "own.txt").write_text("a text of its own")
    index, texts = read_index(Files(copy))
    assert len(index) == 49
    assert [name for name in index.names if name.startswith("zzz")] == ["zzz/own.txt"]
    given = {document.name: document.text for document in Files(copy).documents()}
    assert texts == [given[name] for name in index.names]


def test_what_repeats_others_is_left_out(tmp_path: Path) -> None:
    """By the share of it in lines that stand in documents before it; short lines, and its own repeated, count for nothing."""
    lines = [f"line number {i} of a text that is long enough" for i in range(60)]
    kept = {
        "a": lines[:20],
        "b": [*lines[20:38], lines[0], *["else:"] * 50],  # one of nineteen
        "c": ["else:"] * 80 + lines[38:39] * 40,
        "d": lines[40:58],
    }
    left_out = {"ab": [*lines[:3], *lines[41:58]], "bc": lines[20:30], "z": [lines[57], *lines[58:60]]}
    for name, text in (kept | left_out).items():
        (tmp_path / f"{name}.txt").write_text("\n".join(text))
    for i in range(3):
        (tmp_path / f"own{i}.txt").write_text(f"own {i}")
    # `ab` repeats `a`; had it been taken, `d` would repeat it in turn.
    names = [name.removesuffix(".txt") for name in read_index(Files(tmp_path))[0].names]
    assert [name for name in names if not name.startswith("own")] == sorted(kept)


@pytest.mark.parametrize(
    "text",
    [
        lambda i: " ".join(f"Sentence {j} of the text {i} is long enough." for j in range(30)),  # one line
        lambda i: "".join(f"第{i}篇文章里面的第{j}个句子在这里。" for j in range(30)),  # one line, without spaces
        lambda i: "\n".join(f"第{i}篇里的第{j}行在这里" for j in range(30)),  # lines of fewer than 20 characters
    ],
)
def test_nearly_equal_documents_are_left_out_in_any_script(tmp_path: Path, text: Callable[[int], str]) -> None:
    """Two of each that differ in their last word alone."""
    for i in range(6):
        for end in ("one", "other"):
            (tmp_path / f"{i}-{end}.txt").write_text(f"{text(i)} {end}", encoding="utf-8")
    assert read_index(Files(tmp_path))[0].names == tuple(f"{i}-one.txt" for i in range(6))


def test_what_a_later_document_quotes_whole_is_left_out(tmp_path: Path) -> None:
    """The long one stays: it may quote a licence, as all its neighbours do."""
    for i in range(6):
        (tmp_path / f"a{i}.txt").write_text("\n".join(f"line number {j} of the short document {i}" for j in range(5)))
        own = [f"line number {j} of the long document {i}" for j in range(60)]
        (tmp_path / f"b{i}.txt").write_text(
            "\n".join([*own, *(f"line number {j} of the short document {i}" for j in range(i))])
        )
    names = read_index(Files(tmp_path))[0].names
    assert [name for name in names if name.startswith("a")] == [f"a{i}.txt" for i in range(5)]
    assert [name for name in names if name.startswith("b")] == [f"b{i}.txt" for i in range(6)]


@pytest.mark.ci
def test_no_excerpt_of_the_librarys_test_documents_was_trained_on() -> None:
    """Windows of 300 characters; where documents were left out for being equal alone, 12 % stood in training documents."""
    index, texts = read_index(StandardLibrary())
    test, train = ([texts[d] for d in np.flatnonzero(index.of_split(name))] for name in ("test", "train"))
    everything, rng = "\0".join(train), np.random.default_rng(0)
    long = [text for text in test if len(text) > 1600]
    found = 0
    for _ in range(200):
        text = long[rng.integers(len(long))]
        start = int(rng.integers(len(text) - 300))
        found += text[start : start + 300] in everything
    assert found <= 2, found


def test_too_few_documents_are_refused(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.txt").write_text(str(i))
    with pytest.raises(
        UserError, match="holds 5 different documents, but train, validation and test splits need 6"
    ) as caught:
        read_index(Files(tmp_path))
    assert "\n" not in str(caught.value)
    (tmp_path / "5.txt").write_text("5")
    assert [int(read_index(Files(tmp_path))[0].of_split(split).sum()) for split in SPLITS] == [2, 2, 2]
    (tmp_path / "6.txt").write_text("6")
    assert len(read_index(Files(tmp_path), limit=6)[0]) == 6


def test_the_encoding_is_learned_from_training_documents_alone(folder: Path, tmp_path: Path, own_cache: Path) -> None:
    corpus = Corpus(Files(folder), 400)
    index, texts = read_index(Files(folder))
    train = [texts[d] for d in np.flatnonzero(index.of_split("train"))]
    assert corpus.bpe.text == BPE.train(train, 400).text
    copy = tmp_path / "texts"  # a word that only held-out documents have gets no token
    shutil.copytree(folder, copy)
    for number in range(200):
        (copy / "orbit" / f"x{number}.txt").write_text(f"{'zyzzyva ' * 200}{number}")
    other = Corpus(Files(copy), 400)
    rows = other.index.of_split("train")
    rows[[i for i, name in enumerate(other.index.names) if "/x" in name]] = False
    texts = read_index(Files(copy))[1]
    without = BPE.train([texts[d] for d in np.flatnonzero(rows)], 400)
    assert "zyzzyva" in "".join(other.bpe.names)
    assert "zyzzyva" not in "".join(without.names)


def test_packed_tokens_are_the_documents(folder: Path, own_cache: Path) -> None:
    corpus = Corpus(Files(folder), 400)
    packed = corpus.packed
    for i, document in enumerate(Files(folder).documents()):
        assert corpus.bpe.decode(packed.tokens[packed.starts[i] : packed.starts[i + 1]]) == document.text
    assert corpus.frequencies.sum() == np.diff(packed.starts)[corpus.index.of_split("train")].sum()
    assert [path.name for path in (own_cache / "text").iterdir()] == [f"{corpus.digest}.npz"]


def test_what_is_kept_is_used_and_mended(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Corpus(Files(folder), 400)
    tokens = first.packed.tokens
    trained = []
    train = BPE.train.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(BPE, "train", classmethod(lambda cls, *a: trained.append(1) or train(cls, *a)))
    np.testing.assert_array_equal(Corpus(Files(folder), 400).packed.tokens, tokens)
    assert trained == []
    path = own_cache / "text" / f"{first.digest}.npz"
    content = bytearray(path.read_bytes())
    content[content.index(tokens.tobytes()[:64])] ^= 1
    path.write_bytes(content)
    np.testing.assert_array_equal(Corpus(Files(folder), 400).packed.tokens, tokens)
    np.testing.assert_array_equal(Corpus(Files(folder), 400).packed.tokens, tokens)
    assert trained == [1]


def test_the_tokens_of_another_text_are_not_taken(folder: Path, own_cache: Path) -> None:
    small, large = Corpus(Files(folder), 300), Corpus(Files(folder), 400)
    tokens = large.packed.tokens
    assert small.packed.tokens.size != tokens.size
    (own_cache / "text" / f"{small.digest}.npz").replace(own_cache / "text" / f"{large.digest}.npz")
    np.testing.assert_array_equal(Corpus(Files(folder), 400).packed.tokens, tokens)


def test_other_text_has_another_digest(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_corpus(tmp_path / "texts")
    digests = [Corpus(Files(folder), 400).digest, Corpus(Files(folder), 401).digest]
    path = folder / "orbit" / "03.txt"
    stamp, text = path.stat().st_mtime_ns, path.read_text()
    path.write_text(text.replace("b", "d", 1))  # as long as it was
    os.utime(path, ns=(stamp, stamp))  # and as old
    digests.append(Corpus(Files(folder), 400).digest)
    path.rename(folder / "garden" / "99.txt")  # the same text under another topic
    digests.append(Corpus(Files(folder), 400).digest)
    monkeypatch.setattr("regbench.data.text.corpus.version", lambda _: "99")  # another version of the library
    digests.append(Corpus(Files(folder), 400).digest)
    assert len(set(digests)) == 5


def test_another_python_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    from regbench.data.text.sources import StandardLibrary

    monkeypatch.setattr(
        StandardLibrary, "documents", lambda self: (Document(str(i), "t", f"same text {i}") for i in range(9))
    )
    here = read_index(StandardLibrary())[0].digest
    assert read_index(StandardLibrary())[0].digest == here
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    assert read_index(StandardLibrary())[0].digest != here


def test_two_processes_at_once_agree(folder: Path, own_cache: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", TOKENISE, str(folder)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = {process.communicate(timeout=120)[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    (line,) = said
    corpus = Corpus(Files(folder), 400)
    assert line.split() == [corpus.digest, str(corpus.packed.tokens.sum())]
