"""The task `recall`: instances against a slow reader that knows nothing of the generator, splits, bad input."""

from __future__ import annotations

import numpy as np
import pytest

from regbench.data.instances import Instances
from regbench.tasks.base import Splits
from regbench.tasks.recall import Recall, RecallParameters

SPLITS = Splits(train=60, validation=10, test=30, seed=0)
PLAIN = {"key_tokens": 6, "value_tokens": 5, "n_keys": 4, "length": 40}
NOISY = PLAIN | {"noise_tokens": 3, "noise_percent": 30}
FUZZY = PLAIN | {"longest_key": 3, "longest_value": 3}
MEMORY = PLAIN | {"n_keys": 6, "one_map": True, "length": 8}
BOTH = FUZZY | {"noise_tokens": 2, "noise_percent": 40}


def task_of(parameters: dict[str, object]) -> Recall:
    return Recall(RecallParameters(**parameters))  # type: ignore[arg-type]


def items(task: Recall, tokens: list[int]) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """The pairs ("pair", key, value) and pieces of noise ("noise", tokens, ()), read from kinds of tokens alone."""
    p = task.parameters
    kinds = ["key" if t < p.key_tokens else "value" if t < p.key_tokens + p.value_tokens else "noise" for t in tokens]
    found, t = [], 0
    while t < len(tokens):
        if kinds[t] == "noise":
            assert kinds[t : t + 2] == ["noise"] * 2
            found.append(("noise", tuple(tokens[t : t + 2]), ()))
            t += 2
            continue
        middle = t
        while kinds[middle] == "key":
            middle += 1
        end = middle
        while end < len(tokens) and kinds[end] == "value":
            end += 1
        assert t < middle < end
        found.append(("pair", tuple(tokens[t:middle]), tuple(tokens[middle:end])))
        t = end
    return found


@pytest.mark.parametrize("parameters", [PLAIN, NOISY, FUZZY, MEMORY, BOTH])
def test_instances_are_what_the_definition_says(parameters: dict[str, object]) -> None:
    task = task_of(parameters)
    p, shared, lengths = task.parameters, {}, set()
    for split in ("train", "validation", "test"):
        instances = task.generate(SPLITS, split)
        truth = task.truth(instances)
        for row in range(len(instances)):
            length = int(instances.lengths[row])
            tokens = instances.tokens[row, :length].tolist()
            assert (instances.tokens[row, length:] == task.io.separator).all()
            assert p.length - length < p.longest_key + p.longest_value
            map_of: dict[tuple[int, ...], tuple[int, ...]] = {}
            scored: list[bool] = []
            for kind, first, then in items(task, tokens):
                if kind == "noise":
                    scored += [False, False]
                    continue
                known = p.one_map or first in map_of
                assert not (p.one_map and first in map_of)
                assert map_of.setdefault(first, then) == then
                scored += [False] * len(first) + [known] * len(then)
                lengths.add((len(first), len(then)))
            assert instances.scored[row, :length].tolist() == scored
            assert not instances.scored[row, length:].any()
            assert len(map_of) <= p.n_keys
            assert not any(a != b and b[: len(a)] == a for a in map_of for b in map_of)
            if p.one_map:
                assert all(shared.setdefault(key, value) == value for key, value in map_of.items())
        at = instances.scored
        assert (truth.sum(-1) == at).all()
        assert (truth[at].argmax(-1) == instances.tokens[at]).all()
    assert lengths == {(a + 1, b + 1) for a in range(p.longest_key) for b in range(p.longest_value)}
    assert not p.one_map or len(shared) == p.n_keys


def test_keys_values_and_noise_are_uniform() -> None:
    task = task_of(NOISY)
    instances = task.generate(Splits(train=3000, validation=1, test=1, seed=2), "train")
    pairs = instances.tokens.reshape(len(instances), -1, 2)
    noise = pairs[..., 0] >= 11
    assert abs(noise.mean() - 0.3) < 5 * np.sqrt(0.21 / noise.size)
    first = pairs[:, 0][~noise[:, 0]]  # one pair an instance: pairs of one instance share a map
    for tokens, low, n in ((first[:, 0], 0, 6), (first[:, 1], 6, 5), (pairs[noise], 11, 3)):
        share = np.bincount(tokens.ravel() - low, minlength=n) / tokens.size
        np.testing.assert_allclose(share, 1 / n, atol=5 * np.sqrt(1 / n / tokens.size))


def test_fresh_instances_have_the_map_of_the_splits() -> None:
    """A model has learned this map: about another one it could know nothing."""
    task = task_of(MEMORY)

    def pairs_of(instances: Instances) -> set[tuple[int, int]]:
        return {(int(a), int(b)) for row in instances.tokens for a, b in row.reshape(-1, 2)}

    fresh = task.fresh(SPLITS, 30, 99)
    assert pairs_of(fresh) == pairs_of(task.generate(SPLITS, "train"))
    assert fresh.fingerprint != task.fresh(SPLITS, 30, 98).fingerprint
    own = task_of(PLAIN)
    other = Splits(train=0, validation=0, test=30, seed=99)
    assert own.fresh(SPLITS, 30, 99).fingerprint == own.generate(other, "test").fingerprint
