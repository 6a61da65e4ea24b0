"""The task `pfa`: instances, truth, splits, and the same bytes everywhere (ICLL sections 3.2 and 3.3)."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA, PFAParameters
from regbench.utils.errors import UserError

SMALL = PFA(PFAParameters(n_symbols=8, max_states=8, max_alphabet=8, min_strings=8, max_strings=12, max_length=20))
SPLITS = Splits(train=300, validation=50, test=100, seed=0)


def test_strings_follow_the_automaton() -> None:
    instances = SMALL.generate(SPLITS, "test")
    separator = SMALL.io.separator
    for n in range(len(instances)):
        table = instances.truth["transitions"][n]
        tokens = instances.tokens[n, : instances.lengths[n]]
        states = instances.truth_at["state"][n, : instances.lengths[n]]
        state = 0
        for token, recorded in zip(tokens, states, strict=True):
            if token == separator:
                assert recorded == -1
                state = 0
                continue
            assert recorded == state
            assert table[state, token] >= 0
            state = table[state, token]
        strings = "".join("|" if t == separator else "x" for t in tokens).split("|")
        assert 8 <= len(strings) <= 12
        assert all(1 <= len(s) <= 20 for s in strings)


def test_truth_is_uniform_over_the_allowed_symbols() -> None:
    instances = SMALL.generate(SPLITS, "test")
    truth = SMALL.truth(instances)
    assert truth.shape == (100, instances.tokens.shape[1], 9)
    np.testing.assert_allclose(truth.sum(-1), instances.scored)
    assert (truth[..., SMALL.io.separator] == 0).all()
    rows = truth[instances.scored]
    np.testing.assert_allclose(rows.max(-1), 1 / (rows > 0).sum(-1))
    given = np.take_along_axis(truth, instances.tokens[..., None].astype(int), -1)[..., 0]
    assert (given[instances.scored] > 0).all()


def test_sampled_symbols_have_the_true_frequencies() -> None:
    """Over many positions, the sampled symbol is the k-th of the m allowed ones with frequency 1/m."""
    instances = SMALL.generate(Splits(train=3000, validation=1, test=1, seed=1), "train")
    truth = SMALL.truth(instances)[instances.scored]
    tokens = instances.tokens[instances.scored].astype(int)
    for m in (2, 3, 4):
        of = (truth > 0).sum(-1) == m
        rank = (truth[of] > 0).cumsum(-1)[np.arange(of.sum()), tokens[of]]
        share = np.bincount(rank, minlength=m + 1)[1:] / of.sum()
        np.testing.assert_allclose(share, 1 / m, atol=5 * np.sqrt(1 / m / of.sum()))


def test_scored_are_the_symbols_but_the_first() -> None:
    instances = SMALL.generate(SPLITS, "validation")
    real = np.arange(instances.tokens.shape[1]) < instances.lengths[:, None]
    expected = real & (instances.tokens != SMALL.io.separator)
    expected[:, 0] = False
    np.testing.assert_array_equal(instances.scored, expected)
    assert (instances.tokens[~real] == SMALL.io.separator).all()


def test_too_few_automata_is_said() -> None:
    tiny = PFA(
        PFAParameters(
            n_symbols=2, min_states=2, max_states=2, min_alphabet=1, max_alphabet=2, max_edges=1, min_strings=1
        )
    )
    with pytest.raises(UserError, match="too few distinct automata: 4 found where 100"):
        tiny.generate(Splits(train=1, validation=1, test=100, seed=0), "test")


def test_show_has_the_automaton_and_the_strings() -> None:
    instances = SMALL.generate(SPLITS, "test")
    text = SMALL.show(instances, 0)
    assert "0 is the start" in text
    assert " → " in text
    first = "  ".join(SMALL.io.names[t] for t in instances.tokens[0, : list(instances.tokens[0]).index(8)])
    assert first in text
