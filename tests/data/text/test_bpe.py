"""The encoding: lossless, as the library alone would do it, the same in any order and any process, with readable names."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
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
print(BPE.train((d.text for d in Files(Path(sys.argv[1])).documents()), 400).text)
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
def test_no_text_is_lost(text: str) -> None:
    bpe = trained()
    (tokens,) = bpe.encode([text])
    assert bpe.decode(tokens.tolist()) == text


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
    (tokens,) = bpe.encode(["banana"])
    assert [bpe.names[token] for token in tokens] == ["b", "an", "an", "a"]


def test_a_small_text_has_no_more_tokens_than_it_has_pairs() -> None:
    assert BPE.train(["ab ab"], 5000).size == 257  # "ab" comes twice; " ab" once, which is worth no token
    assert BPE.train([], 5000).size == 256


@pytest.mark.ci
def test_the_vocabulary_does_not_depend_on_the_order_or_the_process(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "texts")
    texts = [document.text for document in Files(folder).documents()]
    digest = BPE.train(texts, 400).text
    for seed in range(3):
        random.Random(seed).shuffle(texts)
        assert BPE.train(texts, 400).text == digest
    for hash_seed, parallel in (("1", "true"), ("2", "false")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TOKENIZERS_PARALLELISM": parallel}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST, str(folder)], capture_output=True, text=True, env=environment, check=True
        )
        assert done.stdout.strip() == digest
    assert BPE.train(texts[:-1], 400).text != digest


def test_it_comes_back_from_its_text(bpe: BPE) -> None:
    again = BPE(bpe.text)
    assert again.text == bpe.text
    assert again.names == bpe.names


def test_names_are_readable_and_each_is_one_tokens(bpe: BPE) -> None:
    assert len(set(bpe.names)) == bpe.size
    assert {"a", "Ġ", "Ċ", "ĉ", "Ġother"} <= set(bpe.names)
    assert all(name.isprintable() and not any(c.isspace() for c in name) for name in bpe.names)
