"""The encoding: lossless, as the library alone would do it, the same in any order and any process, with readable names."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regbench.data.text.bpe import BPE
from regbench.data.text.sources import Files

from .conftest import write_corpus

TEXT = 'def höhe(self):\n    """Says it.\r\n\tOr not."""\n    return self.x\u00a0+ 1  # it\'s 10 €, 中文\x1c!\n' * 5

DIGEST = """
import sys
from pathlib import Path
from regbench.data.text.bpe import BPE
from regbench.data.text.sources import Files
print(BPE.train((d.text for d in Files(Path(sys.argv[1])).documents()), 400).digest)
"""


@pytest.fixture(scope="module")
def bpe() -> BPE:
    return BPE.train([TEXT, "the other thing, and the rest of the other thing\n" * 4], 320)


@lru_cache(maxsize=1)
def trained() -> BPE:
    return BPE.train([TEXT], 300)


@pytest.mark.ci
@given(
    st.text(
        alphabet=st.one_of(
            st.sampled_from("ab1!' \n\t\r\x0b\x1c\x85\xa0\u2028\u3000é中s"), st.characters(codec="utf-8")
        )
    )
)
@settings(max_examples=300, deadline=None)
def test_cutting_at_white_space_changes_nothing(text: str) -> None:
    bpe = trained()
    tokens = bpe.encode([text])[0]
    assert tokens.tolist() == bpe._tokenizer.encode(text).ids
    assert bpe.decode(tokens) == text
    assert int(bpe.characters[tokens].sum()) == len(text)


def test_tokens_are_the_smallest_type_and_within_the_size(bpe: BPE) -> None:
    (tokens,) = bpe.encode([TEXT])
    assert bpe.size == 320
    assert tokens.dtype == np.uint16
    assert tokens.max() < bpe.size
    assert len(tokens) < len(TEXT) / 1.5
    assert [len(one) for one in bpe.encode(["", "a"])] == [0, 1]


def test_merges_are_of_the_most_frequent_pairs() -> None:
    """One merge beyond the bytes, by hand: in these words no pair is as frequent as "an" (Sennrich et al., Algorithm 1)."""
    text = "banana bandana cabana anna"
    pairs = Counter(pair for word in text.split() for pair in pairwise(word))
    assert pairs.most_common(1)[0] == (("a", "n"), 6)
    bpe = BPE.train([text], 257)
    assert bpe.token_bytes[256] == b"an"
    assert bpe.decode(bpe.encode(["banana"])[0]) == "banana"
    assert [bpe.token_bytes[token] for token in bpe.encode(["banana"])[0]] == [b"b", b"an", b"an", b"a"]


def test_a_small_text_has_no_more_tokens_than_it_has_pairs() -> None:
    assert BPE.train(["ab ab"], 5000).size == 257  # "ab" comes twice; " ab" once, which is worth no token
    assert BPE.train([], 5000).size == 256


@pytest.mark.ci
def test_the_vocabulary_does_not_depend_on_the_order_or_the_process(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "texts")
    texts = [document.text for document in Files(folder).documents()]
    digest = BPE.train(texts, 400).digest
    for seed in range(3):
        random.Random(seed).shuffle(texts)
        assert BPE.train(texts, 400).digest == digest
    for hash_seed, parallel in (("1", "true"), ("2", "false")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TOKENIZERS_PARALLELISM": parallel}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST, str(folder)], capture_output=True, text=True, env=environment, check=True
        )
        assert done.stdout.strip() == digest
    assert BPE.train(texts[:-1], 400).digest != digest


def test_it_comes_back_from_its_text(bpe: BPE) -> None:
    again = BPE(bpe.text)
    assert again.digest == bpe.digest
    assert again.names == bpe.names
    for damaged in ("", "{}", bpe.text[:-20]):
        with pytest.raises(ValueError, match="."):
            BPE(damaged)


def test_names_are_readable_and_each_is_one_tokens(bpe: BPE) -> None:
    by_bytes = dict(zip(bpe.token_bytes, bpe.names, strict=True))
    assert len(set(bpe.names)) == bpe.size
    assert by_bytes[b"a"] == "a"
    assert by_bytes[b" "] == "Ġ"
    assert by_bytes[b"\n"] == "Ċ"
    assert by_bytes[b"\t"] == "ĉ"
    assert by_bytes[b"\xe2"] == "\\xe2"
    assert by_bytes[b"\x00"] == "\\x00"
    assert by_bytes[b" other"] == "Ġother"
    assert all(name.isprintable() and not any(c.isspace() for c in name) for name in bpe.names)


def test_the_library_runs_in_one_thread_and_the_callers_setting_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def texts() -> Iterator[str]:
        seen.append(os.environ["TOKENIZERS_PARALLELISM"])
        yield TEXT

    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    BPE.train(texts(), 260)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    BPE.train(texts(), 260).encode([TEXT])
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    assert seen == ["false", "false"]


def test_what_is_remembered_is_bounded(bpe: BPE, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbench.data.text.bpe._MOST_KNOWN", 100)
    first = bpe.encode([TEXT])[0]
    for begin in range(0, 1000, 50):
        bpe.encode([" ".join(map(str, range(begin, begin + 50)))])
        assert len(bpe._known) <= 100 + 50
    np.testing.assert_array_equal(bpe.encode([TEXT])[0], first)


def test_long_pieces_are_not_remembered(bpe: BPE) -> None:
    """As of scripts that write no spaces: they hardly ever come again, and would fill the memory."""
    text = "".join(map(str, range(500)))
    (tokens,) = bpe.encode([text])
    assert bpe.decode(tokens.tolist()) == text
    assert max(map(len, bpe._known), default=0) <= 32
    np.testing.assert_array_equal(bpe.encode([f"{text} and {text}"])[0][: len(tokens)], tokens)
