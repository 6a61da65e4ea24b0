"""State tracking by the number of steps: a walk through a finite group, whose state is asked for at every step and never shown.

An instance belongs to one group. Its symbols are elements of the group. The state begins at the identity, and each symbol
multiplies it from the right. Behind each symbol stands a blank, whose answer is the state. With parity:

    1 ? 1 ? 0 ? 1 ?        the answers are 1, 0, 0, 1

An instance of training has as many steps as the largest trained size, one of the test split as many as the largest of all. A
step counts for the smallest size that is not below its number. The groups are those of `state_tracking`. The form, with the state
asked for after every symbol, is that of Merrill et al. (2024, arXiv:2404.08819), Grazzi et al. (2024, arXiv:2411.12537) and Siems
et al. (2025, arXiv:2502.10297).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, stream
from regbench.tasks import base as task
from regbench.tasks._reach import DrawnReachTask, ReachParameters, Size, Sizes
from regbench.tasks.state_tracking import check_groups, group_names, group_table
from regbench.utils.arrays import FloatArray, IntArray

_STEPS = 24  # the stream's purpose


class StateWalkParameters(ReachParameters):
    """The parameters of `state_walk`; a size is a number of steps."""

    sizes: Sizes = (1, 2, 4, 8, 16, 32)
    beyond: tuple[Size, ...] = (64, 128, 256)
    # names of groups. Each instance belongs to one of them, all equally often.
    groups: tuple[str, ...] = pydantic.Field(default=("parity", "s3", "a4", "a5-generators"), min_length=1)

    @pydantic.model_validator(mode="after")
    def _groups_exist(self) -> Self:
        check_groups(self.groups)
        if self.shares:
            raise ValueError("a walk has every size up to its length, so there are no shares")
        return self


class StateWalk(DrawnReachTask):
    """States of a walk through a group; see the module. Each group has an area of its own."""

    Parameters = StateWalkParameters
    version = 1
    progress_label = "steps"
    hides = True
    parameters: StateWalkParameters

    def __init__(self, parameters: StateWalkParameters) -> None:
        super().__init__(parameters)
        own = {f"{name.replace('-', '_')}_area": ("area", name) for name in parameters.groups}
        own = own if len(own) > 1 else {}
        self.scores: ClassVar = ("area", *own, "token_accuracy", "nll")  # type: ignore[misc]
        self.group_scores: ClassVar = dict(sorted(own.items()))  # type: ignore[misc]

    @cached_property
    def _tables(self) -> list[NDArray[np.int64]]:
        return [group_table(name) for name in self.parameters.groups]

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """Of each group the token of its first symbol, and at the end that of the blank. States follow the symbols."""
        return np.cumsum([0, *(sum(table.shape) for table in self._tables)])

    @cached_property
    def io(self) -> task.TokenIO:
        """Of each group its symbols, `s3:213`, and the names of its states, `s3=213`; then the blank and the separator."""
        names = (*(name for group in self.parameters.groups for name in group_names(group)), "?", "|")
        return task.TokenIO.of(names, 2 * self.parameters.tested[-1])

    def _kinds(self, split: str) -> list[tuple[int, int]]:
        """Groups; those of the test split, whose walks are longer, are numbered on."""
        n = len(self._tables)
        return [(group + n * (split == "test"), 1) for group in range(n)]

    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        p, (long, group) = self.parameters, divmod(kind, len(self._tables))
        length = 2 * (p.tested if long else p.sizes)[-1]
        walk = (self._tables[group], int(self._first[group]), int(self._first[-1]))
        return self._filled(n, length, _fill, seed, (kind << 32) + start, *walk)

    def _group(self, instances: Instances) -> IntArray:
        """The number of the group of each instance, (N,)."""
        return instances.truth["kind"] % len(self._tables)

    def progress(self, instances: Instances) -> IntArray:
        """The size that each step counts for, -1 where nothing is scored."""
        return self._smallest_size((np.arange(instances.scored.shape[1]) + 1) // 2, instances)

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """By the name of each group its instances."""
        of = np.broadcast_to(self._group(instances)[:, None], instances.scored.shape)
        return {name: of == i for i, name in enumerate(self.parameters.groups)}

    @cached_property
    def _most_likely(self) -> FloatArray:
        """(G, steps): how likely the most likely state is after each step, if no symbol was read."""
        found = np.empty((len(self._tables), self.parameters.tested[-1]))
        for likely, table in zip(found, self._tables, strict=True):
            state = np.eye(len(table))[0]
            for step in range(len(likely)):
                state = np.bincount(table.ravel(), np.repeat(state / table.shape[1], table.shape[1]), len(table))
                likely[step] = state.max()
        return found

    def chance(self, instances: Instances) -> FloatArray:
        """The most likely state at each step: one of all, or of those that a few symbols can reach."""
        step = np.arange(instances.scored.shape[1]) // 2
        return self._most_likely[self._group(instances)][:, step]


@njit(cache=True, nogil=True)
def _fill(begin, end, seed, start, table, first, blank, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L); see `DrawnReachTask._draw`."""
    n_symbols = table.shape[1]
    for n in range(begin, end):
        rng, state = stream(seed, _STEPS, start + n), 0
        for step in range(rows.shape[2] // 2):
            symbol = below(rng, n_symbols)
            state = table[state, symbol]
            rows[n, 0, 2 * step], rows[n, 0, 2 * step + 1] = first + symbol, blank
            rows[n, 1, 2 * step + 1] = 1 + first + n_symbols + state
