"""Text made tokens: tokens a second of encoding, beside the library alone, and of a corpus read back from its shards."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from regbench.data.text.bpe import BPE
from regbench.data.text.corpus import Corpus
from regbench.data.text.sources import StandardLibrary


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [document.text for document in StandardLibrary().documents()][::4]


@pytest.fixture(scope="module")
def bpe(texts: list[str]) -> BPE:
    return BPE.train(texts, 7999)


def test_encoding(benchmark: Any, texts: list[str], bpe: BPE, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the standard library in 8,000 tokens, one thread, nothing remembered at first; then by the library alone."""
    encoded = benchmark.pedantic(lambda bpe: bpe.encode(texts), setup=lambda: ((BPE(bpe.text),), {}), rounds=3)
    tokens = sum(map(len, encoded))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        alone = [one.ids for one in bpe._tokenizer.encode_batch_fast(texts)]
        times.append(time.perf_counter() - begun)
    assert [one.tolist() for one in encoded] == alone
    benchmark.extra_info["tokens/s"] = round(tokens / benchmark.stats.stats.min)
    benchmark.extra_info["times the library alone"] = round(min(times) / benchmark.stats.stats.min, 2)


def test_training(benchmark: Any, texts: list[str]) -> None:
    """A vocabulary of 8,000 from a quarter of the standard library, one thread."""
    bpe = benchmark.pedantic(BPE.train, args=(texts, 7999), rounds=2)
    assert bpe.size == 7999
    benchmark.extra_info["characters/s"] = round(sum(map(len, texts)) / benchmark.stats.stats.min)


def test_a_corpus_from_its_shards(benchmark: Any) -> None:
    """What a second run pays: the source read and its digest taken, encoding and tokens read and checked."""
    made = Corpus(StandardLibrary(), 7999).packed
    packed = benchmark.pedantic(lambda: Corpus(StandardLibrary(), 7999).packed, rounds=3)
    assert packed.made == 0
    np.testing.assert_array_equal(packed.tokens, made.tokens)
    benchmark.extra_info["tokens/s"] = round(len(packed.tokens) / benchmark.stats.stats.min)
