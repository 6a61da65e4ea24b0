"""Associative recall: pairs of a key and its value; at the end the value of one key is asked for (ICLL section 4.1).

Every instance draws a value for each key and keeps it. It shows the pairs of random keys. Then follow a query token, one of the
keys that occurred, and its value. With three keys and the values a = 1, b = 0 and c = 1:

    a 1 c 1 a 1 a 1 c 1 ? c 1

Here b does not occur, and a and c have the same value. A predictor has to remember: a key always has the same value. The values
whose key has occurred before are scored, the last value among them. In the example these are the second and the third value of
a, and the second and the third of c. Keys, the values of new keys and the query are random. Models are trained on scored tokens,
so on none of these. The main score is that of the papers, over the last value alone.

The task is from *Hyena Hierarchy* (Poli et al. 2023, arXiv:2302.10866), as in its released code, but that code trains on all
tokens. Its vocabulary counts two special tokens, so the 40 of ICLL are 19 keys, 19 values and these. Its instances do not use the
second. Our separator, which begins every model's input, takes its place.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, stream
from regbench.tasks import base as task
from regbench.tasks._drawn import CertainTask, first_distinct
from regbench.tasks._occurrences import occurrences
from regbench.utils import threads
from regbench.utils.arrays import IntArray

_VALUES, _PAIRS = 6, 7  # the streams' purposes


class AssociativeRecallParameters(task.Parameters):
    """The parameters of `associative_recall`. The defaults are the paper's."""

    n_keys: int = pydantic.Field(default=19, ge=2, le=4096)  # the number of keys
    n_values: int = pydantic.Field(default=19, ge=2, le=4096)  # the number of values
    n_pairs: int = pydantic.Field(default=191, ge=1, le=32_768)  # pairs before the query


class AssociativeRecall(CertainTask):
    """Values that have to be remembered by their keys; see the module."""

    Parameters = AssociativeRecallParameters
    version = 1
    main_score = "final_accuracy"
    scores = ("final_accuracy", "token_accuracy", "nll")
    group_scores: ClassVar[dict[str, tuple[str, ...]]] = {
        "final_accuracy": (
            "token_accuracy",
            "final",
            "accuracy, last value",
            "Token accuracy of the last value alone, the one after the query (ICLL Figure 3a).",
        )
    }
    progress_label = "pairs since the key last occurred"
    parameters: AssociativeRecallParameters

    @cached_property
    def io(self) -> task.TokenIO:
        """Keys, values, the query and the separator. The default has 40 tokens, as in the paper."""
        p = self.parameters
        names = (*map(_letters, range(p.n_keys)), *map(str, range(p.n_values)), "?", "|")
        return task.TokenIO.of(names, 2 * p.n_pairs + 3)

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. No two instances of any splits have the same map from keys to values."""
        p, first = self.parameters, splits.first(split)

        def draw(start: int, n: int) -> NDArray[Any]:
            values = np.empty((n, p.n_keys), np.min_scalar_type(self.io.separator))
            threads.share(_draw_values, n, splits.seed, start, p.n_values, values)
            return values

        # Of each map the token of each key's value, (K,).
        values, places = (found[first:] for found in first_distinct(draw, "maps", first + splits.size(split)))
        tokens = np.empty((len(values), self.io.max_length), values.dtype)
        threads.share(_sample, len(values), splits.seed, places, values, self.io.separator - 1, tokens)
        scored = self._distances(tokens) >= 0
        return Instances.unpadded(tokens, scored, f"associative_recall/{self.version}", {"values": values})

    def _distances(self, tokens: NDArray[Any]) -> NDArray[np.int32]:
        """(N, L): at each value whose key has occurred, the number of pairs since then; -1 elsewhere."""
        last, query = occurrences(tokens, self.io.vocab_size)[0][:, :-1], self.io.max_length - 3
        key = np.arange(last.shape[1])
        pairs = (key - (key > query)) // 2  # the query is one token before the last pair
        distances = np.full(tokens.shape, -1, np.int32)
        distances[:, 1:] = np.where((tokens[:, :-1] < self.parameters.n_keys) & (last >= 0), pairs - last // 2 - 1, -1)
        return distances

    def identities(self, instances: Instances) -> list[bytes]:
        """The map of each instance."""
        return [values.tobytes() for values in instances.truth["values"]]

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`final`: the value after the query, as in ICLL Figure 3(a)."""
        last = np.arange(instances.tokens.shape[1]) == self.io.max_length - 1
        return {"final": np.broadcast_to(last, instances.tokens.shape)}

    def progress(self, instances: Instances) -> IntArray:
        """The number of pairs since the key last occurred, from 0; -1 where nothing is scored.

        So a curve shows for how long a model remembers. With K keys a share (1 - 1 / K)^d of distances is d or more. A curve ends
        where too few are left: in the paper's setting after about 50 of 190 pairs.
        """
        return self._distances(instances.tokens)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds the mean number of different keys, the share of values that are scored, and mean distances in pairs."""
        distances = self._distances(instances.tokens)
        all_values, scored = self.parameters.n_pairs + 1, instances.scored.sum(1)
        return super().statistics(instances) | {
            "keys_shown": float((all_values - scored).mean()),
            "recalled_values": float(scored.mean() / all_values),
            "mean_distance": float(distances[instances.scored].mean()),
            "mean_final_distance": float(distances[:, -1].mean()),
        }


def _letters(number: int) -> str:
    """0 -> a, 25 -> z, 26 -> aa, 27 -> ab, ..."""
    rest, letter = divmod(number, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("a") + letter)


@njit(cache=True, nogil=True)
def _draw_values(begin, end, seed, start, n_values, values):  # type: ignore[no-untyped-def]
    """Fills values (N, K) with the token of each key's value. Row n is number start + n of the seed's stream."""
    n_keys = values.shape[1]
    for n in range(begin, end):
        rng = stream(seed, _VALUES, start + n)
        for key in range(n_keys):
            values[n, key] = n_keys + below(rng, n_values)


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, places, values, query, tokens):  # type: ignore[no-untyped-def]
    """Fills tokens (N, L) from the values (N, K) at the places (N,) of the seed's stream."""
    n_keys, last = values.shape[1], tokens.shape[1] - 3
    shown = np.empty(n_keys, np.int64)
    for n in range(begin, end):
        rng = stream(seed, _PAIRS, places[n])
        is_new, n_shown = np.ones(n_keys, np.bool_), 0
        for t in range(0, last, 2):
            key = below(rng, n_keys)
            tokens[n, t], tokens[n, t + 1] = key, values[n, key]
            if is_new[key]:
                is_new[key], shown[n_shown] = False, key
                n_shown += 1
        key = shown[below(rng, n_shown)]
        tokens[n, last], tokens[n, last + 1], tokens[n, last + 2] = query, key, values[n, key]
