import itertools

import numpy as np
import pytest

from baselines.baum_welch import BaumWelch
from regbench.tasks.pfa import PFA
from tests.baselines.conftest import SEPARATOR, VOCAB, random_tokens, uniform


def model(n_states=3, **options):
    return BaumWelch(n_states, VOCAB, SEPARATOR, **options)


# --- The same algorithm by enumeration of all paths of states, in exact agreement with its definition. ---


def strings_of(tokens):
    """The strings of a prefix, the last one unfinished; empty ones too."""
    ends = [*np.flatnonzero(tokens == SEPARATOR).tolist(), len(tokens)]
    return [tokens[a:b].tolist() for a, b in zip([0, *(e + 1 for e in ends[:-1])], ends, strict=True)]


def paths(string, A, B, pi):
    """(states, probability together with the string) of every path: a state is an edge (i, j), the next one (j, m)."""
    edges = list(itertools.product(range(len(pi)), repeat=2))
    for states in itertools.product(edges, repeat=len(string)):
        p = 1.0
        for t, ((i, j), k) in enumerate(zip(states, string, strict=True)):
            p *= B[k, i, j]
            if t == 0:
                p *= pi[i, j]
            else:
                before, middle = states[t - 1]
                p *= A[before, i, j] if middle == i else 0.0
        if p > 0:
            yield states, p


def step_by_enumeration(strings, A, B, pi):
    """One step of EM by Algorithm 2, and the log likelihood before it."""
    xi, b, first, log_likelihood = np.zeros_like(A), np.zeros_like(B), np.zeros_like(pi), 0.0
    for string in filter(None, strings):
        found = list(paths(string, A, B, pi))
        total = sum(p for _, p in found)
        log_likelihood += np.log(total)
        for states, p in found:
            first[states[0]] += p / total
            for (i, j), k in zip(states, string, strict=True):
                b[k, i, j] += p / total
            for (i, j), (_, m) in itertools.pairwise(states):
                xi[i, j, m] += p / total
    out, visits = xi.sum(-1, keepdims=True), b.sum(0)
    A = np.where(out > 0, xi / np.where(out > 0, out, 1), A)
    B = np.where(visits > 0, b / np.where(visits > 0, visits, 1), B)
    return A, B, first / first.sum(), log_likelihood


TINY = [
    [0, 1, 0],
    [0, SEPARATOR, 2, 2, 1, SEPARATOR, 1],
    [SEPARATOR, SEPARATOR, 3, 0, SEPARATOR],
    [0, 0, 0, SEPARATOR, 0, SEPARATOR, SEPARATOR, 0, 0],
]


@pytest.mark.parametrize("n_states", [2, 3])
@pytest.mark.parametrize("tokens", TINY)
def test_fits_as_enumeration_of_the_paths_does(tokens, n_states):
    tokens = np.array(tokens)
    start = model(n_states, seed=7).fit(tokens[:0])
    A, B, pi = start.A, start.B, start.pi
    log_likelihoods = []
    for _ in range(4):
        A, B, pi, log_likelihood = step_by_enumeration(strings_of(tokens), A, B, pi)
        log_likelihoods.append(log_likelihood)
    fit = model(n_states, seed=7, iterations=4).fit(tokens)
    np.testing.assert_allclose(fit.A, A, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(fit.B, B, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(fit.pi, pi, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(fit.log_likelihood[:-1], log_likelihoods, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tokens", TINY)
def test_predicts_as_enumeration_of_the_paths_does(tokens):
    """The next symbol after every prefix: by how much each makes the unfinished string less likely."""
    tokens = np.array(tokens)
    probs = model(iterations=3).predict(tokens[None])[0]
    for t in range(len(tokens)):
        strings = strings_of(tokens[:t])
        if not any(strings):
            np.testing.assert_array_equal(probs[t], uniform())
            continue
        fit = model(iterations=3).fit(tokens[:t])
        joint = [sum(p for _, p in paths([*strings[-1], k], fit.A, fit.B, fit.pi)) for k in range(VOCAB)]
        np.testing.assert_allclose(probs[t], np.array(joint) / sum(joint), rtol=1e-9, atol=1e-13)


# --- What EM promises. ---


def test_start_masks_only_what_must_be():
    start = model(4).fit(np.zeros(0, int))
    i, j, m = np.indices(start.A.shape)
    assert (start.A[(i != j) & (j != m)] > 0).all()
    assert (start.B[:SEPARATOR, ~np.eye(4, dtype=bool)] > 0).all()
    np.testing.assert_allclose(start.pi[0, 1:], 1 / 3)


def log_space_likelihood(string, fit):
    """The forward algorithm in logarithms."""
    with np.errstate(divide="ignore"):
        A, B, alpha = np.log(fit.A), np.log(fit.B), np.log(fit.pi) + np.log(fit.B[string[0]])
    for k in string[1:]:
        alpha = np.logaddexp.reduce(alpha[:, :, None] + A, axis=0) + B[k]
    return np.logaddexp.reduce(alpha, axis=None)


@pytest.mark.parametrize("kind", ["random", "halves", "periodic"])
def test_nothing_underflows_at_5000_tokens(kind):
    string = {
        "random": random_tokens(0, 5000, share=0.0),
        "halves": np.repeat([0, 1], 2500),
        "periodic": np.arange(5000) % 3,
    }[kind]
    fit = BaumWelch(4, VOCAB, SEPARATOR, iterations=40).fit(string)
    assert all(np.isfinite(array).all() for array in (fit.A, fit.B, fit.pi, fit.log_likelihood))
    assert np.diff(fit.log_likelihood).min() > -1e-6
    np.testing.assert_allclose(fit.log_likelihood[-1], log_space_likelihood(string, fit), rtol=1e-9, atol=1e-9)


def test_predicts_to_the_end_of_2000_tokens():
    tokens = np.arange(2000)[None] % 2
    probs = BaumWelch(2, 3, 2, iterations=2).predict(tokens)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(-1), 1.0)
    # With two states only (S_0, S_1), (S_1, S_0), ... is possible, so the pattern is learnt exactly.
    np.testing.assert_allclose(probs[0, 2:, :2], np.eye(2)[tokens[0, 2:]])


@pytest.mark.parametrize("options", [{}, {"restarts": 2, "warm_start": True}], ids=str)
def test_symbols_not_seen_get_nothing(options):
    """Once a string of two symbols has been through every state."""
    tokens = random_tokens(2, (1, 30), n_symbols=2)
    tokens[0, :2] = 0
    tokens[0, 20] = 3
    probs = model(**options).predict(tokens)[0]
    assert (probs[2:, 2] == 0).all()
    assert (probs[2:21, 3] == 0).all()
    assert probs[21:, 3].max() > 0


def test_the_likeliest_restart_is_kept():
    tokens = random_tokens(9, 60)
    alone = [model(seed=0, restarts=r).fit(tokens).log_likelihood[-1] for r in (1, 2, 5)]
    assert alone == sorted(alone)
    assert alone[0] < alone[-1]
    several, first = model(restarts=5), model()
    last = np.array([*tokens, SEPARATOR, 0])
    fit = several.fit(tokens)
    np.testing.assert_allclose(several.predict(last[None])[0, -1], (fit.pi * fit.B).sum((1, 2)), rtol=1e-9)
    assert not np.allclose(several.predict(last[None]), first.predict(last[None]))


def test_a_warm_start_is_nine_parts_of_the_previous_fit_and_one_of_the_start():
    tokens = np.array([0, 1, SEPARATOR, 2, 0])
    start = model().fit(tokens[:0])
    first = A, B, pi = start.A, start.B, start.pi
    probs = model(iterations=2, warm_start=True).predict(tokens[None])[0]
    for t in range(1, len(tokens)):
        if tokens[t - 1] != SEPARATOR:
            A, B, pi = (0.9 * now + 0.1 * then for now, then in zip((A, B, pi), first, strict=True))
            for _ in range(2):
                A, B, pi, _ = step_by_enumeration(strings_of(tokens[:t]), A, B, pi)
        last = strings_of(tokens[:t])[-1]
        joint = [sum(p for _, p in paths([*last, k], A, B, pi)) for k in range(VOCAB)]
        np.testing.assert_allclose(probs[t], np.array(joint) / sum(joint), rtol=1e-9, atol=1e-13)


def test_defaults():
    (found,) = BaumWelch.defaults(PFA(PFA.Parameters(n_symbols=6, max_alphabet=6, max_states=9)), None)
    assert (found.name, found.n_states, found.vocab_size, found.separator) == ("Baum-Welch", 9, 7, 6)
    assert found.options == {"n_states": 9, "iterations": 10, "seed": 0, "restarts": 1, "warm_start": False}
