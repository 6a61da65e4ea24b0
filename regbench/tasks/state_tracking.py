"""State tracking: a walk through a finite group, whose state is named now and then.

An instance belongs to one group. Its symbols are elements of the group. The state begins at the identity, and each symbol
multiplies it from the right. From time to time the state is named, and the walk goes on from there. With parity, where symbols
and states are 0 and 1 and a named state is written with "=":

    1 1 0 1 =1 0 =1 1 0 =0

Only names of states are scored. A predictor has to compose all symbols since the state was last named. Their number is at least
1. Each name stands at a place that is uniform over the places left in the instance. So a training instance of L tokens has up to
L - 1 symbols in a row. Instances of the test split are longer, and so are their runs of symbols. The main score counts the runs
that are longer than any in training. The curve of accuracy by the number of symbols since the state was named is the result.

The groups:

- parity: 0 and 1, addition modulo 2. zN, for N from 3 to 64: addition modulo N.
- s3, s4, s5: all permutations of 3, 4 or 5 things. a4, a5: the even ones. A5 and S5 are not solvable, so tracking them is
  complete for NC1 (Barrington 1989). Transformers and diagonal linear recurrences of fixed depth cannot (Merrill et al. 2024).
- s3-swaps, s4-swaps, s5-swaps: the same states, but symbols are the identity and the exchanges of two things alone.
- a5-generators, s5-generators: the same states, but there are two symbols, which generate the group: a turn of all five things,
  and one of the first three (A5) or an exchange of the first two (S5).

Symbols are uniform over the elements that the group's name allows. The tasks are those of *The Illusion of State in State-Space
Models* (Merrill, Petty, Sabharwal 2024, arXiv:2404.08819), *Unlocking State-Tracking in Linear RNNs Through Negative
Eigenvalues* (Grazzi et al. 2024, arXiv:2411.12537) and *DeltaProduct* (Siems et al. 2025, arXiv:2502.10297). A linear recurrence
whose transition has only positive real eigenvalues cannot do parity. One delta step can exchange two things; a permutation of n
things can need n - 1 such steps.

Difference from the papers: they ask for the state after every symbol, and never show it. Here a predictor's input has every
token, so a state that is named is known from then on. The number of symbols since then takes the place of the position.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, stream
from regbench.tasks import base as task
from regbench.tasks._drawn import DrawnTask
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import closest, nearest

_WALKS, _TEST_WALKS = 11, 12  # the streams' purposes
_CYCLIC = {"parity": 2, **{f"z{n}": n for n in range(3, 65)}}
_PERMUTATIONS = {"s3": 3, "s4": 4, "s5": 5, "a4": 4, "a5": 5, "s3-swaps": 3, "s4-swaps": 4, "s5-swaps": 5}
_GENERATORS = {"a5-generators": ((1, 2, 3, 4, 0), (1, 2, 0, 3, 4)), "s5-generators": ((1, 2, 3, 4, 0), (1, 0, 2, 3, 4))}
_PERMUTATIONS |= dict.fromkeys(_GENERATORS, 5)
GROUPS = (*_CYCLIC, *_PERMUTATIONS)
"""The names of all groups."""
_LONGER = "Token accuracy of states after more symbols than any stretch in training has"


def check_groups(names: Sequence[str]) -> None:
    """Refuses groups that there are not, or one that is given twice."""
    for name in names:
        if name not in GROUPS:
            known = f"; known: parity, z3 to z64, {', '.join(_PERMUTATIONS)}"
            raise ValueError(f"unknown group '{name}'{nearest(name, GROUPS) if closest(name, GROUPS) else known}")
    if len(set(names)) < len(names):
        raise ValueError(f"a group is given twice: {', '.join(names)}")


class StateTrackingParameters(task.Parameters):
    """The parameters of `state_tracking`. The defaults are those of the small track."""

    # names of groups; see the module. Each instance belongs to one of them, all equally likely.
    groups: tuple[str, ...] = pydantic.Field(default=("parity", "s3", "a4"), min_length=1)
    # tokens in an instance of the training and validation splits
    length: int = pydantic.Field(default=32, ge=2, le=32_768)
    # tokens in an instance of the test split. It is larger.
    test_length: int = pydantic.Field(default=128, ge=3, le=65_536)

    @pydantic.model_validator(mode="after")
    def _groups_exist_and_test_is_longer(self) -> Self:
        check_groups(self.groups)
        if self.test_length <= self.length:
            raise ValueError(
                f"test_length ({self.test_length}) must be larger than length ({self.length}): the score counts longer runs"
            )
        return self


class StateTracking(DrawnTask):
    """States of a walk through a group; see the module.

    The scores depend on the parameters: each group has an accuracy of its own.
    """

    Parameters = StateTrackingParameters
    version = 1
    main_score = "longer_accuracy"
    scores: ClassVar[tuple[str, ...]] = ("longer_accuracy", "token_accuracy", "nll")
    group_scores: ClassVar[dict[str, tuple[str, ...]]] = {
        "longer_accuracy": ("token_accuracy", "longer", "accuracy, longer", f"{_LONGER}.")
    }
    progress_label = "symbols since the state was named"
    test_is_harder = True  # longer walks, which a model may well fail at
    parameters: StateTrackingParameters

    def __init__(self, parameters: StateTrackingParameters) -> None:
        super().__init__(parameters)
        own = {}
        for name in parameters.groups:
            shown = name if name == "parity" else name.capitalize()
            words = (f"accuracy, {shown}", f"{_LONGER}, in {shown}.")
            own[f"{name.replace('-', '_')}_accuracy"] = ("token_accuracy", name, *words)
        self.scores = ("longer_accuracy", *own, "token_accuracy", "nll")  # type: ignore[misc]
        self.group_scores = type(self).group_scores | own  # type: ignore[misc]

    @cached_property
    def _layout(self) -> NDArray[np.int64]:
        """(G, 3): of each group the number of symbols, the number of states, and the token of its first symbol.

        Its states follow its symbols.
        """
        sizes = [group_table(name).shape[::-1] for name in self.parameters.groups]
        first = np.cumsum([0, *(symbols + states for symbols, states in sizes)])[:-1]
        return np.array([(*size, start) for size, start in zip(sizes, first, strict=True)], np.int64)

    @cached_property
    def _tables(self) -> NDArray[np.int64]:
        """(G, most states, most symbols): the state after each state and symbol; -1 where a group has fewer."""
        tables = [group_table(name) for name in self.parameters.groups]
        padded = np.full((len(tables), *np.max([table.shape for table in tables], 0)), -1, np.int64)
        for place, table in zip(padded, tables, strict=True):
            place[: table.shape[0], : table.shape[1]] = table
        return padded

    @cached_property
    def _owner(self) -> NDArray[np.int64]:
        """(V,): the group of each token; of the separator -1."""
        return np.append(np.repeat(np.arange(len(self._layout)), self._layout[:, :2].sum(1)), -1)

    @cached_property
    def io(self) -> task.TokenIO:
        """Of each group its symbols, `s3:213`, and the names of its states, `s3=213`; at the end the separator."""
        names = [name for group in self.parameters.groups for name in group_names(group)]
        return task.TokenIO.of((*names, "|"), self.parameters.test_length)

    def _kinds(self, split: str) -> list[tuple[int, int]]:
        """1 in the test split, whose walks are longer, else 0."""
        return [(int(split == "test"), 1)]

    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        p = self.parameters
        length, purpose = (p.test_length, _TEST_WALKS) if kind else (p.length, _WALKS)
        return self._filled(n, length, _walk, seed, purpose, start, self._layout, self._tables)

    def chance(self, instances: Instances) -> FloatArray:
        """All states of a group are equally likely."""
        return 1.0 / self._layout[self._owner[instances.tokens], 1]

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`longer`: states after more symbols than any run in training has. By the name of each group: those of that group."""
        longer = self.progress(instances) >= self.parameters.length
        of = self._owner[instances.tokens]
        return {"longer": longer} | {name: longer & (of == i) for i, name in enumerate(self.parameters.groups)}

    def progress(self, instances: Instances) -> IntArray:
        """The number of symbols since the state was named or the walk began; -1 where no state is named."""
        place = np.arange(instances.tokens.shape[1])
        named = np.maximum.accumulate(np.where(instances.scored, place, -1), axis=1)
        before = np.pad(named, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        return np.where(instances.scored, place - before - 1, -1)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds how often a state is named in an instance, the mean number of symbols before, and the share beyond training."""
        since = self.progress(instances)[instances.scored]
        return super().statistics(instances) | {
            "named_states": len(since) / len(instances),
            "mean_symbols": float(since.mean()),
            "longer_share": float((since >= self.parameters.length).mean()),
        }


def _permutations(name: str) -> list[tuple[int, ...]]:
    """The permutations that are a group's elements, in lexicographic order. The first is the identity."""
    every = list(itertools.permutations(range(_PERMUTATIONS[name])))
    even = (p for p in every if sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0)  # inversions
    return list(even) if name.startswith("a") else every


def _elements(name: str) -> list[str]:
    """How the elements of a group are written."""
    if name in _CYCLIC:
        return [str(n) for n in range(_CYCLIC[name])]
    return ["".join(str(i + 1) for i in p) for p in _permutations(name)]


def _symbols(name: str) -> list[int]:
    """The numbers of the elements that are symbols: all, the generators, or for "-swaps" those that move two things or none."""
    if name in _GENERATORS:
        return [_permutations(name).index(p) for p in _GENERATORS[name]]
    if not name.endswith("-swaps"):
        return list(range(len(_elements(name))))
    return [i for i, p in enumerate(_permutations(name)) if sum(a != b for a, b in enumerate(p)) <= 2]


def group_names(group: str) -> list[str]:
    """How the tokens of a group are written: its symbols, then its states."""
    elements = _elements(group)
    return [*(f"{group}:{elements[symbol]}" for symbol in _symbols(group)), *(f"{group}={one}" for one in elements)]


def group_table(name: str) -> NDArray[np.int64]:
    """The state after each state and symbol, as numbers: (states, symbols). State 0 is the identity.

    A permutation tells the place of each thing: in "231" thing 1 is at place 2. As a symbol it takes the thing at place i to
    place p(i).
    """
    if name in _CYCLIC:
        n = _CYCLIC[name]
        return (np.arange(n)[:, None] + np.arange(n)) % n
    elements = _permutations(name)
    number = {p: i for i, p in enumerate(elements)}
    symbols = [elements[i] for i in _symbols(name)]
    return np.array([[number[tuple(p[i] for i in s)] for p in symbols] for s in elements], np.int64)


@njit(cache=True, nogil=True)
def _walk(begin, end, seed, purpose, start, layout, tables, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L); see `DrawnTask._draw`."""
    length = rows.shape[2]
    for n in range(begin, end):
        rng = stream(seed, purpose, start + n)
        group = below(rng, len(layout))
        n_symbols, first = layout[group, 0], layout[group, 2]
        state, t = 0, 0
        while t < length:
            left = length - t
            symbols = 1 + below(rng, left - 1) if left > 1 else 1
            for _ in range(symbols):
                symbol = below(rng, n_symbols)
                state = tables[group, state, symbol]
                rows[n, 0, t] = first + symbol
                t += 1
            if t < length:
                rows[n, 0, t] = first + n_symbols + state
                rows[n, 1, t] = 1 + first + n_symbols + state
                t += 1
