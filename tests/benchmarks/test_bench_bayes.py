"""The Bayesian predictor: what hypotheses and moves buy, and how time grows with the prompt.

Run with `pytest tests/benchmarks/test_bench_bayes.py --benchmark-only -s`. Each setting prints its scores on the first
instances of a track's validation split, and its seconds an instance on one thread.
"""

from __future__ import annotations

from typing import Any

import numba
import pytest

from baselines.bayes import Bayes
from baselines.ngram import NGram
from regbench.metrics.scores import score
from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA
from regbench.tracks import load_track

INSTANCES = {"pfa-small-v1": 40, "pfa-v1": 6}
SETTINGS = [(100, 0), (1000, 0), (20, 10), (100, 3), (100, 10), (100, 30), (400, 10), (400, 30)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


@pytest.mark.parametrize("track", INSTANCES)
@pytest.mark.parametrize(("hypotheses", "moves"), SETTINGS)
def test_time_buys_quality(benchmark: Any, track: str, hypotheses: int, moves: int) -> None:
    """Without moves it is a particle filter, which loses the truth: worse than an n-gram model on long prompts."""
    task, count = load_track(track).task, INSTANCES[track]
    instances = load_track(track).instances("validation")[:count]
    prior = Bayes.defaults(task, instances)[0].prior
    model = Bayes(prior, task.io.vocab_size, task.io.separator, hypotheses, moves)
    model.predict(instances.tokens[:1])  # compiles
    probs = benchmark.pedantic(model.predict, (instances.tokens,), rounds=1)
    scores = score(task, instances, [probs])
    figures = {metric: round(scores[metric].value, 4) for metric in ("tvd", "nll", "legal_accuracy")}
    figures["s an instance"] = round(benchmark.stats.stats.min / count, 4)
    benchmark.extra_info |= figures
    print(f"\n{track}, {hypotheses} hypotheses, {moves} moves: {figures}")
    best_other = NGram(3, task.io.vocab_size, task.io.separator, "kneser-ney")
    others = score(task, instances, [best_other.predict(instances.tokens)])
    if moves > 0:
        assert scores["nll"].value < others["nll"].value - 0.03
        assert scores["tvd"].value < others["tvd"].value - 0.03


@pytest.mark.parametrize("n_states", [8, 12, 24])
@pytest.mark.parametrize("length", [100, 200, 400])
def test_time_of_a_prompt(benchmark: Any, n_states: int, length: int) -> None:
    """Nearly linear in the length, though a move replays the prefix: most are ruled out after a few dozen tokens."""
    task = PFA(PFA.Parameters(max_states=n_states, min_strings=40, max_strings=40))
    instances = task.generate(Splits(train=0, validation=0, test=4, seed=0), "test")
    model = Bayes(Bayes.defaults(task, instances)[0].prior, task.io.vocab_size, task.io.separator)
    benchmark.pedantic(model.predict, (instances.tokens[:, :length],), rounds=2, warmup_rounds=1)
    benchmark.extra_info["µs a token"] = round(1e6 * benchmark.stats.stats.min / (4 * length))
