"""Tokens to try every in-context baseline on."""

import numpy as np
import pytest

SEPARATOR = 4
VOCAB = 5


def random_tokens(seed, shape, n_symbols=SEPARATOR, separator=SEPARATOR, share=0.2):
    """Symbols below n_symbols, about `share` separators: so some strings are empty, and some of length 1."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, n_symbols, shape)
    tokens[rng.random(shape) < share] = separator
    return tokens


@pytest.fixture
def tokens():
    """(6, 40): random rows, then one string, separators alone, one symbol alone, and a padded row."""
    rows = random_tokens(0, (6, 40))
    rows[2] = random_tokens(1, 40, share=0.0)
    rows[3] = SEPARATOR
    rows[4] = np.where(np.arange(40) % 7 == 6, SEPARATOR, 2)
    rows[5, 10:] = SEPARATOR
    return rows


@pytest.fixture
def threads(monkeypatch):
    """Sets the number of threads."""
    return lambda number: monkeypatch.setattr("regbench.utils.threads.available", lambda: number)


def check_distributions(probs, tokens, separator=SEPARATOR, vocab=VOCAB):
    assert probs.shape == (*tokens.shape, vocab)
    assert probs.dtype == np.float64
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=0, atol=1e-12)
    assert (probs[..., separator] == 0).all()
    np.testing.assert_array_equal(probs[:, 0], np.broadcast_to(uniform(separator, vocab), probs[:, 0].shape))


def uniform(separator=SEPARATOR, vocab=VOCAB):
    row = np.full(vocab, 1 / (vocab - 1))
    row[separator] = 0
    return row
