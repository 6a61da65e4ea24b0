"""Sampling, minimisation and canonical form of automata (ICLL section 3.1)."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.tasks.automata import _canonical, sample_automata

PAPER = {"n_symbols": 18, "states": (4, 12), "alphabet": (4, 18), "edges": (1, 4)}


def language(table: np.ndarray, depth: int, start: int = 0) -> set[tuple[int, ...]]:
    """Every string of up to `depth` symbols that the automaton allows."""
    found, frontier = set(), [((), start)]
    for _ in range(depth):
        grown = []
        for word, state in frontier:
            for symbol in np.flatnonzero(table[state] >= 0):
                grown.append(((*word, int(symbol)), int(table[state, symbol])))
        found |= {word for word, _ in grown}
        frontier = grown
    return found


def relabelled(table: np.ndarray, order: list[int]) -> np.ndarray:
    """The same automaton with state i called order[i]; the start must stay 0."""
    out = np.full_like(table, -1)
    for i, row in enumerate(table):
        out[order[i]] = [order[t] if t >= 0 else -1 for t in row]
    return out


def canonical(table: np.ndarray) -> np.ndarray:
    out = np.empty_like(table)
    return out[: _canonical(table, len(table), out)]


def test_minimal_automaton_has_the_same_language_and_no_two_equivalent_states() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, v = rng.integers(2, 6), rng.integers(1, 4)
        table = rng.integers(-1, n, size=(n, v)).astype(np.int8)
        table[np.arange(n), rng.integers(v, size=n)] = rng.integers(n, size=n)  # every state goes on
        minimal = canonical(table)
        assert language(minimal, 6) == language(table, 6)
        futures = {frozenset(language(minimal, 5, state)) for state in range(len(minimal))}
        assert len(futures) == len(minimal), "a depth of as many symbols as states tells any two apart (Moore's bound)"


def test_canonical_form_does_not_depend_on_the_names_of_states() -> None:
    rng = np.random.default_rng(1)
    for table in sample_automata(3, 0, 100, **PAPER):
        used = table[(table >= 0).any(1)]
        order = [0, *(1 + rng.permutation(len(used) - 1)).tolist()]
        np.testing.assert_array_equal(canonical(relabelled(used, order)), used)


def test_equivalent_states_merge_and_unreachable_ones_go() -> None:
    #      a   b
    table = np.array([[1, 2], [0, -1], [0, -1], [3, 3]], np.int8)  # states 1 and 2 are alike, 3 cannot be reached
    np.testing.assert_array_equal(canonical(table), [[1, 1], [0, -1]])


def test_ranges_include_both_ends_and_every_state_goes_on() -> None:
    tables = sample_automata(0, 0, 4000, **PAPER)
    used = (tables >= 0).any(-1)
    edges = (tables >= 0).sum(-1)
    assert set(np.unique(edges[used])) == {1, 2, 3, 4}
    assert used.sum(-1).max() == 12
    # Reached states come first, and lead to reached states only.
    assert (np.diff(used.astype(int), axis=1) <= 0).all()
    assert (tables.max((1, 2)) < used.sum(1)).all()


def test_sampled_distribution_is_the_papers() -> None:
    """The start state is never merged away: its out-degree is uniform on 1..4 (1..3 where n = 4), its symbols on all 18."""
    tables = sample_automata(5, 0, 20_000, **PAPER)
    degrees = np.bincount((tables[:, 0] >= 0).sum(1), minlength=5)[1:] / len(tables)
    expected = 8 / 9 * np.array([1 / 4] * 4) + 1 / 9 * np.array([1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_allclose(degrees, expected, atol=5 * np.sqrt(0.25 * 0.75 / len(tables)))
    symbols = (tables[:, 0] >= 0).sum(0) / (tables[:, 0] >= 0).sum()
    np.testing.assert_allclose(symbols, 1 / 18, atol=5 * np.sqrt(1 / 18 / (2.5 * len(tables))))


@pytest.mark.parametrize("split", [1, 37, 99])
def test_candidates_do_not_depend_on_how_many_are_drawn(split: int) -> None:
    whole = sample_automata(2, 0, 100, **PAPER)
    parts = [sample_automata(2, 0, split, **PAPER), sample_automata(2, split, 100 - split, **PAPER)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (sample_automata(3, 0, 100, **PAPER) != whole).any()
