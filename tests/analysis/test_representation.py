"""What y looks like, on made-up ys whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regbench.analysis.representation import (
    Documents,
    contexts,
    documents,
    dot_products,
    hidden_targets,
    joined,
    linear_fit,
    tokens_until_moved,
    variation,
)
from regbench.analysis.segments import Segments, segments
from regbench.tasks.arithmetic import Arithmetic
from regbench.tasks.linear_regression import LinearRegression
from regbench.tasks.task import Splits
from regbench.tracks import Track
from tests.analysis.conftest import Counting

SPLITS = Splits(train=1, validation=1, test=40, seed=0)


def stretches(rows: int, start: int = 2, cut: int = 6, end: int = 12) -> Segments:
    return Segments(np.arange(rows), *(np.full(rows, at) for at in (start, cut, end)), np.zeros(rows, dtype=np.int64))


def test_variation_is_how_far_the_normalised_y_travels_behind_the_cut() -> None:
    y = np.random.default_rng(0).standard_normal((5, 14, 3))
    parts = stretches(5)
    inside = [y[n, t] for n in range(5) for t in range(2, 12)]
    mean = sum(inside) / len(inside)
    scale = (sum(((v - mean) ** 2).sum() for v in inside) / len(inside)) ** 0.5
    steps = [np.linalg.norm((y[n, t] - y[n, t - 1]) / scale) for n in range(5) for t in range(7, 12)]
    assert variation(y, parts) == pytest.approx(np.mean(steps))
    assert variation(100.0 * y + 7.0, parts) == pytest.approx(np.mean(steps))
    still = y.copy()
    still[:, 6:12] = still[:, 6:7]
    assert variation(still, parts) == 0.0


def test_linear_fit_finds_what_is_linear_and_nothing_else() -> None:
    generator = np.random.default_rng(0)
    hidden = generator.uniform(-9, 10, (200, 2))
    y = np.repeat((hidden @ generator.standard_normal((2, 6)) + 3.0)[:, None], 14, axis=1)
    noisy = y + 0.01 * generator.standard_normal(y.shape)
    fit = linear_fit(noisy, stretches(200), ["a", "b"], hidden)
    assert fit.names == ["a", "b"]
    assert len(fit.true) == 100
    assert (fit.explained > 0.999).all()
    assert (fit.error < 0.02).all()
    nothing = linear_fit(generator.standard_normal(y.shape), stretches(200), ["a", "b"], hidden)
    assert (nothing.explained < 0.2).all()
    assert (nothing.error > 0.6).all()


def test_linear_fit_reads_y_behind_the_cut_alone() -> None:
    hidden = np.random.default_rng(0).uniform(0, 1, (60, 1))
    y = np.full((60, 14, 2), np.nan)
    y[:, 6:12] = hidden[:, None]
    assert linear_fit(y, stretches(60), ["a"], hidden).explained[0] == pytest.approx(1.0)


def test_what_is_hidden_in_a_task(tiny: Track) -> None:
    arithmetic = Arithmetic(Arithmetic.Parameters(n_tasks=3, n_digits=1))
    instances = arithmetic.generate(SPLITS, "test")
    parts = segments(arithmetic, instances)
    found = hidden_targets(instances, parts)
    assert found is not None
    names, targets = found
    assert names == ["a", "b"]
    np.testing.assert_array_equal(targets[4], instances.truth["coefficients"][1, 1])
    regression = LinearRegression(LinearRegression.Parameters(d_x=2, d_y=1, n_examples=4))
    instances = regression.generate(SPLITS, "test")
    found = hidden_targets(instances, segments(regression, instances))
    assert found is not None
    assert found[0] == ["weights[0]", "weights[1]"]
    np.testing.assert_array_equal(found[1][7], instances.truth["weights"][7, 0])
    test = tiny.instances("test")
    assert hidden_targets(test, segments(tiny.task, test)) is None


def test_dot_products() -> None:
    y = np.random.default_rng(0).standard_normal((4, 5, 3))
    found = dot_products(y)
    for i in range(5):
        for j in range(5):
            each = [y[n, i] @ y[n, j] / np.linalg.norm(y[n, i]) / np.linalg.norm(y[n, j]) for n in range(4)]
            assert found[i, j] == pytest.approx(np.mean(each))
    np.testing.assert_allclose(np.diag(found), 1.0)


def test_tokens_until_y_has_moved() -> None:
    old, new = np.zeros((10, 2)), np.ones((20, 2))  # y[9] has read nothing of what begins with token 9
    assert tokens_until_moved(np.concatenate([old, new]), 0, 9, 30) == 3  # 3 of the last 4 are new
    assert tokens_until_moved(np.concatenate([old, new]), 0, 6, 30) == 6
    slow = np.concatenate([old, np.linspace(0, 1, 11)[1:, None] * np.ones(2), new])
    assert tokens_until_moved(slow, 0, 9, 40) == 7  # 0.4, 0.5, 0.6, 0.7 are above the middle
    assert tokens_until_moved(np.zeros((30, 2)), 0, 9, 30) is None
    noisy = np.concatenate([old, new])
    noisy[4], noisy[20] = 1.5, -0.5
    assert tokens_until_moved(noisy, 0, 9, 30) == 3


def test_texts_of_two_contexts_are_joined_at_the_cut(tiny: Track) -> None:
    instances = tiny.instances("test")
    parts = segments(tiny.task, instances)
    texts, boundaries, ends = joined(instances, parts, tiny.task.io.max_length, pairs=5)
    assert 1 <= len(texts) <= 5
    k = 0
    for i in range(5):
        first, second = parts[2 * i : 2 * i + 1], parts[2 * i + 1 : 2 * i + 2]
        before = instances.tokens[first.row[0], : first.cut[0]]
        after = instances.tokens[second.row[0], : second.end[0]][: tiny.task.io.max_length - len(before)]
        if len(after) < 8:
            continue
        assert boundaries[k] == len(before)
        assert ends[k] == len(before) + len(after)
        assert texts[k, : ends[k]].tolist() == [*before, *after]
        k += 1
    assert k == len(texts)


def test_documents_of_one_context_are_alike_to_a_model_that_counts(tiny: Track) -> None:
    instances = tiny.instances("test")
    found = documents(Counting(tiny.task.io), instances, segments(tiny.task, instances), topics=4, pieces=3)
    assert found.means.shape == (12, tiny.task.io.vocab_size)
    assert found.topics.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    same, chance = found.same_topic_neighbours()
    assert 0.0 <= same <= 1.0
    assert chance == pytest.approx(2 / 11)


def test_topics_that_the_truth_tells_are_those_of_whole_instances(tiny: Track) -> None:
    instances = tiny.instances("test")[:6]
    object.__setattr__(instances, "truth", {"topic": np.array([0, 0, 1, 1, 2, 2])})
    model = Counting(tiny.task.io)
    found = documents(model, instances, segments(tiny.task, instances))
    assert found.topics.tolist() == [0, 0, 1, 1, 2, 2]
    y = contexts(model, instances.tokens)
    np.testing.assert_allclose(found.means[3], y[3, : instances.lengths[3]].mean(0))


def test_neighbours_of_the_same_topic() -> None:
    means = np.array([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
    assert Documents(means, np.array([0, 0, 1, 1])).same_topic_neighbours() == (1.0, pytest.approx(1 / 3))
    assert Documents(means, np.array([0, 1, 0, 1])).same_topic_neighbours()[0] == 0.0


def test_contexts_come_in_batches(tiny: Track) -> None:
    model, tokens = Counting(tiny.task.io), tiny.instances("test").tokens
    whole = model.context(torch.from_numpy(tokens.astype(np.int64))).double().numpy()
    np.testing.assert_array_equal(contexts(model, tokens, batch_size=5), whole)
