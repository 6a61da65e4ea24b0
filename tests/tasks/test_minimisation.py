"""What minimising the drawn automata does to the prior: nothing to the strings; what dropping repeats does: next to nothing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from baselines.bayes import Bayes
from regbench.data.instances import Instances
from regbench.data.rng import between, stream
from regbench.tasks.automata import _canonical, _draw, sample_automata
from regbench.tasks.pfa import PFA, _sample_strings
from regbench.tracks import load_track
from tests.helpers.documents import ROOT

TABLE = (ROOT / "baselines" / "README.md").read_text(encoding="utf-8")


def draw(task: PFA, seed: int, place: int) -> tuple[NDArray[np.int8], int]:
    """Candidate `place` of the stream before it is minimised: (S, V), and how many of the states are its."""
    p = task.parameters
    rng = stream(seed, 1, place)
    table = np.empty((p.max_states, p.n_symbols), np.int8)
    n_states = between(rng, *p.range("states"))
    _draw(rng, p.n_symbols, n_states, between(rng, *p.range("alphabet")), *p.range("edges"), table)
    return table, int(n_states)


def reachable(table: NDArray[np.int8]) -> int:
    seen, waiting = {0}, [0]
    while waiting:
        for target in table[waiting.pop()].tolist():
            if target >= 0 and target not in seen:
                seen.add(target)
                waiting.append(target)
    return len(seen)


def merges(task: PFA, seed: int, count: int) -> list[int]:
    """The candidates two or more of whose reachable states are one after minimisation."""
    found = []
    for place in range(count):
        table, n_states = draw(task, seed, place)
        if _canonical(table, n_states, np.empty_like(table)) < reachable(table):
            found.append(place)
    return found


def instances(task: PFA, tables: NDArray[np.int8], places: list[int], seed: int) -> Instances:
    """Strings of these automata, from the streams that the benchmark would use."""
    p, io = task.parameters, task.io
    tokens = np.full((len(tables), io.max_length), io.separator, np.uint8)
    states, lengths = np.full(tokens.shape, -1, np.int8), np.empty(len(tables), np.int32)
    arguments = np.array(places), tables, p.range("strings"), p.range("length"), tokens, states, lengths
    _sample_strings(0, len(tables), seed, *arguments)
    scored = states >= 0
    scored[:, :1] = False
    return Instances(tokens, lengths, scored, "pfa/1", truth={"transitions": tables}, truth_at={"state": states})


def test_minimising_changes_no_string_no_truth_and_so_no_score() -> None:
    """Forty automata that minimisation does change: drawn and minimised, they give the same instances and distributions."""
    task = load_track("pfa-small-v1").task
    assert isinstance(task, PFA)
    places = merges(task, 0, 1500)[:40]
    assert len(places) == 40
    drawn = np.stack([draw(task, 0, place)[0] for place in places])
    minimal = np.empty_like(drawn)
    for i, place in enumerate(places):
        _canonical(drawn[i], draw(task, 0, place)[1], minimal[i])
        np.testing.assert_array_equal(
            minimal[i], sample_automata(0, place, 1, n_symbols=8, states=(4, 8), alphabet=(4, 8), edges=(1, 4))[0]
        )
    assert (drawn != minimal).any(axis=(1, 2)).all()
    before, after = instances(task, drawn, places, 0), instances(task, minimal, places, 0)
    assert before.fingerprint == after.fingerprint
    np.testing.assert_array_equal(task.truth(before), task.truth(after))
    # A predictor sees tokens alone; on few of them, that this one too says the same of the same.
    model = Bayes.defaults(task, before)[0]
    np.testing.assert_array_equal(model.predict(before.tokens[:2]), model.predict(after.tokens[:2]))


@pytest.mark.parametrize("name", ["pfa-small-v1", "pfa-v1", "pfa-reference-v1"])
def test_the_shares_told_are_those_of_the_track(name: str) -> None:
    """How many candidates the track's instances were drawn from, how many were repeats, and how many have states merged."""
    track = load_track(name)
    task = track.task
    assert isinstance(task, PFA)
    wanted = sum(track.definition.splits.size(split) for split in ("train", "validation", "test"))
    p = task.parameters
    ranges = {key: p.range(key) for key in ("states", "alphabet", "edges")}
    tables = sample_automata(0, 0, wanted + 200, n_symbols=p.n_symbols, **ranges)
    seen: set[bytes] = set()
    drawn = 0
    while len(seen) < wanted:
        seen.add(tables[drawn].tobytes())
        drawn += 1
    merged = len(merges(task, 0, drawn))
    repeats = drawn - wanted
    row = f"| {name} | {drawn:,} | {100 * merged / drawn:.1f} % | {repeats} ({100 * repeats / drawn:.1f} %) |"
    assert row in TABLE
