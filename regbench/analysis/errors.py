"""Where a predictor errs: on automata by state and kind of error, on other tokens by what followed the same tokens before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.metrics.metric import Rows, TokenPrediction, computed, score_positions
from regbench.metrics.scores import mean_over
from regbench.results import ScoreRecord
from regbench.tasks.base import TokenIO
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError
from regbench.utils.files import write_rows

LEAST_POSITIONS, LEAST_INSTANCES = 50, 10
"""A bin with fewer of either is left out."""
SCORES = ("tvd", "legal_accuracy", "nll")
"""Of automata. The first is what tables show by default."""
TOKEN_SCORES = ("nll", "token_accuracy")
"""Of other tokens."""
FEATURES = {
    "branching": "edges of the state",
    "visits": "earlier visits of it",
    "suffix": "last tokens that tell it",
    "edge": "the edge that follows",
    "place": "symbols of the string before",
    "position": "tokens before",
    "context-1": "followed the last token",
    "context-2": "followed the last 2",
    "context-3": "followed the last 3",
}
"""What positions are sorted by, and what its bins count."""
CONTEXTS = (1, 2, 3)
FOLLOWED = ("nothing yet", "others alone", "this token")
"""What has followed the last n tokens before: they are new, or other tokens alone, or the token that follows now among them."""
RANGES = ("0", "1", "2", "3-4", "5-8", "9+")
ILLEGAL = ("never seen", "fits the last two", "fits the last", "other")
"""What an illegal most likely token is. It has not occurred in the instance; or it is legal in another state that the last two
tokens, or the last one alone, lead to; or it is something else."""


@dataclass(frozen=True)
class Positions:
    """The P scored positions of a split, in the order of `np.nonzero(scored)`."""

    row: IntArray  # the instance of each, (P,), or its problem where instances share problems
    tokens: IntArray  # the token at each, (P,)
    bins: Mapping[str, NDArray[np.str_]]  # by feature the label of each position's bin, (P,)
    orders: Mapping[str, Sequence[str]]  # by feature its labels in order


@dataclass(frozen=True)
class StatePositions(Positions):
    """The P scored positions of automata."""

    allowed: NDArray[np.bool_]  # which tokens are legal there, (P, V) bool
    seen: NDArray[np.bool_]  # which tokens have occurred before in the instance, (P, V) bool
    # for the last one and the last two tokens, which tokens are legal in any state that these lead to, (P, V) bool
    fits: Mapping[int, NDArray[np.bool_]]


Predicted = TypeVar("Predicted")
Sorted = TypeVar("Sorted", bound=Positions)


@dataclass(frozen=True)
class Bin:
    """The scores of some positions."""

    feature: str  # what positions are sorted by
    label: str  # which of them these are
    positions: int  # how many
    # by predictor and score, the mean with its standard error over instances
    scores: Mapping[str, Mapping[str, ScoreRecord]]


def has_states(track: Track) -> bool:
    """Whether a track is one of automata, of which every allowed symbol is as likely as the others."""
    if track.task.io.kind != "tokens":
        raise UserError(f"errors are sorted by tokens, and {track.name} is of vectors")
    some = track.instances("validation")[:1]
    tables, states = some.truth.get("transitions"), some.truth_at.get("state")
    if not track.task.knows_truth or tables is None or states is None:
        return False
    if {tables.dtype.kind, states.dtype.kind} - {"i", "u"} or (tables.ndim, states.ndim) != (3, 2):
        return False
    at = sort_positions(some, track.task.io)
    uniform = at.allowed / np.maximum(at.allowed.sum(-1, keepdims=True), 1)
    return bool(np.allclose(track.task.truth(some)[some.scored], uniform, atol=1e-6))


def sort_by_repetition(instances: Instances, io: TokenIO) -> Positions:
    """Sorts the scored positions by the tokens before them, and by what followed the last 1, 2 and 3 tokens before."""
    tokens = instances.tokens.astype(np.int64)
    row, place = np.nonzero(instances.scored)
    starts = [0, *(2**k for k in range(4, 1 + max(4, int(place.max()).bit_length())))]
    labels = [f"{a}-{b - 1}" for a, b in pairwise(starts)]
    bins = {"position": np.array(labels)[np.searchsorted(starts, place, side="right") - 1]}
    orders: dict[str, Sequence[str]] = {"position": labels}
    context = np.zeros_like(tokens)
    for n in CONTEXTS:
        context[:, n:] += tokens[:, :-n] * int(context.max() + 1)
        context = np.unique(context, return_inverse=True)[1].reshape(tokens.shape)  # else large vocabularies overflow
        whole = np.where(np.arange(tokens.shape[1]) < n, -1, context)
        again = _earlier(whole) > 0
        this = _earlier(np.where(whole < 0, -1, whole * io.vocab_size + tokens)) > 0
        bins[f"context-{n}"] = np.array(FOLLOWED)[again.astype(int) + this][row, place]
        orders[f"context-{n}"] = FOLLOWED
    return Positions(instances.units(row), instances.targets[row, place].astype(np.int64), bins, orders)


def sort_positions(instances: Instances, io: TokenIO) -> StatePositions:
    """Sorts the scored positions of instances of automata."""
    tables, states = instances.truth["transitions"].astype(np.int64), instances.truth_at["state"].astype(np.int64)
    tokens = instances.tokens.astype(np.int64)
    row, place = np.nonzero(instances.scored)
    state, token = states[row, place], tokens[row, place]
    allowed = np.zeros((len(row), io.vocab_size), bool)
    allowed[:, : tables.shape[2]] = tables[row, state] >= 0
    drawn = states >= 0
    length = tokens.shape[1]
    separators = np.where(drawn, -1, np.arange(length))
    since = np.arange(length) - np.maximum.accumulate(separators, axis=1) - 1  # symbols before, in the string
    edge = np.where(drawn, states * io.vocab_size + tokens, -1)
    before = since[row, place]
    sets = {n: _reached(tables, tokens, row, place, before, state, n) for n in (1, 2, 3)}
    needed = np.full(len(row), "more", dtype="<U4")
    for n in (3, 2, 1):
        needed[(sets[n].sum(-1) == 1) | (before < n)] = str(n)
    features: dict[str, tuple[NDArray[np.str_], Sequence[str]]] = {
        "branching": (allowed.sum(-1).astype(str), [str(m) for m in range(1, io.vocab_size)]),
        "visits": (_ranges(_earlier(np.where(drawn, states, -1))[row, place]), RANGES),
        "suffix": (needed, ("1", "2", "3", "more")),
        "edge": (np.where(_earlier(edge)[row, place] > 0, "seen before", "new"), ("new", "seen before")),
        "place": (_ranges(before), RANGES),
    }
    return StatePositions(
        instances.units(row),
        token,
        {name: bins for name, (bins, _) in features.items()},
        {name: order for name, (_, order) in features.items()},
        allowed,
        _seen(tokens, row, place, io.vocab_size),
        {n: _legal(tables, sets[n], row, io.vocab_size) for n in (1, 2)},
    )


def token_scores(predicted: TokenPrediction, at: Positions) -> dict[str, FloatArray]:
    """By score the value at each position: predictions of (P,) positions -> (P,)."""
    return computed(Rows(at.tokens, token=predicted))


def scores_of(predicted: FloatArray, at: StatePositions) -> dict[str, FloatArray]:
    """By score the value at each position: predictions (P, V) -> (P,)."""
    found = score_positions(predicted, at.allowed / at.allowed.sum(-1, keepdims=True), at.tokens)
    return {name: found[name] for name in SCORES}


def illegal_kinds(predicted: FloatArray, at: StatePositions) -> dict[str, FloatArray]:
    """By kind 1 at each position whose most likely token is illegal in this way, else 0: (P, V) -> (P,)."""
    best, every = predicted.argmax(-1), np.arange(len(predicted))
    left = ~at.allowed[every, best]
    found: dict[str, FloatArray] = {}
    tests = (~at.seen[every, best], at.fits[2][every, best], at.fits[1][every, best], np.ones(len(best), bool))
    for name, test in zip(ILLEGAL, tests, strict=True):
        found[name] = (left & test).astype(np.float64)
        left = left & ~test
    return found


def mean_of_seeds(
    predictions: Sequence[Predicted], at: Sorted, measure: Callable[[Predicted, Sorted], dict[str, FloatArray]]
) -> dict[str, FloatArray]:
    """What `measure` gives, as the mean over the predictions of several seeds."""
    every = [measure(one, at) for one in predictions]
    return {name: np.mean([one[name] for one in every], axis=0) for name in every[0]}


def binned(
    values: Mapping[str, Mapping[str, FloatArray]],
    at: Positions,
    least: tuple[int, int] = (LEAST_POSITIONS, LEAST_INSTANCES),
) -> list[Bin]:
    """The scores in every bin of every feature.

    `values` are by predictor and score, (P,). Bins of fewer positions or instances than `least` are left out.
    """
    found = []
    for feature, order in at.orders.items():
        for label in order:
            mine = at.bins[feature] == label
            if mine.sum() < max(1, least[0]) or len(np.unique(at.row[mine])) < least[1]:
                continue
            scores = {name: {score: average(of, at, mine) for score, of in own.items()} for name, own in values.items()}
            found.append(Bin(feature, label, int(mine.sum()), scores))
    return found


def average(values: FloatArray, at: Positions, chosen: NDArray[np.bool_] | None = None) -> ScoreRecord:
    """The mean over chosen positions, by default all, with its standard error over the instances that have any."""
    row, kept = (at.row, values) if chosen is None else (at.row[chosen], values[chosen])
    return mean_over(kept, np.ones(len(row), np.int64), row)


def write_csv(bins: Sequence[Bin], path: Path) -> None:
    """Writes a line for each bin, predictor and score."""
    rows = [
        [one.feature, one.label, one.positions, name, score, f"{record.value:.6f}", f"{record.stderr:.6f}"]
        for one in bins
        for name, scores in one.scores.items()
        for score, record in scores.items()
    ]
    write_rows(path, ["feature", "bin", "positions", "predictor", "score", "value", "stderr"], rows)


def _earlier(ids: IntArray) -> IntArray:
    """How often the number at each position has occurred before it in its row, (N, L); 0 where it is negative."""
    row = np.repeat(np.arange(len(ids)), ids.shape[1])
    earlier = pd.Series(row).groupby([row, ids.ravel()]).cumcount().to_numpy()
    return np.where(ids >= 0, earlier.reshape(ids.shape), 0)


def _ranges(numbers: IntArray) -> NDArray[np.str_]:
    """The range of `RANGES` that each number is in."""
    return np.array(RANGES)[np.searchsorted([1, 2, 3, 5, 9], numbers, side="right")]


def _seen(tokens: IntArray, row: IntArray, place: IntArray, vocab_size: int) -> NDArray[np.bool_]:
    """Which tokens have occurred before each position, (P, V)."""
    first = np.full((len(tokens), vocab_size), tokens.shape[1])
    for t in range(tokens.shape[1] - 1, -1, -1):
        first[np.arange(len(tokens)), tokens[:, t]] = t
    found: NDArray[np.bool_] = first[row] < place[:, None]
    return found


def _reached(
    tables: IntArray, tokens: IntArray, row: IntArray, place: IntArray, before: IntArray, state: IntArray, n: int
) -> NDArray[np.bool_]:
    """The states that the last n tokens can lead to, (P, S). If a separator is among them, this is the state alone."""
    every = np.arange(len(row))
    now: NDArray[np.bool_] = tables.max(-1)[row] >= 0
    for back in range(n, 0, -1):
        token = np.minimum(tokens[row, np.maximum(place - back, 0)], tables.shape[2] - 1)
        after = np.zeros_like(now)
        for s in range(tables.shape[1]):
            to = tables[row, s, token]
            ok = now[:, s] & (to >= 0)
            after[every[ok], to[ok]] = True
        now = after
    short = before < n
    now[short] = False
    now[every[short], state[short]] = True
    return now


def _legal(tables: IntArray, sets: NDArray[np.bool_], row: IntArray, vocab_size: int) -> NDArray[np.bool_]:
    """Which tokens are legal in any state of a set, (P, S) -> (P, V)."""
    legal = np.zeros((len(row), vocab_size), bool)
    for s in range(tables.shape[1]):
        legal[:, : tables.shape[2]] |= sets[:, s, None] & (tables[row, s] >= 0)
    return legal
