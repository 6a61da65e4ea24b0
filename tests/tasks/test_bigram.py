"""The task `bigram`: its table, triggers and chains, what is scored, its splits, and the same bytes everywhere."""

from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np
import pytest

from regbench.metrics.scores import score
from regbench.tasks.base import Splits
from regbench.tasks.bigram import Bigram, BigramParameters, trigger_weights
from regbench.tasks.bigram_chain import bigrams, contexts
from regbench.utils.errors import UserError

PAPER = Bigram(BigramParameters())
SMALL = Bigram(BigramParameters(n_symbols=12, n_triggers=3, length=40))
FIXED = Bigram(BigramParameters(n_symbols=12, n_triggers=3, length=40, triggers="fixed"))
SPLITS = Splits(train=60, validation=10, test=30, seed=0)


def deviates(counts: np.ndarray, expected: np.ndarray) -> float:
    """By how many standard deviations Pearson's chi-square is above its mean; cells that expect less than 5 are put together."""
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


# --- The table. ---


def mixed(z: int) -> int:
    """SplitMix64's finish, in Python's own integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def slow_bigrams(n: int, seed: int) -> tuple[list[list[float]], list[float]]:
    """The same table by Python's own numbers, one operation after the other."""
    golden, rows = 0x9E3779B97F4A7C15, []
    for i in range(n):
        purpose = mixed((mixed((seed + golden) % 2**64) + 8 * golden) % 2**64)
        state = mixed((purpose + i * golden) % 2**64)
        row = []
        for j in range(n):
            state = (state + golden) % 2**64
            u = (mixed(state) >> 11) * 2.0**-53
            row.append((u * u * u) * (u * u * u) * u / (1.0 + j))
        total = 0.0
        for weight in row:
            total += weight
        rows.append([weight / total for weight in row])
    marginal = [1.0 / n] * n
    for _ in range(100):
        moved = [0.0] * n
        for i in range(n):
            for j in range(n):
                moved[j] += marginal[i] * rows[i][j]
        marginal = moved
    return rows, marginal


@pytest.mark.parametrize(("n", "seed"), [(64, 0), (5, 2**63 - 1)])
def test_the_table_has_the_bits_of_plain_arithmetic(n: int, seed: int) -> None:
    rows, marginal = slow_bigrams(n, seed)
    matrix, found = bigrams(n, seed)
    np.testing.assert_array_equal(matrix, rows)
    np.testing.assert_array_equal(found, marginal)


def test_the_table_cannot_be_written_to() -> None:
    for array in bigrams(12, 0):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0


# --- What is drawn. ---


def test_triggers_can_be_rare_and_outputs_follow_the_table() -> None:
    p = BigramParameters(n_symbols=12, n_triggers=2, length=60, triggers="fixed", first_trigger=3, outputs="bigrams")
    matrix, marginal = bigrams(12, 0)
    triggers = sorted(np.argsort(-marginal)[3:5].tolist())
    told = Bigram(p).generate(Splits(train=60, validation=2, test=2, seed=0), "train")
    assert np.unique(told.truth["triggers"], axis=0).tolist() == [triggers]
    _, drawn, outputs = contexts(trigger_weights(p), 2, 0, 0, 4000, matrix)
    assert np.unique(drawn, axis=0).tolist() == [triggers]
    for c, trigger in enumerate(triggers):
        row = np.where(np.isin(np.arange(12), triggers), 0.0, matrix[trigger])
        assert deviates(np.bincount(outputs[:, c], minlength=12), 4000 * row / row.sum()) < 4


def test_transitions_of_ordinary_symbols_and_beginnings_are_those_of_the_table() -> None:
    task = Bigram(BigramParameters(n_symbols=10, n_triggers=2, length=100))
    instances = task.generate(Splits(train=4000, validation=1, test=1, seed=3), "train")
    matrix, marginal = bigrams(10, 0)
    tokens, ordinary = instances.tokens.astype(int), task.groups(instances)["global"][:, 1:]
    counts = np.zeros((10, 10))
    np.add.at(counts, (tokens[:, :-1][ordinary], tokens[:, 1:][ordinary]), 1)
    found = [deviates(row, row.sum() * p) for row, p in zip(counts, matrix, strict=True)]
    assert max(found) < 4
    assert min(found) > -4  # nor closer than chance makes them
    assert abs(deviates(np.bincount(tokens[:, 0], minlength=10), 4000 * marginal)) < 4
    other = bigrams(10, 1)[0]
    assert min(deviates(row, row.sum() * p) for row, p in zip(counts, other, strict=True)) > 100


@pytest.mark.ci
def test_a_set_of_triggers_is_as_likely_as_the_product_of_its_frequencies() -> None:
    task = Bigram(BigramParameters(n_symbols=6, n_triggers=3, length=60))
    drawn = task.generate(Splits(train=20_000, validation=1, test=1, seed=4), "train").truth
    marginal = bigrams(6, 0)[1]
    sets = list(combinations(range(6), 3))
    weights = np.array([prod(marginal[i] for i in s) for s in sets])
    places = {s: k for k, s in enumerate(sets)}
    numbers = [places[tuple(row)] for row in drawn["triggers"].tolist()]  # ascending, so in the dictionary
    assert abs(deviates(np.bincount(numbers, minlength=20), 20_000 * weights / weights.sum())) < 4
    first = drawn["triggers"][:, 0] == 0
    others = drawn["triggers"][first].tolist() == np.array([0, 1, 2])
    outputs = drawn["outputs"][first][others.all(1)]
    for column in outputs.T:  # of the triggers 0, 1 and 2
        assert abs(deviates(np.bincount(column, minlength=6)[3:], np.full(3, len(outputs) / 3))) < 4


def test_fixed_triggers_are_the_most_frequent_symbols() -> None:
    marginal = bigrams(12, 0)[1]
    expected = sorted(sorted(range(12), key=lambda i: -marginal[i])[:3])
    instances = FIXED.generate(SPLITS, "train")
    assert (instances.truth["triggers"] == expected).all()
    assert len(np.unique(instances.truth["outputs"], axis=0)) > 50
    np.testing.assert_array_equal(np.flatnonzero(trigger_weights(FIXED.parameters)), expected)


# --- Groups, progress and truth. ---


@pytest.mark.parametrize("task", [PAPER, SMALL, FIXED], ids=["paper", "small", "fixed"])
def test_truth_is_the_definition(task: Bigram) -> None:
    """By a twin that reads each sequence symbol by symbol."""
    instances = task.generate(SPLITS, "test")
    matrix, marginal = bigrams(task.parameters.n_symbols, 0)
    truth, progress, groups = task.truth(instances), task.progress(instances), task.groups(instances)
    for n in range(len(instances)):
        rule = dict(zip(*(instances.truth[k][n].tolist() for k in ("triggers", "outputs")), strict=True))
        seen: list[int] = []
        for t, token in enumerate(instances.tokens[n].tolist()):
            before = seen[-1] if seen else None
            earlier = seen[:-1].count(before) if before is not None else 0
            expected = np.zeros(task.io.vocab_size)
            if before not in rule:
                expected[:-1] = marginal if before is None else matrix[before]
            elif earlier:
                expected[rule[before]] = 1.0
            np.testing.assert_array_equal(truth[n, t], expected)
            assert instances.scored[n, t] == (before not in rule or earlier > 0)
            assert progress[n, t] == (earlier if earlier <= 32 else -1)
            assert groups["in_context"][n, t] == (before in rule and earlier > 0)
            assert groups["global"][n, t] == (before not in rule)
            seen.append(token)
    np.testing.assert_allclose(truth.sum(-1), instances.scored, atol=1e-14)
    contents = zip(*(instances.truth[k].astype(np.uint8) for k in ("triggers", "outputs")), strict=True)
    assert task.identities(instances) == [bytes(np.concatenate(pair)) for pair in contents]
    np.testing.assert_array_equal(task.truth(instances[3:7]), truth[3:7])


def test_the_truths_own_loss_is_the_entropy_of_what_is_scored() -> None:
    instances = PAPER.generate(Splits(train=300, validation=1, test=1, seed=0), "train")
    truth = PAPER.truth(instances)
    probs = np.where(instances.scored[..., None], truth, 1 / 65)
    scores = score(PAPER, instances, [probs])
    entropy = -(truth * np.log(np.maximum(truth, 1e-300))).sum() / instances.scored.sum()
    assert scores["nll"].value == pytest.approx(entropy, abs=4 * scores["nll"].stderr)
    assert scores["in_context_accuracy"].value == 1.0
    assert scores["global_tvd"].value == scores["tvd"].value == 0.0
    behind = PAPER.groups(instances)
    for name, group in (("in_context_accuracy", "in_context"), ("global_tvd", "global")):
        assert scores.counts_of(name).sum() == behind[group].sum()
        steps, _, counts = scores.steps[name].curve()
        assert steps.tolist() == list(range(int(group == "in_context"), 33))
        earlier = PAPER.progress(instances)[behind[group]]
        assert counts.tolist() == [(earlier == step).sum() for step in steps]
        assert (earlier == -1).any()


def test_statistics_count_what_they_say() -> None:
    instances = SMALL.generate(SPLITS, "train")
    found = SMALL.statistics(instances)
    in_context = first = 0
    for row, triggers in zip(instances.tokens, instances.truth["triggers"], strict=True):
        for trigger in triggers:
            times = int((row[:-1] == trigger).sum())
            first += times > 0
            in_context += max(0, times - 1)
    assert found["in_context_share"] == pytest.approx(in_context / found["scored_tokens"])
    assert found["mean_occurrences"] == pytest.approx((in_context + first) / 60 / 3)
    assert found["scored_tokens"] == 60 * 40 - first
    matrix, marginal = bigrams(12, 0)
    assert found["bigram_entropy_nats"] == pytest.approx(-marginal @ (matrix * np.log(matrix)).sum(1))


# --- Splits. ---


def test_where_there_are_few_training_repeats_them_and_the_others_do_not() -> None:
    """Three fixed triggers and two symbols that can be outputs: eight instances are possible."""
    task = Bigram(BigramParameters(n_symbols=5, n_triggers=3, length=30, triggers="fixed"))
    splits = Splits(train=100, validation=2, test=3, seed=1)
    test, validation, train = (task.identities(task.generate(splits, s)) for s in ("test", "validation", "train"))
    assert [len(set(x)) for x in (test, validation, train)] == [3, 2, 3]
    assert len({*test, *validation, *train}) == 8
    for splits, split, message in (
        (Splits(100, 4, 5, 1), "validation", "too few distinct triggers and outputs: 8 found where 9 are needed"),
        (Splits(100, 3, 5, 1), "train", "too few distinct triggers and outputs: 8 found where 108 are needed"),
    ):
        with pytest.raises(UserError, match=message):
            task.generate(splits, split)


# --- What is refused, and what people see. ---


def test_with_outputs_exactly_that_group_is_scored() -> None:
    """The sequences stay the same, and so does everything of the task that does not ask for it."""
    parameters = SMALL.parameters.model_copy(update={"predict": "outputs"})
    outputs = Bigram(parameters)
    for split in ("train", "test"):
        one, other = SMALL.generate(SPLITS, split), outputs.generate(SPLITS, split)
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(other.scored, SMALL.groups(one)["in_context"])
        truth = outputs.truth(other)
        assert (truth[other.scored].max(1) == 1).all()  # the truth is certain
        assert not truth[~other.scored].any()
    assert (outputs.main_score, outputs.scores) == ("in_context_accuracy", ("in_context_accuracy", "nll"))
    assert (SMALL.main_score, Bigram.scores, len(Bigram.group_scores)) == ("nll", SMALL.scores, 2)
    guess = np.where(other.scored[..., None], truth, 1 / truth.shape[-1])
    perfect = score(outputs, other, [guess]).table()
    assert {name: record.value for name, record in perfect.items()} == {"in_context_accuracy": 1.0, "nll": 0.0}


def test_names_are_distinct_characters_up_to_the_most_symbols_there_can_be() -> None:
    io = Bigram(BigramParameters(n_symbols=93)).io
    assert len(set(io.names)) == io.vocab_size == 94
    assert all(len(name) == 1 and name.isprintable() and name != " " for name in io.names)
    assert PAPER.io.names[:3] == ("a", "b", "c")
