"""What the pages say of entries that are level, ahead or behind is what the boards say, each board with all its pairs."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from regbench.leaderboard.entry import Entry, sample_of
from regbench.leaderboard.spread import prior_of
from regbench.leaderboard.standing import FULL, budget_share
from regbench.leaderboard.store import stored_in
from regbench.leaderboard.tiers import read_evidence
from regbench.metrics.significance import ahead
from regbench.tracks import load_track
from tests.helpers.documents import ROOT
from tests.helpers.published import ENTRIES

DOCS = ROOT / "docs"
CLAIMS = yaml.safe_load((Path(__file__).parent / "verdicts.yaml").read_text(encoding="utf-8"))


@cache
def board(track: str) -> tuple[list[str], NDArray[np.bool_]]:
    """The names of the ranked entries, and which are ahead of which."""
    found: list[Entry] = []
    for stored in stored_in(ENTRIES / track):
        if read_evidence(stored).tier != "claimed" and budget_share(stored.entry.result, load_track(track)) >= FULL:
            found.append(stored.entry)
    main = load_track(track).metrics[found[0].metrics[0]]
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
