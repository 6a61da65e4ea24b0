"""Copying of a string by its length: symbols are shown once, and then have to be repeated.

    b a d c > b a d c        the four symbols behind the sign > are scored

Symbols are uniform, so they may repeat. An answer is shown after it was asked for, as when a language model writes. With `hidden`
a blank stands in the place of each answer, and what was copied so far has to be counted.

The task is that of *Repeat After Me* (Jelassi et al. 2024, arXiv:2402.01032, section 3): a transformer can copy strings whose
length is exponential in its size, and a model whose state has b bits about b bits.
"""

from __future__ import annotations

import string
from functools import cached_property
from typing import Any

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, stream
from regbench.tasks import base as task
from regbench.tasks._reach import DrawnReachTask, ReachParameters, Size, Sizes
from regbench.utils.arrays import FloatArray

_STRING = 22  # the stream's purpose


class CopyingParameters(ReachParameters):
    """The parameters of `copying`; a size is a number of symbols to repeat."""

    sizes: Sizes = (4, 8, 16, 32, 64)
    beyond: tuple[Size, ...] = (128, 256)
    # symbols that there are. The default is the paper's: the letters.
    n_symbols: int = pydantic.Field(default=26, ge=2, le=16_384)
    hidden: bool = False  # whether answers are not shown


class Copying(DrawnReachTask):
    """Strings that have to be repeated; see the module."""

    Parameters = CopyingParameters
    version = 1
    progress_label = "symbols"
    parameters: CopyingParameters

    def __init__(self, parameters: CopyingParameters) -> None:
        super().__init__(parameters)
        self.hides = parameters.hidden  # type: ignore[misc]

    @cached_property
    def io(self) -> task.TokenIO:
        """The symbols, the sign that begins the copy, the blank and the separator."""
        n = self.parameters.n_symbols
        letters = string.ascii_lowercase[:n] if n <= 26 else tuple(f"s{i}" for i in range(n))
        return task.TokenIO.of((*letters, ">", "?", "|"), 2 * self.parameters.tested[-1] + 1)

    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        p = self.parameters
        return self._filled(n, 2 * kind + 1, _fill, seed, start, p.n_symbols, p.hidden)

    def chance(self, instances: Instances) -> FloatArray:
        """One symbol of all."""
        return np.full(instances.scored.shape, 1.0 / self.parameters.n_symbols)


@njit(cache=True, nogil=True)
def _fill(begin, end, seed, start, n_symbols, hidden, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L); see `DrawnReachTask._draw`."""
    size = rows.shape[2] // 2
    for n in range(begin, end):
        rng = stream(seed, _STRING, (size << 32) + start + n)
        rows[n, 0, size] = n_symbols
        for i in range(size):
            symbol, at = below(rng, n_symbols), size + 1 + i
            rows[n, 0, i] = symbol
            rows[n, 0, at], rows[n, 1, at] = n_symbols + 1 if hidden else symbol, 1 + symbol
