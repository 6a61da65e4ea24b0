"""EM against one written by others: hmmlearn's, on the hidden Markov model of pairs of states, from the same start.

hmmlearn knows no masks and sees a model of S (S - 1) plain states with a full transition matrix. What is zero there at the
start stays zero in its EM too, so the masked model and its embedding are fitted alike.
"""

import itertools

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM

from baselines.baum_welch import BaumWelch
from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA
from tests.baselines.conftest import SEPARATOR, VOCAB, random_tokens


def strings_of(tokens, separator):
    ends = [*np.flatnonzero(tokens == separator).tolist(), len(tokens)]
    found = [tokens[a + 1 : b] for a, b in itertools.pairwise([-1, *ends])]
    return [string for string in found if len(string)]


def embedded(A, B, pi, separator):
    """startprob (E,), transmat (E, E), emissionprob (E, V - 1) over the E = S (S - 1) pairs (i, j) with i != j."""
    S = len(pi)
    pairs = [(i, j) for i in range(S) for j in range(S) if i != j]
    transmat = np.array([[A[i, j, m] if k == j else 0.0 for k, m in pairs] for i, j in pairs])
    emission = np.array([np.delete(B[:, i, j], separator) for i, j in pairs])
    return np.array([pi[i, j] for i, j in pairs]), transmat, emission


def fitted_by_hmmlearn(start, strings, separator, iterations):
    """(startprob, transmat, emissionprob) after so many steps, and the log likelihood under them."""
    startprob, transmat, emission = start
    # Maximum likelihood: a Dirichlet prior of 1 adds nothing. A tolerance of minus infinity never stops.
    theirs = CategoricalHMM(
        len(startprob), n_iter=iterations, tol=-np.inf, init_params="", params="ste", n_features=emission.shape[1]
    )
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = startprob, transmat, emission
    symbols = np.concatenate(strings)
    symbols = (symbols - (symbols > separator))[:, None]
    lengths = [len(string) for string in strings]
    if iterations:
        theirs.fit(symbols, lengths)
        assert len(theirs.monitor_.history) == iterations
    return (theirs.startprob_, theirs.transmat_, theirs.emissionprob_), theirs.score(symbols, lengths)


def prompts():
    """Tokens with their vocabulary and separator: random ones, a separator that is not the last token, and an instance."""
    yield random_tokens(0, 60), VOCAB, SEPARATOR
    tokens = random_tokens(5, 80, share=0.1)
    yield np.where(tokens == SEPARATOR, 1, tokens + (tokens >= 1)), VOCAB, 1
    task = PFA(PFA.Parameters(n_symbols=8, max_states=8, max_alphabet=8, min_strings=8, max_strings=12, max_length=20))
    instance = task.generate(Splits(train=0, validation=0, test=1, seed=5), "test")
    yield instance.tokens[0, : instance.lengths[0]].astype(np.int64), 9, 8


@pytest.mark.parametrize("iterations", [0, 1, 2, 10])
@pytest.mark.parametrize(("tokens", "vocab", "separator"), list(prompts()))
@pytest.mark.parametrize("n_states", [3, 5])
def test_em_is_hmmlearns(n_states, tokens, vocab, separator, iterations):
    model = BaumWelch(n_states, vocab, separator, max(iterations, 1), seed=3)
    start = model.fit(tokens[:0])
    before = embedded(start.A, start.B, start.pi, separator)
    after, log_likelihood = fitted_by_hmmlearn(before, strings_of(tokens, separator), separator, iterations)
    ours = model.fit(tokens)
    assert ours.log_likelihood[iterations] == pytest.approx(log_likelihood, rel=1e-10)
    if iterations == 0:
        return
    assert np.abs(before[1] - after[1]).max() > 1e-3  # it did move
    for name, a, b in zip(
        ("startprob", "transmat", "emission"), embedded(ours.A, ours.B, ours.pi, separator), after, strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8, err_msg=name)
    assert (after[1][before[1] == 0] == 0).all()
