"""Recall of values by their keys, amid noise and with keys and values of several tokens: the recall tasks of the MAD suite.

An instance has a map from keys to values. It shows pairs of a key and its value. Keys are uniform, so they come back. Keys are
made of tokens a, b, ..., and values of tokens 0, 1, .... The values of keys that have occurred before are scored. Four tasks
differ in their parameters alone:

    in-context recall    a 1  c 0  a 1  b 0  c 0            keys and values of one token
    noisy recall         a 1  #3 #0  c 0  a 1  #1 #1  c 0   some pairs are two tokens of noise instead
    fuzzy recall         b a 1 0  c 2  b a 1 0  c 2         keys and values of one to three tokens
    memorization         a 1  d 2  b 0                      one map for all instances; every value is scored

No key is the beginning of another key of its instance, so it is certain where a key that has occurred ends. With one map for all
instances no key occurs twice in an instance, so that nothing can be copied: training alone teaches the map.

The tasks are from *Mechanistic Design and Scaling of Hybrid Architectures* (Poli et al. 2024, arXiv:2403.17844). Differences from
the released code:

- Models are trained on scored tokens. There in-context tasks are trained on all tokens, and only scored on these.
- Fuzzy recall there draws keys from all of one to three tokens, and tests on keys of three tokens alone. Few keys come back then.
  Here an instance has `n_keys` keys, so that most do.
- Memorization there asks for a value with a token that says "insert", and does not show it. Here the value stands after its key.
"""

from __future__ import annotations

import string
from functools import cached_property
from typing import Any, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, between, choose, stream
from regbench.tasks import base as task
from regbench.tasks._drawn import DrawnTask

_MAP, _PAIRS, _ONE_MAP = 15, 16, 17  # the streams' purposes


class RecallParameters(task.Parameters):
    """The parameters of `recall`. The defaults are in-context recall as in the MAD suite."""

    key_tokens: int = pydantic.Field(default=8, ge=2, le=8192)  # tokens of which keys are made
    value_tokens: int = pydantic.Field(default=8, ge=2, le=8192)  # tokens of which values are made
    n_keys: int = pydantic.Field(default=8, ge=1, le=1024)  # keys of a map
    # the most tokens in a key. A length is drawn, all being equally likely. A key that begins with another one, or is
    # the beginning of it, is drawn again. So short keys are rarer.
    longest_key: int = pydantic.Field(default=1, ge=1, le=8)
    # the most tokens in a value. All lengths are equally likely.
    longest_value: int = pydantic.Field(default=1, ge=1, le=8)
    noise_tokens: int = pydantic.Field(default=0, ge=0, le=8192)  # tokens of which noise is made
    noise_percent: int = pydantic.Field(default=0, ge=0, le=99)  # how many in a hundred pairs are noise
    one_map: bool = False  # whether all instances have the same map
    # the most tokens in an instance. It ends where the next pair would be longer.
    length: int = pydantic.Field(default=128, ge=4, le=65536)

    @pydantic.model_validator(mode="after")
    def _instances_exist(self) -> Self:
        if self.n_keys > self.key_tokens:
            raise ValueError(f"n_keys ({self.n_keys}) is larger than key_tokens ({self.key_tokens})")
        if (self.noise_percent > 0) != (self.noise_tokens > 0):
            raise ValueError(
                f"noise_percent ({self.noise_percent}) and noise_tokens ({self.noise_tokens}) must both be 0 or both be larger"
            )
        pair = self.longest_key + self.longest_value
        if self.length < 2 * pair:
            raise ValueError(f"length ({self.length}) is too short: two of the longest pairs take {2 * pair}")
        if self.one_map and self.length > 2 * self.n_keys:
            raise ValueError(
                f"length ({self.length}) is too long: with one_map no key occurs twice, "
                f"and {self.n_keys} pairs may take {2 * self.n_keys}"
            )
        return self


class Recall(DrawnTask):
    """Values that have to be remembered by their keys; see the module."""

    Parameters = RecallParameters
    version = 1
    main_score = "token_accuracy"
    scores = ("token_accuracy", "nll")
    parameters: RecallParameters
    _map_seed: int | None = None  # that of the one map, where it is not the seed of the instances

    @cached_property
    def io(self) -> task.TokenIO:
        """Tokens of keys, of values, of noise, and the separator."""
        p = self.parameters
        letters = string.ascii_lowercase if p.key_tokens <= 26 else tuple(f"k{i}" for i in range(p.key_tokens))
        names = (
            *letters[: p.key_tokens],
            *map(str, range(p.value_tokens)),
            *(f"#{i}" for i in range(p.noise_tokens)),
            "|",
        )
        return task.TokenIO.of(names, p.length)

    def fresh(self, splits: task.Splits, count: int, seed: int) -> Instances:
        """As every task's. The one map of `one_map` is that of the splits: it is what was learned."""
        known = Recall(self.parameters)
        known._map_seed = splits.seed
        return task.Task.fresh(known, splits, count, seed)

    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        p, map_seed = self.parameters, seed if self._map_seed is None else self._map_seed
        sizes = np.array(
            [p.key_tokens, p.value_tokens, p.n_keys, p.longest_key, p.longest_value, p.noise_tokens, p.noise_percent]
        )
        return self._filled(n, p.length, _sample, seed, map_seed, start, sizes, p.one_map)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds the share of tokens that are scored, and that are noise."""
        p, n = self.parameters, instances.n_tokens
        noise = (instances.tokens >= p.key_tokens + p.value_tokens) & (instances.tokens < self.io.separator)
        return super().statistics(instances) | {
            "scored_share": float(instances.scored.sum() / n),
            "noise_share": float(noise.sum() / n),
        }


@njit(cache=True, nogil=True)
def _draw_map(rng, sizes, keys, values):  # type: ignore[no-untyped-def]
    """Fills keys (K, 1 + longest) and values (K, 1 + longest): the number of tokens, and the tokens.

    No key is the beginning of another. A draw for which this fails is repeated.
    """
    key_tokens, value_tokens, n_keys = sizes[0], sizes[1], sizes[2]
    drawn = 0
    while drawn < n_keys:
        size = between(rng, 1, sizes[3])
        keys[drawn, 0] = size
        for i in range(size):
            keys[drawn, 1 + i] = below(rng, key_tokens)
        fresh = True
        for other in range(drawn):
            same = True
            for i in range(min(size, keys[other, 0])):
                if keys[other, 1 + i] != keys[drawn, 1 + i]:
                    same = False
            if same:
                fresh = False
        if fresh:
            values[drawn, 0] = between(rng, 1, sizes[4])
            for i in range(values[drawn, 0]):
                values[drawn, 1 + i] = key_tokens + below(rng, value_tokens)
            drawn += 1


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, map_seed, start, sizes, one_map, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L); see `DrawnTask._draw`."""
    n_keys, length = sizes[2], rows.shape[2]
    first_noise = sizes[0] + sizes[1]
    separator = first_noise + sizes[5]
    keys, values = np.empty((n_keys, 1 + sizes[3]), np.int64), np.empty((n_keys, 1 + sizes[4]), np.int64)
    order, shown = np.empty(n_keys, np.int64), np.empty(n_keys, np.bool_)
    if one_map:
        _draw_map(stream(map_seed, _ONE_MAP, 0), sizes, keys, values)
    for n in range(begin, end):
        if not one_map:
            _draw_map(stream(seed, _MAP, start + n), sizes, keys, values)
        rng = stream(seed, _PAIRS, start + n)
        rows[n, 0, :], rows[n, 1, :] = separator, 0
        for k in range(n_keys):
            order[k], shown[k] = k, one_map
        t, n_pairs = 0, 0
        while t + 2 <= length:
            if sizes[6] > 0 and below(rng, 100) < sizes[6]:
                for _ in range(2):
                    rows[n, 0, t] = first_noise + below(rng, sizes[5])
                    t += 1
                continue
            if one_map:
                if n_pairs == n_keys:
                    break
                choose(rng, order[n_pairs:], n_keys - n_pairs, 1)
                key = order[n_pairs]
                n_pairs += 1
            else:
                key = below(rng, n_keys)
            if t + keys[key, 0] + values[key, 0] > length:
                break
            for i in range(keys[key, 0]):
                rows[n, 0, t] = keys[key, 1 + i]
                t += 1
            for i in range(values[key, 0]):
                rows[n, 0, t] = values[key, 1 + i]
                if shown[key]:
                    rows[n, 1, t] = 1 + values[key, 1 + i]
                t += 1
            shown[key] = True
