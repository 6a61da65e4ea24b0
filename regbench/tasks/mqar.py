"""Multi-query associative recall: pairs of a key and its value, then many queries, each of which asks for the value of a key.

An instance has distinct keys, each with a value. After the pairs come slots of two tokens. A slot with a query holds a key and
its value. All other slots are blank. With three pairs, three queries and eight slots:

    a 3 b 1 c 7   . .  b 1  . .  . .  c 7  . .  . .  b 1

The values in the slots are scored. Keys and values are drawn without replacement. Each query asks for one of the keys, all
equally likely. The slots of queries are drawn without replacement. Slot i, from 1, has a weight proportional to i^(power - 1). So
with a power near 0 many queries come soon after the pairs, and gaps follow a power law, as in text. With a power of 1 all slots
are equal.

The task is from *Zoology: Measuring and Improving Recall in Efficient Language Models* (Arora et al. 2023, arXiv:2312.04927).
Attention solves it at any width. Recurrent models need a state that grows with the number of pairs.

Differences from the released code:
- There a value is asked for and never shown, and the slot is blank or random in its place. Here the value stands in it, because a
  predictor sees every earlier token.
- There each key is asked for once. With values that are shown, the last ones would follow by elimination: a transformer learned
  that first, and had 0.36 with 8 pairs while it recalled nothing. So here keys are drawn with replacement.
- Weights of slots are rounded to whole parts of 2^31 of their sum, so that instances are the same on any machine.
"""

from __future__ import annotations

import decimal
from functools import cached_property
from typing import Any, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, choose, stream
from regbench.tasks import base as task
from regbench.tasks._drawn import CertainTask, first_distinct
from regbench.tasks._occurrences import occurrences
from regbench.utils import threads
from regbench.utils.arrays import FloatArray, IntArray

_PAIRS, _SLOTS = 13, 14  # the streams' purposes
_PARTS = 2**31  # of which the weights of slots are whole numbers


class MQARParameters(task.Parameters):
    """The parameters of `mqar`. The defaults are the hardest setting of the paper's Figure 2."""

    # the number of tokens. One is the blank; of the others half are keys and half are values.
    vocabulary: int = pydantic.Field(default=8192, ge=5, le=65536)
    n_pairs: int = pydantic.Field(default=64, ge=1)  # pairs, before the slots
    n_queries: int = pydantic.Field(default=64, ge=1)  # slots with a query
    length: int = pydantic.Field(default=512, ge=4, le=65536, multiple_of=2)  # tokens in an instance, an even number
    power: float = pydantic.Field(default=0.01, gt=0, le=1)  # the power of the law of gaps. 1 is a uniform law

    @property
    def n_keys(self) -> int:
        """The number of keys. Their tokens are the first ones; the tokens of values follow."""
        return (self.vocabulary - 1) // 2

    @property
    def n_slots(self) -> int:
        """The slots after the pairs."""
        return self.length // 2 - self.n_pairs

    @pydantic.model_validator(mode="after")
    def _there_is_room(self) -> Self:
        if self.n_pairs > self.n_keys:
            raise ValueError(
                f"n_pairs ({self.n_pairs}) is larger than the {self.n_keys} keys of a vocabulary of {self.vocabulary}"
            )
        if self.n_queries > self.n_slots:
            raise ValueError(
                f"length ({self.length}) is too short: {self.n_pairs} pairs and {self.n_queries} queries take "
                f"{2 * (self.n_pairs + self.n_queries)}"
            )
        return self


class MQAR(CertainTask):
    """Values that are asked for by their keys, all in one instance; see the module."""

    Parameters = MQARParameters
    version = 1
    main_score = "token_accuracy"
    scores = ("token_accuracy", "nll")
    progress_label = "pairs and slots since the key last stood there"
    parameters: MQARParameters

    @cached_property
    def io(self) -> task.TokenIO:
        """Keys k0, k1, ..., values v0, v1, ..., and the blank, which is the separator."""
        p = self.parameters
        n_values = p.vocabulary - 1 - p.n_keys
        names = (*(f"k{i}" for i in range(p.n_keys)), *(f"v{i}" for i in range(n_values)), ".")
        return task.TokenIO.of(names, p.length)

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. The pairs of a test or validation instance are those of no other instance."""
        p, first = self.parameters, splits.first(split)
        held_out = splits.test + splits.validation

        def draw(start: int, n: int) -> NDArray[Any]:
            pairs = np.empty((n, 2 * p.n_pairs), np.min_scalar_type(self.io.separator))
            threads.share(_draw_pairs, n, splits.seed, start, p.n_keys, self.io.separator - p.n_keys, pairs)
            return pairs

        pairs, places = first_distinct(draw, "lists of pairs", first + splits.size(split), held_out)
        tokens = np.full((splits.size(split), p.length), self.io.separator, pairs.dtype)
        tokens[:, : 2 * p.n_pairs] = pairs[first:]
        weights, counts = slot_weights(p), (p.n_pairs, p.n_queries)
        threads.share(_fill_slots, len(tokens), splits.seed, places[first:], weights, *counts, tokens)
        return Instances.unpadded(tokens, self._queried(tokens), f"mqar/{self.version}", {})

    def _queried(self, tokens: NDArray[Any]) -> NDArray[np.bool_]:
        """(N, L): the values in the slots."""
        values = (tokens >= self.parameters.n_keys) & (tokens < self.io.separator)
        return np.asarray(values & (np.arange(tokens.shape[1]) >= 2 * self.parameters.n_pairs))

    def chance(self, instances: Instances) -> FloatArray:
        """The values of all pairs are equally likely."""
        return np.full(instances.tokens.shape, 1.0 / self.parameters.n_pairs)

    def identities(self, instances: Instances) -> list[bytes]:
        """The pairs of each instance."""
        return [row.tobytes() for row in instances.tokens[:, : 2 * self.parameters.n_pairs]]

    def progress(self, instances: Instances) -> IntArray:
        """How many pairs and slots stand between a query and the last place of its key; -1 where nothing is scored."""
        key = np.arange(instances.tokens.shape[1]) - 1  # that of the value at each place
        last = occurrences(instances.tokens, self.io.vocab_size)[0][:, key]
        return np.where(instances.scored, (key - last) // 2 - 1, -1)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds the mean number of pairs and slots between a query and the last place of its key."""
        distance = self.progress(instances)[instances.scored]
        return super().statistics(instances) | {"mean_distance": float(distance.mean())}


def slot_weights(p: MQARParameters) -> NDArray[np.int64]:
    """The weight of each slot as a whole number of at least 1. They sum to about 2^31.

    Powers are computed in decimal arithmetic, which gives the same digits on any machine.
    """
    with decimal.localcontext(prec=40):
        exponent = decimal.Decimal(repr(p.power)) - 1
        weights = [decimal.Decimal(i) ** exponent for i in range(1, p.n_slots + 1)]
        total = sum(weights)
        return np.array([max(1, int(weight / total * _PARTS)) for weight in weights], np.int64)


@njit(cache=True, nogil=True)
def _draw_pairs(begin, end, seed, start, n_keys, n_values, pairs):  # type: ignore[no-untyped-def]
    """Fills pairs (N, 2 K): distinct keys and distinct values. Row n is number start + n of the seed's stream."""
    n_pairs = pairs.shape[1] // 2
    keys, values = np.empty(n_keys, np.int64), np.empty(n_values, np.int64)
    for n in range(begin, end):
        rng = stream(seed, _PAIRS, start + n)
        for i in range(n_keys):
            keys[i] = i
        for i in range(n_values):
            values[i] = n_keys + i
        choose(rng, keys, n_keys, n_pairs)
        choose(rng, values, n_values, n_pairs)
        for i in range(n_pairs):
            pairs[n, 2 * i], pairs[n, 2 * i + 1] = keys[i], values[i]


@njit(cache=True, nogil=True)
def _fill_slots(begin, end, seed, places, weights, n_pairs, n_queries, tokens):  # type: ignore[no-untyped-def]
    """Writes pairs of tokens (N, L) into slots. Row n is number places[n] of the seed's stream."""
    left = np.empty(len(weights), np.int64)
    for n in range(begin, end):
        rng = stream(seed, _SLOTS, places[n])
        left[:] = weights
        total = left.sum()
        for _ in range(n_queries):
            drawn, slot = below(rng, total), 0
            while drawn >= left[slot]:
                drawn -= left[slot]
                slot += 1
            total -= left[slot]
            left[slot] = 0
            at, pair = 2 * (n_pairs + slot), 2 * below(rng, n_pairs)
            tokens[n, at], tokens[n, at + 1] = tokens[n, pair], tokens[n, pair + 1]
