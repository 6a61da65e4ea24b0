import itertools

import numpy as np
import pytest

from baselines.bayes import Bayes, Prior
from baselines.ngram import NGram
from regbench.models.predictor import Baseline
from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA
from tests.baselines.conftest import SEPARATOR, VOCAB, check_distributions, random_tokens

PRIOR = Prior(states=(3, 5), edges=(1, 3), alphabet=(2, 4))
SMALL = PFA(PFA.Parameters(n_symbols=8, max_states=8, max_alphabet=8, min_strings=8, max_strings=12, max_length=20))


def model(prior=PRIOR, **options):
    return Bayes(prior, VOCAB, SEPARATOR, **{"hypotheses": 20, **options})


# --- The same posterior by enumeration of every automaton of a tiny prior. ---


def rows_of_a_state(s, n, alphabet, least, most):
    """(edges {symbol: target}, probability) of every way to draw the edges of state s."""
    most = min(most, n - 1, len(alphabet))
    others = [d for d in range(n) if d != s]
    for m in range(least, most + 1):
        ways = [
            dict(zip(symbols, targets, strict=True))
            for symbols in itertools.combinations(alphabet, m)
            for targets in itertools.permutations(others, m)
        ]
        for edges in ways:
            yield edges, 1 / (most - least + 1) / len(ways)


def automata(prior, n_symbols):
    """(automaton, probability) for every draw of section 3.1: a list of {symbol: target}."""
    low, high = prior.states
    for n in range(low, high + 1):
        for c in range(prior.alphabet[0], prior.alphabet[1] + 1):
            alphabets = list(itertools.combinations(range(n_symbols), c))
            for alphabet in alphabets:
                rows = [list(rows_of_a_state(s, n, alphabet, *prior.edges)) for s in range(n)]
                for states in itertools.product(*rows):
                    p = np.prod([p for _, p in states])
                    yield (
                        [edges for edges, _ in states],
                        p / (high - low + 1) / (prior.alphabet[1] - prior.alphabet[0] + 1) / len(alphabets),
                    )


def posterior_predictive(prior, tokens, vocab, separator):
    """(L, V) by the definition: each automaton weighted by its prior and by the probability of the prefix."""
    probs = np.zeros((len(tokens), vocab))
    for automaton, weight in automata(prior, vocab - 1):
        s = 0
        for t, token in enumerate(tokens.tolist()):
            edges = automaton[s]
            for a in edges:
                probs[t, a] += weight / len(edges)
            if token == separator:
                s = 0
                continue
            if token not in edges:
                break
            weight /= len(edges)
            s = edges[token]
    return probs / probs.sum(-1, keepdims=True)


def sample(prior, seed, vocab, length):
    """A prompt of one automaton of the prior, in which strings are short; the separator is the last token."""
    task = PFA(
        PFA.Parameters(
            n_symbols=vocab - 1,
            min_states=prior.states[0],
            max_states=prior.states[1],
            min_edges=prior.edges[0],
            max_edges=prior.edges[1],
            min_alphabet=prior.alphabet[0],
            max_alphabet=prior.alphabet[1],
            max_length=8,
        )
    )
    return task.generate(Splits(0, 0, 1, seed), "test").tokens[0, :length].astype(int)


TINY = [
    (Prior((3, 3), (1, 2), (2, 3)), 4),  # the paper's prior, small
    (Prior((2, 3), (1, 4), (1, 2)), 4),  # the out-degree's maximum differs with n and with c; not all symbols in use
    (Prior((2, 3), (1, 1), (1, 1)), 3),
    (Prior((3, 3), (2, 2), (2, 2)), 3),
]


@pytest.mark.parametrize(("prior", "vocab"), TINY)
@pytest.mark.parametrize("seed", range(2))
def test_is_the_posterior_over_all_automata(prior, vocab, seed):
    tokens = sample(prior, seed, vocab, 30)
    expected = posterior_predictive(prior, tokens, vocab, vocab - 1)
    probs = Bayes(prior, vocab, vocab - 1, hypotheses=5000, fallback=0.0).predict(tokens[None])[0]
    np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-9)


@pytest.mark.ci
def test_a_sample_leaves_the_posterior_as_it_is():
    """The average of many small samples, however often they are moved, is what enumeration of all hypotheses gives.

    A hundred moves of each particle at every token would take them far off, were any factor of the ratio wrong.
    """
    prior, vocab = Prior((4, 6), (1, 3), (4, 6)), 7
    tokens = np.array([[0, 5, 5, 6, 0, 5, 2, 0, 3, 0, 6, 0, 0, 2, 2, 0, 2]])
    exact = Bayes(prior, vocab, vocab - 1, hypotheses=100_000, fallback=0.0).predict(tokens)
    for hypotheses, moves, repeats in ((100, 0, 200), (100, 2, 200), (20, 100, 50)):
        samples = [
            Bayes(prior, vocab, vocab - 1, hypotheses, moves, seed, 0.0).predict(tokens) for seed in range(repeats)
        ]
        assert not np.allclose(samples[0], samples[1], atol=1e-3)
        error = np.std(samples, 0) / np.sqrt(repeats)
        np.testing.assert_array_less(np.abs(np.mean(samples, 0) - exact), 5 * error + 1e-3)


# --- Prompts that no automaton of the prior, or only an unlikely one, can have made. ---


def expected_of_the_fallback(tokens, vocab=VOCAB, separator=SEPARATOR):
    return NGram(3, vocab, separator, "kneser-ney").predict(tokens)


def test_more_edges_than_the_prior_allows_are_survived():
    """Every state of these has one edge; here each symbol follows each. Strings are still predicted, none for certain."""
    tokens = random_tokens(1, (4, 200), share=0.05)
    probs = Bayes(Prior((4, 6), (1, 1), (4, 4)), VOCAB, SEPARATOR, hypotheses=20).predict(tokens)
    check_distributions(probs, tokens)
    assert (probs[:, 20:, :SEPARATOR] > 1e-5).all()


def test_more_symbols_than_the_prior_has_fall_back_to_the_end_of_the_string():
    tokens = np.array([[0, 1, 0, 2, 0, 1, SEPARATOR, 0, 1, 0]])
    probs = Bayes(Prior((2, 3), (1, 1), (2, 2)), VOCAB, SEPARATOR, fallback=0.0).predict(tokens)[0]
    fallback = expected_of_the_fallback(tokens)[0]
    np.testing.assert_array_equal(probs[4:7], fallback[4:7])
    # A string begins with 0 and goes on with 1, say the two symbols before the third; what came after it does not count.
    np.testing.assert_allclose(probs[7:10], np.eye(VOCAB)[[0, 1, 0]], atol=1e-12)


def test_more_symbols_than_there_are_states_to_lead_to():
    tokens = np.arange(40)[None] % 20
    tokens[0, 1::2] = 20
    probs = Bayes(Prior((2, 3), (1, 4), (4, 20)), 21, 20, hypotheses=10).predict(tokens)
    check_distributions(probs, tokens, separator=20, vocab=21)


@pytest.mark.ci
def test_nothing_underflows_or_drifts_in_5000_tokens():
    ranges = {
        "n_symbols": 4,
        "max_states": 5,
        "max_alphabet": 4,
        "min_strings": 170,
        "max_strings": 170,
        "max_length": 59,
    }
    task = PFA(PFA.Parameters(**ranges))
    prompt = task.generate(Splits(0, 0, 1, 0), "test")
    assert prompt.tokens.shape[1] > 5000
    (ours,) = Bayes.defaults(task, prompt)
    probs = Bayes(ours.prior, VOCAB, SEPARATOR, hypotheses=50, moves=2).predict(prompt.tokens)
    check_distributions(probs, prompt.tokens)
    late = prompt.scored & (np.arange(prompt.tokens.shape[1]) > 1000)
    assert np.abs(probs - task.truth(prompt))[late].max() < 0.01


# --- Corners. ---


def test_a_separator_may_be_any_token():
    tokens = random_tokens(3, (2, 30))
    renamed = np.where(tokens == SEPARATOR, 1, tokens + (tokens >= 1))
    probs = model().predict(tokens)
    moved = Bayes(PRIOR, VOCAB, 1, hypotheses=20).predict(renamed)
    np.testing.assert_allclose(moved[..., [0, 2, 3, 4, 1]], probs, atol=1e-12)


def test_defaults():
    (found,) = Bayes.defaults(PFA(PFA.Parameters(n_symbols=6, max_alphabet=6, max_states=9)), None)
    assert isinstance(found, Baseline)
    assert (found.name, found.vocab_size, found.separator) == ("Bayes", 7, 6)
    assert found.prior == Prior(states=(4, 9), edges=(1, 4), alphabet=(4, 6))
    assert (found.hypotheses, found.moves) == (100, 10)
    assert Bayes.defaults(PFA(PFA.Parameters()), None)[0].moves == 36
    assert Bayes.defaults(PFA(PFA.Parameters(n_symbols=40, max_states=30)), None)[0].moves == 36, "200 would take hours"
    assert set(found.options) == {"states", "edges", "alphabet", "hypotheses", "moves", "seed", "fallback"}


def test_has_no_place_beside_tasks_without_such_a_prior():
    class Other:
        parameters = object()
        io = SMALL.io

    assert Bayes.defaults(Other(), None) == []


def test_the_prior_of_the_paper_is_the_default():
    p = PFA.Parameters()
    assert Prior() == Prior(p.range("states"), p.range("edges"), p.range("alphabet"))
