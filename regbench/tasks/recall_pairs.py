"""Recall by the number of pairs: how many keys with their values a model keeps, where every answer stays hidden.

An instance shows s pairs of a key and its value, s being its size, and then asks for the values of keys. In the place of each
answer stands a blank, so that no predictor ever sees it. With two pairs and three questions:

    d 4 a 1   a ? d ? d ?        the answers are 1, 4, 4

Keys are drawn without replacement, values with it. Questions go through all keys in random order, and then again in another
order; with as many questions as pairs each key is asked once. This is the task of *Zoology* (Arora et al. 2023, arXiv:2312.04927,
section 4) with uniform gaps, without blanks between questions, and with values that may repeat. A model whose state has a fixed
size can hold a fixed number of pairs (*Based*, Arora et al. 2024, arXiv:2402.18668, Figure 2).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, choose, stream
from regbench.tasks import base as task
from regbench.tasks._reach import DrawnReachTask, ReachParameters, Size, Sizes
from regbench.utils.arrays import FloatArray

_PAIRS = 21  # the stream's purpose


class RecallPairsParameters(ReachParameters):
    """The parameters of `recall_pairs`; a size is a number of pairs."""

    sizes: Sizes = (2, 4, 8, 16, 32, 64)
    beyond: tuple[Size, ...] = (96, 192)
    n_keys: int = pydantic.Field(default=192, ge=2, le=16_384)  # keys that there are
    n_values: int = pydantic.Field(default=32, ge=2, le=16_384)  # values that there are
    n_questions: int = pydantic.Field(default=64, ge=1, le=16_384)  # questions in an instance

    @pydantic.model_validator(mode="after")
    def _there_are_enough(self) -> Self:
        if self.tested[-1] > self.n_keys:
            raise ValueError(f"{self.tested[-1]} pairs need as many keys; n_keys is {self.n_keys}")
        return self


class RecallPairs(DrawnReachTask):
    """Values that are asked for by their keys; see the module."""

    Parameters = RecallPairsParameters
    version = 1
    progress_label = "pairs"
    hides = True
    parameters: RecallPairsParameters

    @cached_property
    def io(self) -> task.TokenIO:
        """Keys k0, k1, ..., values v0, v1, ..., the blank and the separator."""
        p = self.parameters
        names = (*(f"k{i}" for i in range(p.n_keys)), *(f"v{i}" for i in range(p.n_values)), "?", "|")
        return task.TokenIO.of(names, 2 * (p.tested[-1] + p.n_questions))

    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        p = self.parameters
        return self._filled(n, 2 * (kind + p.n_questions), _fill, seed, start, kind, p.n_keys, p.n_values)

    def chance(self, instances: Instances) -> FloatArray:
        """One value of all."""
        return np.full(instances.scored.shape, 1.0 / self.parameters.n_values)


@njit(cache=True, nogil=True)
def _fill(begin, end, seed, start, n_pairs, n_keys, n_values, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L); see `DrawnReachTask._draw`."""
    blank, n_questions = n_keys + n_values, rows.shape[2] // 2 - n_pairs
    keys, order = np.empty(n_keys, np.int64), np.arange(n_pairs)
    for n in range(begin, end):
        rng = stream(seed, _PAIRS, (n_pairs << 32) + start + n)
        for i in range(n_keys):
            keys[i] = i
        choose(rng, keys, n_keys, n_pairs)
        for i in range(n_pairs):
            rows[n, 0, 2 * i], rows[n, 0, 2 * i + 1] = keys[i], n_keys + below(rng, n_values)
        for q in range(n_questions):
            if q % n_pairs == 0:
                for i in range(n_pairs):
                    order[i] = i
                choose(rng, order, n_pairs, n_pairs)
            pair, at = order[q % n_pairs], 2 * (n_pairs + q)
            rows[n, 0, at], rows[n, 0, at + 1] = keys[pair], blank
            rows[n, 1, at + 1] = 1 + rows[n, 0, 2 * pair + 1]
