"""Selective copying: symbols among blanks, to be written down in order, without the blanks.

An instance has a few symbols at random places among blanks. A token says that the copy begins. Then the symbols follow in order,
and these are scored:

    . b . . a . b d .  >  b a b d

The symbols are uniform. By default the places are uniform over all sets of places. The task is from *Mamba* (Gu and Dao 2023,
arXiv:2312.00752), and part of the MAD suite (Poli et al. 2024, arXiv:2403.17844).

Differences from the code of MAD:
- There a model reads blanks while it writes the copy. Here a predictor sees every earlier token, so it sees what it has copied
  already. It still has to know how far it is, as symbols repeat.
- There each blank stands before a symbol that is drawn uniformly, so that gaps are nearly alike and none follows the last symbol:
  `places="before_symbols"`. With the defaults a gap then has a standard deviation of 3.6 blanks in the place of 12.7.

With `one_vector` a model sees nothing while it writes. It has to write the whole copy from one vector: its output at the token
that begins the copy. Without blanks this is the *compression* task of the MAD suite:

    b a b d  >  b a b d

All architectures have the same decoder for it. `regbench.models.bottleneck` says how it differs from MAD's. Another difference:
there 31 of 15 symbols are written, and the last one is always the token that begins the copy.
"""

from __future__ import annotations

import string
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, stream
from regbench.tasks import base as task
from regbench.tasks._drawn import DrawnTask
from regbench.utils.arrays import IntArray

_COPIES = 18  # the stream's purpose


class SelectiveCopyingParameters(task.Parameters):
    """The parameters of `selective_copying`. The defaults are those of the MAD suite."""

    n_symbols: int = pydantic.Field(default=14, ge=2, le=8192)  # the number of different symbols
    n_copied: int = pydantic.Field(default=16, ge=1)  # symbols to be copied
    # tokens in an instance: the places, the token that begins the copy, and the copy
    length: int = pydantic.Field(default=256, ge=3, le=65536)
    one_vector: bool = False  # whether a model has to write the copy from one vector
    # of the symbols: anywhere, or as MAD has them, each blank before one of the symbols
    places: Literal["anywhere", "before_symbols"] = "anywhere"

    @property
    def n_places(self) -> int:
        """Places for the symbols, before the copy begins."""
        return self.length - self.n_copied - 1

    @pydantic.model_validator(mode="after")
    def _there_is_room(self) -> Self:
        if self.n_places < self.n_copied:
            raise ValueError(
                f"length ({self.length}) is too short: {self.n_copied} symbols and their copy take {2 * self.n_copied + 1}"
            )
        return self


class SelectiveCopying(DrawnTask):
    """Symbols that have to be copied from among blanks; see the module."""

    Parameters = SelectiveCopyingParameters
    version = 1
    main_score = "token_accuracy"
    scores = ("token_accuracy", "nll")
    progress_label = "symbols copied before"
    parameters: SelectiveCopyingParameters

    @cached_property
    def io(self) -> task.TokenIO:
        """The symbols, the blank, the token that begins the copy, and the separator."""
        n, begins = self.parameters.n_symbols, self.parameters.n_symbols + 1
        symbols = string.ascii_lowercase[:n] if n <= 26 else tuple(f"s{i}" for i in range(n))
        bottleneck = begins if self.parameters.one_vector else None
        return task.TokenIO.of((*symbols, ".", ">", "|"), self.parameters.length, bottleneck)

    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        p = self.parameters
        return self._filled(n, p.length, _sample, seed, start, p.n_symbols, p.n_copied, p.places == "anywhere")

    def progress(self, instances: Instances) -> IntArray:
        """How many symbols of the copy stand before a position; -1 before the copy."""
        steps = np.arange(instances.tokens.shape[1]) - self.parameters.n_places - 1
        return np.where(instances.scored, steps, -1)


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, start, n_symbols, n_copied, anywhere, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L); see `DrawnTask._draw`."""
    n_places = rows.shape[2] - n_copied - 1
    gaps = np.zeros(n_copied, np.int64)
    for n in range(begin, end):
        rng = stream(seed, _COPIES, start + n)
        if not anywhere:
            for _ in range(n_places - n_copied):
                gaps[below(rng, n_copied)] += 1
        copied = 0
        for t in range(n_places):
            if anywhere:  # each set of places is equally likely
                symbol = below(rng, n_places - t) < n_copied - copied
            else:
                symbol = gaps[copied] == 0
            if symbol:
                drawn, copied = below(rng, n_symbols), copied + 1
                rows[n, 0, t] = rows[n, 0, n_places + copied] = drawn
                rows[n, 1, n_places + copied] = 1 + drawn
            else:
                rows[n, 0, t] = n_symbols
                if not anywhere:
                    gaps[copied] -= 1
        rows[n, 0, n_places] = n_symbols + 1
