"""What every baseline over tokens promises, in each form: distributions of the prefix alone, for any batch and threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baselines.arithmetic_solver import ArithmeticSolver
from baselines.baum_welch import BaumWelch
from baselines.bayes import Bayes, Prior
from baselines.bigram_solver import BigramSolver
from baselines.linear_regression import InContextRegression
from baselines.ngram import SMOOTHINGS, NGram
from baselines.uniform import Uniform
from regbench.models.predictor import Baseline
from regbench.tasks.arithmetic import ArithmeticParameters
from regbench.tasks.bigram import BigramParameters
from regbench.tasks.pfa import PFAParameters
from regbench.utils.errors import UserError
from tests.baselines.conftest import SEPARATOR, VOCAB, check_distributions, random_tokens

PRIOR = Prior(states=(3, 5), edges=(1, 3), alphabet=(2, 4))
EM = ({}, {"restarts": 3}, {"warm_start": True}, {"restarts": 2, "warm_start": True})
SAMPLED = ({}, {"moves": 0}, {"hypotheses": 1}, {"hypotheses": 500, "moves": 1})
ORDERS = [(order, s) for order in (1, 2, 3, 4, 5, None) for s in SMOOTHINGS if (order, s) != (None, "add-one")]
FORMS: dict[str, Callable[[], Baseline]] = {
    "uniform": lambda: Uniform(VOCAB, SEPARATOR),
    **{f"{order}-gram {s}": lambda o=order, s=s: NGram(o, VOCAB, SEPARATOR, s) for order, s in ORDERS},
    **{f"Baum-Welch {o}": lambda o=o: BaumWelch(3, VOCAB, SEPARATOR, **o) for o in EM},
    **{f"Bayes {o}": lambda o=o: Bayes(PRIOR, VOCAB, SEPARATOR, **{"hypotheses": 20, **o}) for o in SAMPLED},
}
SOLVERS: dict[str, Callable[[], Baseline]] = {
    "arithmetic": lambda: ArithmeticSolver(ArithmeticParameters(n_tasks=2, n_examples=3, n_digits=2)),
    "bigram": lambda: BigramSolver(BigramParameters(n_symbols=12, n_triggers=3, length=60)),
}
"""They know their task, and are asked for any tokens of it, as no task makes them."""
every = pytest.mark.parametrize("name", [*FORMS, *SOLVERS])


def made(name: str) -> tuple[Baseline, int]:
    """A baseline and the size of its vocabulary."""
    if name in FORMS:
        return FORMS[name](), VOCAB
    return SOLVERS[name](), {"arithmetic": 16, "bigram": 13}[name]


def some(name: str, shape: tuple[int, int]) -> np.ndarray:
    vocab = made(name)[1]
    return random_tokens(6, shape) if name in FORMS else np.random.default_rng(6).integers(0, vocab, shape)


@pytest.mark.parametrize("name", FORMS)
def test_gives_distributions(name: str, tokens: np.ndarray) -> None:
    check_distributions(made(name)[0].predict(tokens), tokens)


def test_of_the_uniform_one_the_separator_has_none_and_rows_are_the_callers_own() -> None:
    probs = Uniform(5, 4).predict(np.array([[0, 4, 1], [3, 3, 3]]))
    assert probs.shape == (2, 3, 5)
    assert (probs == [0.25, 0.25, 0.25, 0.25, 0.0]).all()
    probs[0, 0] = 7.0
    assert (probs[0, 1] == [0.25, 0.25, 0.25, 0.25, 0.0]).all()


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_gives_distributions_of_tokens_that_its_task_does_not_make(name: str) -> None:
    probs = made(name)[0].predict(some(name, (20, 300)))
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(-1), 1.0, atol=1e-12)


@every
def test_knows_only_the_prefix(name: str) -> None:
    tokens = some(name, (4, 40))
    whole = made(name)[0].predict(tokens)
    for t in (1, 7, 23):
        np.testing.assert_array_equal(made(name)[0].predict(tokens[:, :t]), whole[:, :t])
        changed = tokens.copy()
        changed[:, t:] = tokens[:, t:][:, ::-1]
        np.testing.assert_array_equal(made(name)[0].predict(changed)[:, : t + 1], whole[:, : t + 1])


@every
def test_knows_only_its_own_row_on_any_number_of_threads(name: str, threads: Callable[[int], None]) -> None:
    tokens = some(name, (40 if "gram" in name else 9, 30))
    threads(3)
    whole = made(name)[0].predict(tokens)
    threads(1)
    np.testing.assert_array_equal(made(name)[0].predict(tokens), whole)
    np.testing.assert_array_equal(made(name)[0].predict(tokens[[7, 2]]), whole[[7, 2]])


@every
def test_empty_batches(name: str) -> None:
    baseline, vocab = made(name)
    for shape in ((0, 7), (3, 0)):
        assert baseline.predict(np.zeros(shape, int)).shape == (*shape, vocab)


@pytest.mark.parametrize(
    "baseline",
    [
        *(NGram(order, 2, 1, s) for order, s in ORDERS),
        BaumWelch(3, 2, 1),
        Bayes(Prior((2, 4), (1, 3), (1, 1)), 2, 1),
    ],
    ids=str,
)
def test_of_one_symbol_it_is_certain(baseline: Baseline) -> None:
    probs = baseline.predict(np.array([[0, 0, 1, 0, 0, 0, 1, 1]]))
    np.testing.assert_allclose(probs[0], np.tile([1.0, 0.0], (8, 1)))


@pytest.mark.parametrize("tokens", [np.zeros(3, int), np.zeros((1, 3)), np.array([[16]]), np.array([[-1]])])
@pytest.mark.parametrize("name", ["uniform", "3-gram reserved", "Baum-Welch {}", "Bayes {}", *SOLVERS])
def test_tokens_of_wrong_rank_type_or_range_are_refused(name: str, tokens: np.ndarray) -> None:
    with pytest.raises(UserError, match="token 16 is outside" if 16 in tokens else "token"):
        made(name)[0].predict(tokens)


@pytest.mark.parametrize("name", ["Baum-Welch {}", "Bayes {}"])
def test_seeds_differ_and_repeat(name: str, tokens: np.ndarray) -> None:
    one, again, other = (
        BaumWelch(3, VOCAB, SEPARATOR, seed=seed) if "Welch" in name else Bayes(PRIOR, VOCAB, SEPARATOR, 20, seed=seed)
        for seed in (1, 1, 2)
    )
    first = one.predict(tokens)
    np.testing.assert_array_equal(again.predict(tokens), first)
    assert not np.allclose(other.predict(tokens), first)


REFUSED: list[tuple[Callable[..., object], tuple[object, ...], dict[str, object], str]] = [
    *((Uniform, given, {}, "separator") for given in ((5, 5), (5, -1), (5, None), (5, "|"), (5, True))),
    (Uniform, (1, 0), {}, "vocab_size must be at least 2"),
    (NGram, (0, 5, 4), {}, "order must be at least 1"),
    (NGram, (2.0, 5, 4), {}, "order must be an integer"),
    (NGram, (2, 5, 5), {}, "separator 5 is outside"),
    (NGram, (2, 5, None), {}, "separator must be an integer"),
    (NGram, (2, 1, 0), {}, "vocab_size must be at least 2"),
    (NGram, (2, 5, 4, "knesser-ney"), {}, "did you mean 'kneser-ney'"),
    (NGram, (None, 5, 4, "add-one"), {}, "needs an order"),
    (BaumWelch, (1, 5, 4), {}, "n_states must be at least 2"),
    (BaumWelch, (3, 5, 5), {}, "separator 5 is outside"),
    (BaumWelch, (3, 5, 4), {"iterations": 0}, "iterations must be at least 1"),
    (BaumWelch, (3, 5, 4), {"iterations": 1.5}, "iterations must be an integer"),
    (BaumWelch, (3, 5, 4), {"restarts": 0}, "restarts must be at least 1"),
    (BaumWelch, (3, 5, 4), {"seed": -1}, "seed must be at least 0"),
    (Bayes, (PRIOR, 5, 5), {}, "separator 5 is outside"),
    (Bayes, (PRIOR, 4, 3), {}, "an alphabet of 4 is above the 3 symbols"),
    (Bayes, (PRIOR, 5, 4), {"hypotheses": 0}, "hypotheses must be at least 1"),
    (Bayes, (PRIOR, 5, 4), {"moves": -1}, "moves must be at least 0"),
    (Bayes, (PRIOR, 5, 4), {"moves": 1.5}, "moves must be an integer"),
    (Bayes, (PRIOR, 5, 4), {"seed": 2**64}, r"seed must be below 2\*\*63"),
    (Bayes, (PRIOR, 5, 4), {"seed": -1}, "seed must be at least 0"),
    (Bayes, (PRIOR, 5, 4), {"fallback": 1.5}, "fallback must be between 0 and 1"),
    (Bayes, (PRIOR, 5, 4), {"fallback": float("nan")}, "fallback must be between 0 and 1"),
    (Prior, (), {"states": (1, 4)}, r"states\[0\] must be at least 2"),
    (Prior, (), {"states": (5, 4)}, r"states\[1\] must be at least 5"),
    (Prior, (), {"states": (4, 128)}, "at most 127"),
    (Prior, (), {"edges": (0, 2)}, r"edges\[0\] must be at least 1"),
    (Prior, (), {"edges": (4, 4)}, r"edges\[0\] must be at most 3"),
    (Prior, (), {"alphabet": (4, 4.5)}, r"alphabet\[1\] must be an integer"),
    (Prior, (), {"alphabet": 4}, "alphabet must be a tuple of two integers"),
    (InContextRegression, ("rigde", 4, 3), {}, "unknown method 'rigde'; did you mean 'ridge'"),
    (InContextRegression, ("ridge", 0, 3), {}, "d_x must be at least 1, not 0"),
    (InContextRegression, ("ridge", 4, 3, -1.0), {}, "noise must be finite and at least 0"),
    (BigramSolver, (PFAParameters(),), {}, "takes the parameters of the task bigram, not PFAParameters"),
    (ArithmeticSolver, (PFAParameters(),), {}, "takes the parameters of the task arithmetic, not PFAParameters"),
]


@pytest.mark.parametrize(("cls", "arguments", "options", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(
    cls: Callable[..., object], arguments: tuple[object, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        cls(*arguments, **options)
