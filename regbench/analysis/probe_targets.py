"""What probes are asked for: n-gram counts, frequencies and existence, and whether two states are one (ICLL Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from regbench.analysis.key_sets import first_position, hidden_states_of
from regbench.data.instances import Instances
from regbench.models.model import shift_in
from regbench.ops.ngram_counts import ngram_counts
from regbench.utils.arrays import FloatArray, IntArray

ORDERS = 3
"""The longest n-grams."""
A_INSTANCE = 12
"""Samples of each instance, and target."""
_COUNTS_BYTES = 64 << 20


@dataclass(frozen=True)
class Target:
    """Something that a probe predicts."""

    what: str  # "counts", "frequencies", "existence" or "state"
    order: int  # n of the n-gram; 0 for states

    @property
    def name(self) -> str:
        """Such as "frequency-2" or "state"."""
        short = {"counts": "count", "frequencies": "frequency", "existence": "existence", "state": "state"}[self.what]
        return f"{short}-{self.order}" if self.order else short

    @property
    def classifies(self) -> bool:
        """Whether it is yes or no."""
        return self.what in ("existence", "state")


@dataclass(frozen=True)
class Samples:
    """Samples of one sort, S of them."""

    row: IntArray  # the instance, (S,)
    place: IntArray  # the position, (S,)
    other: IntArray  # A second position of the same instance, (S,), for state equivalence; else the first again
    query: IntArray  # the n-gram that is asked about: the last n - 1 tokens and c, (S, n). Of states (S, 0)
    values: dict[str, FloatArray]  # by `Target.what` the exact targets, (S,)
    tokens: IntArray  # the last three tokens read at `place` and at `other`, (S, 6)
    counts: NDArray[np.int32]  # the true n-gram counts at `place` and at `other`, (S, 2, 3, V)
    # another instance that is long enough, whose state at the same place the "shuffled" control reads, (S,)
    stranger: IntArray
    unit: NDArray[np.integer]  # what errors are over: the instance, or the problem that instances share, (S,)

    def __len__(self) -> int:
        return len(self.row)


def read_inputs(instances: Instances, separator: int) -> IntArray:
    """What a model reads, (N, L): a separator, then every token but the last."""
    shifted: IntArray = shift_in(torch.from_numpy(instances.tokens.astype(np.int64)), separator).numpy()
    return shifted


def ngram_samples(
    instances: Instances, separator: int, vocab_size: int, order: int, existence: bool, generator: np.random.Generator
) -> Samples:
    """Samples for the n-gram probes (ICLL Appendix E.1): places at random, and a query for each.

    For counts and frequencies c has followed the last n - 1 tokens, and is drawn in proportion to how often. For existence this
    is so for half of the samples. For the others c is a symbol that has occurred, but never there. Places where one of the two
    is impossible have the other. Neither c nor the tokens before it are separators.
    """
    inputs, first = read_inputs(instances, separator), first_position(instances)
    step = max(1, _COUNTS_BYTES // (4 * inputs.shape[1] * ORDERS * vocab_size))
    parts: list[Samples] = []
    for start in range(0, len(instances), step):
        own, lengths = inputs[start : start + step], np.asarray(instances.lengths[start : start + step])
        counts = ngram_counts(torch.from_numpy(own), ORDERS, vocab_size).numpy()
        symbols = np.arange(vocab_size) != separator
        there = counts[:, :, order - 1] * symbols
        possible = there.sum(-1) > 0
        if existence:
            absent = (counts[:, :, 0] > 0) & (there == 0) & symbols
            possible |= absent.any(-1)
        steps = np.arange(own.shape[1])
        possible &= (steps >= first) & (steps < lengths[:, None])
        for back in range(order - 1):
            possible[:, back:] &= own[:, : own.shape[1] - back] != separator
        row, place = _draw_places(possible, generator)
        weights = there[row, place].astype(np.float64)
        if existence:
            spare = absent[row, place]
            negative = generator.random(len(row)) < 0.5
            negative = np.where(weights.sum(-1) == 0, True, negative & spare.any(-1))
            weights = np.where(negative[:, None], spare, weights)
        c = _draw_columns(weights, generator)
        total = counts[row, place, order - 1]
        true = total[np.arange(len(c)), c].astype(np.float64)
        values = (
            {"existence": (true > 0).astype(np.float64)}
            if existence
            else {"counts": true, "frequencies": true / total.sum(-1)}
        )
        context = np.stack([own[row, place - back] for back in range(order - 2, -1, -1)] + [c], axis=1)
        both = np.repeat(counts[row, place][:, None], 2, axis=1)
        parts.append(
            Samples(
                row + start, place, place, context, values, _last(own, row, place, place, separator), both, row, row
            )
        )
    return _joined(parts, instances, generator)


def state_samples(
    instances: Instances, separator: int, vocab_size: int, generator: np.random.Generator
) -> Samples | None:
    """Samples for state equivalence (ICLL Appendix E.2): two places of one instance.

    Half of them are drawn among places of one state, the others at random, and these may be of one state too.

    None if the task has no states.
    """
    known = hidden_states_of(instances)
    if known is None:
        return None
    states = known.numpy()
    inputs, first = read_inputs(instances, separator), first_position(instances)
    steps = np.arange(inputs.shape[1])
    possible = (steps >= first) & (states >= 0)
    possible &= possible.sum(-1, keepdims=True) > 1
    row, place = _draw_places(possible, generator)
    elsewhere = possible[row] & (steps != place[:, None])
    alike = elsewhere & (states[row] == states[row, place][:, None])
    forced = (generator.random(len(row)) < 0.5) & alike.any(-1)
    other = _draw_columns(np.where(forced[:, None], alike, elsewhere).astype(np.float64), generator)
    counts = np.zeros((len(row), 2, ORDERS, vocab_size), np.int32)
    step = max(1, _COUNTS_BYTES // (4 * inputs.shape[1] * ORDERS * vocab_size))
    for start in range(0, len(instances), step):
        some = ngram_counts(torch.from_numpy(inputs[start : start + step]), ORDERS, vocab_size).numpy()
        mine = np.flatnonzero((row >= start) & (row < start + step))
        counts[mine, 0] = some[row[mine] - start, place[mine]]
        counts[mine, 1] = some[row[mine] - start, other[mine]]
    values = {"state": (states[row, place] == states[row, other]).astype(np.float64)}
    query = np.zeros((len(row), 0), np.int64)
    part = Samples(row, place, other, query, values, _last(inputs, row, place, other, separator), counts, row, row)
    return _joined([part], instances, generator)


def _draw_places(possible: NDArray[np.bool_], generator: np.random.Generator) -> tuple[IntArray, IntArray]:
    """`A_INSTANCE` of the possible positions of each row that has any, with repetition: (B, L) -> rows and positions."""
    row = np.repeat(np.flatnonzero(possible.any(-1)), A_INSTANCE)
    return row, _draw_columns(possible[row].astype(np.float64), generator)


def _draw_columns(weights: FloatArray, generator: np.random.Generator) -> IntArray:
    """A column of each row, in proportion to its weight: (S, K) -> (S,)."""
    total = weights.cumsum(-1)
    mark = generator.random((len(weights), 1)) * total[:, -1:]
    columns: IntArray = (total > mark).argmax(-1)
    return columns


def _last(inputs: IntArray, row: IntArray, place: IntArray, other: IntArray, separator: int) -> IntArray:
    """The last three tokens read at both places, (S, 6); separators before the first."""
    columns = []
    for at in (place, other):
        for back in range(3):
            columns.append(np.where(at >= back, inputs[row, np.maximum(at - back, 0)], separator))
    return np.stack(columns, axis=1)


def _joined(parts: list[Samples], instances: Instances, generator: np.random.Generator) -> Samples:
    """All samples of a split, each with another instance that is as long as its places."""
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("row", "place", "other", "query", "tokens", "counts")
    }
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    lengths = np.asarray(instances.lengths)
    by_length, row = np.argsort(-lengths, kind="stable"), joined["row"]
    furthest = np.maximum(joined["place"], joined["other"])
    enough = np.searchsorted(-lengths[by_length], -furthest, side="left")  # how many instances are longer
    drawn = (generator.random(len(row)) * enough).astype(np.int64)
    stranger = by_length[drawn]
    again = by_length[(drawn + 1) % np.maximum(enough, 1)]  # the next, where an instance has drawn itself
    stranger = np.where(stranger == row, again, stranger)
    return Samples(**joined, values=values, stranger=stranger, unit=instances.units(row))
