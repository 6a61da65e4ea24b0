"""What the pages say of entries that are level, ahead or behind is what the boards say, each board with all its pairs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from regbench.leaderboard.entry import Entry, sample_of
from regbench.leaderboard.rank import FULL, budget_share
from regbench.leaderboard.spread import prior_of
from regbench.leaderboard.store import stored_in
from regbench.leaderboard.tiers import read_evidence
from regbench.metrics.metric import METRICS
from regbench.metrics.significance import ahead, compare
from regbench.tracks import load_track
from tests.helpers.published import ENTRIES

DOCS = Path(__file__).resolve().parents[2] / "docs"
MEDIUM, BIGRAM, ARITHMETIC = "pfa-medium-v1", "bigram-small-v1", "arithmetic-small-v1"
CLAIMS = yaml.safe_load((Path(__file__).parent / "verdicts.yaml").read_text(encoding="utf-8"))


@cache
def board(track: str) -> tuple[list[str], NDArray[np.bool_]]:
    """The names of the ranked entries, and which are ahead of which."""
    found: list[Entry] = []
    for stored in stored_in(ENTRIES / track):
        if read_evidence(stored).tier != "claimed" and budget_share(stored.entry.result, load_track(track)) >= FULL:
            found.append(stored.entry)
    main = METRICS[found[0].metrics[0]]
    samples = [sample_of(entry.result.seeds, entry.instances, main.name) for entry in found]
    prior = prior_of(found[0].result.track.digest, main)
    counts = found[0].instances.counts_of(main.name)
    return [e.name for e in found], ahead(samples, counts, prior, higher_is_better=main.higher_is_better)


def relation(track: str, one: str, other: str) -> str:
    names, found = board(track)
    i, j = names.index(one), names.index(other)
    return "ahead" if found[i, j] else "behind" if found[j, i] else "level"


def says(page: str, words: str) -> bool:
    return words in " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())


@pytest.mark.ci
@pytest.mark.parametrize("track", sorted({claim["track"] for claim in CLAIMS}))
def test_statements_are_the_boards(track: str) -> None:
    for claim in CLAIMS:
        if claim["track"] != track:
            continue
        assert says(claim["page"], claim["words"]), claim["words"]
        if "level" in claim:
            pairs, what = list(itertools.combinations(claim["level"], 2)), "level"
        else:
            pairs, what = list(itertools.product(claim["of"], claim["others"])), claim["is"]
        assert {pair: relation(track, *pair) for pair in pairs} == dict.fromkeys(pairs, what), claim["words"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("words", "track", "expected", "got", "p"),
    [
        ("Heads give GLA 0.066 ± 0.003", MEDIUM, "gla+n_layers-4+learning_rate-0.0005", "gla+n_layers-4+ngh-1-2-3", ""),
        ("RetNet 0.061 ± 0.003", MEDIUM, "retnet+n_layers-4", "retnet+n_layers-4+ngh-1-2-3", ""),
        (
            "The transformer has 0.018 ± 0.007 more (p = 0.07)",
            MEDIUM,
            "mamba+n_layers-4",
            "transformer+n_layers-4+mimetic",
            "0.07",
        ),
        ("the LSTM 0.041 ± 0.007 less (p = 0.008)", MEDIUM, "lstm+n_layers-4", "mamba+n_layers-4", "0.008"),
        (
            "has 0.838, 0.056 ± 0.003 less",
            MEDIUM,
            "transformer+n_layers-4+positions-rotary",
            "transformer+n_layers-4+mimetic",
            "",
        ),
        ("It is 0.031 ± 0.003 nats behind DeltaNet", BIGRAM, "mlstm+n_heads-1", "deltanet+n_heads-1", ""),
        (
            "has 0.022 ± 0.004 nats more than DeltaNet (p = 0.009)",
            BIGRAM,
            "fast_slow+learning_rate-0.0025",
            "deltanet+n_heads-1",
            "0.009",
        ),
        ("They are level with each other (p = 0.02)", ARITHMETIC, "lstm", "rwkv", "0.02"),
    ],
)
def test_figures_of_a_pair_are_those_of_compare(words: str, track: str, expected: str, got: str, p: str) -> None:
    assert says("results", words)
    found = {stored.entry.name: stored.entry for stored in stored_in(ENTRIES / track)}
    pair: Sequence[Entry] = (found[expected], found[got])
    main = METRICS[pair[0].metrics[0]]
    samples = [sample_of(entry.result.seeds, entry.instances, main.name) for entry in pair]
    prior, counts = prior_of(pair[0].result.track.digest, main), pair[0].instances.counts_of(main.name)
    change = compare(*samples, counts, prior, higher_is_better=main.higher_is_better)
    figures = re.search(r"(\d\.\d+) ± (\d\.\d+)", words)
    if figures:
        assert (f"{change.change:.3f}", f"{change.noise:.3f}") == figures.groups()
    assert not p or f"{change.p:.{len(p) - 2}f}" == p
