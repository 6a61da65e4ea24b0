"""The solver of the task `bigram`: against every set of triggers and every output in turn, by hand, and in its own right."""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import numpy as np
import pytest

from baselines.bigram_solver import BigramSolver
from regbench.tasks.base import Splits
from regbench.tasks.bigram import Bigram, BigramParameters
from regbench.tasks.bigram_chain import bigrams

TINY = [
    BigramParameters(n_symbols=5, n_triggers=2, length=16),
    BigramParameters(n_symbols=7, n_triggers=3, length=24),
    BigramParameters(n_symbols=7, n_triggers=4, length=24, bigrams_seed=2),
    BigramParameters(n_symbols=6, n_triggers=1, length=16, bigrams_seed=1),
    BigramParameters(n_symbols=6, n_triggers=3, length=20, triggers="fixed"),
    BigramParameters(n_symbols=6, n_triggers=2, length=20, predict="outputs"),
]


def every_context(p: BigramParameters) -> tuple[np.ndarray, np.ndarray]:
    """All triggers with all outputs: what follows each symbol with certainty, or -1, (H, N), and how likely each is, (H,)."""
    marginal = bigrams(p.n_symbols, p.bigrams_seed)[1]
    sets = list(combinations(range(p.n_symbols), p.n_triggers))
    if p.triggers == "fixed":
        sets = [tuple(sorted(np.argsort(-marginal)[: p.n_triggers].tolist()))]
    rules, weights = [], []
    for chosen in sets:
        others = [i for i in range(p.n_symbols) if i not in chosen]
        for outputs in product(others, repeat=p.n_triggers):
            rule = np.full(p.n_symbols, -1)
            rule[list(chosen)] = outputs
            rules.append(rule)
            weights.append(prod(marginal[i] for i in chosen))
    return np.array(rules), np.array(weights) / sum(weights)


def enumerated(p: BigramParameters, tokens: np.ndarray) -> np.ndarray:
    """(L, N): by Bayes' rule over all contexts, given too that the position counts; what comes from pi_b where none is left."""
    matrix, marginal = bigrams(p.n_symbols, p.bigrams_seed)
    rules, likely = every_context(p)
    expected = np.empty((len(tokens), p.n_symbols))
    expected[0] = marginal
    seen: set[int] = set()
    for t in range(1, len(tokens)):
        last, token = tokens[t - 1], tokens[t]
        certain = rules[:, last] >= 0
        each = np.where(certain[:, None], rules[:, last, None] == np.arange(p.n_symbols), matrix[last])
        counts = likely * ((~certain & (p.predict == "all")) | (certain & (last in seen)))
        expected[t] = counts @ each / counts.sum() if counts.sum() > 0 else matrix[last]
        seen.add(last)
        likely = likely * each[:, token]
        if likely.sum() > 0:
            likely = likely / likely.sum()
    return expected


@pytest.mark.parametrize("p", TINY, ids=str)
def test_it_is_bayes_rule_over_all_triggers_and_outputs(p: BigramParameters) -> None:
    tokens = Bigram(p).generate(Splits(train=4, validation=1, test=1, seed=5), "train").tokens
    predicted = BigramSolver(p).predict(tokens)
    for row, found in zip(tokens, predicted, strict=True):
        np.testing.assert_allclose(found[:, :-1], enumerated(p, row.astype(int)), rtol=0, atol=1e-9)


@pytest.mark.ci
@pytest.mark.parametrize(
    "text",
    [
        "0120120120120120",  # a cycle of three, each always followed by the same
        "0101010123232323",  # two cycles of two
        "0123401234567890123",  # a cycle of all, and a tail that leads into it
        "0131013451345134",  # trees on a cycle
        "0000112200001122",  # symbols that follow themselves
        "0616263646560616",  # a star
    ],
)
@pytest.mark.parametrize("p", TINY[:4], ids=str)
def test_so_it_is_where_what_follows_what_makes_trees_and_cycles(p: BigramParameters, text: str) -> None:
    for shift in range(p.n_symbols):
        tokens = np.array([(int(c) + shift) % p.n_symbols for c in text])
        predicted = BigramSolver(p).predict(tokens[None])[0, :, :-1]
        np.testing.assert_allclose(predicted, enumerated(p, tokens), rtol=0, atol=1e-9)


@pytest.mark.ci
def test_so_it_is_of_any_symbols_at_all() -> None:
    p, rng = TINY[1], np.random.default_rng(0)
    for _ in range(20):
        tokens = rng.integers(0, rng.integers(3, 8), 14)
        predicted = BigramSolver(p).predict(tokens[None])[0, :, :-1]
        np.testing.assert_allclose(predicted, enumerated(p, tokens), rtol=0, atol=1e-9)


def test_fixed_triggers_leave_nothing_to_doubt() -> None:
    task = Bigram(BigramParameters(n_symbols=20, n_triggers=4, length=80, triggers="fixed"))
    instances = task.generate(Splits(train=1, validation=1, test=50, seed=1), "test")
    predicted = BigramSolver(task.parameters).predict(instances.tokens)
    np.testing.assert_allclose(predicted[instances.scored], task.truth(instances)[instances.scored], atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_prompts_that_no_task_makes_still_get_distributions(seed: int) -> None:
    """Separators among the symbols, every symbol followed by several, or by the same a thousand times."""
    rng = np.random.default_rng(seed)
    solver = BigramSolver(BigramParameters())
    for tokens in (rng.integers(0, 65, (10, 300)), np.arange(3000)[None] % 64, np.arange(2000)[None] % 2 + seed):
        probs = solver.predict(tokens)
        assert (probs >= 0).all()
        np.testing.assert_allclose(probs.sum(-1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(solver.predict(np.array([[3, 64, 5]]))[0, 2, :-1], bigrams(64, 0)[1])
    assert solver.predict(np.zeros((2, 0), np.int64)).shape == (2, 0, 65)


def test_defaults() -> None:
    task = Bigram(BigramParameters())
    instances = task.generate(Splits(train=1, validation=1, test=5, seed=0), "test")
    solver, alone = BigramSolver.defaults(task, instances)
    assert (solver.name, solver.anchor, alone.name, alone.anchor) == ("solver", None, "global bigrams", None)
    assert solver.options == {**alone.options, "in_context": True}
    assert solver.options["n_triggers"] == 5
    for predict, names in (("all", ["global bigrams"]), ("outputs", ["solver", "global bigrams"])):
        task = Bigram(BigramParameters(outputs="bigrams", predict=predict))
        assert [one.name for one in BigramSolver.defaults(task, instances)] == names
