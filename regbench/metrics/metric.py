"""What a metric is: its formula at one position, and how it is read and drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regbench.results import Result
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError, nearest

NLL_FLOOR = 1e-7
"""Probabilities are raised to this before the logarithm. A probability of zero then costs 16.1 nats, not infinity."""


@dataclass(frozen=True)
class TokenPrediction:
    """The part of predictions that the metrics without a truth need."""

    probability: FloatArray  # (B, L), the probability of the token that is there
    most_likely: IntArray  # (B, L), the token with the highest probability. Of equal maxima it is the first

    def __len__(self) -> int:
        return len(self.probability)

    @classmethod
    def of(cls, predicted: FloatArray, tokens: IntArray) -> TokenPrediction:
        """Takes the part from distributions (B, L, V) for tokens (B, L)."""
        token = tokens.astype(np.int64)[..., None]
        return cls(np.take_along_axis(predicted, token, -1)[..., 0], predicted.argmax(-1))


@dataclass(frozen=True)
class Rows:
    """Predictions at positions of the shape S, such as (B, L), and what metrics compare them with."""

    targets: NDArray[Any]  # S, the tokens that are there; of vectors (S, D_out)
    # (S, V), distributions; of vectors (S, D_out). None where no more than `token` was kept
    predicted: FloatArray | None = None
    token: TokenPrediction | None = None  # the part of distributions that needs no truth. None of vectors
    truth: FloatArray | None = None  # as `predicted`, the true distributions or means. None: they are unknown
    chance: FloatArray | None = None  # S, the accuracy of chance. None: it was not asked for, as for `best`
    best: FloatArray | None = None  # S, the best possible accuracy


@dataclass(frozen=True)
class Metric:
    """A score of predictions: how it is computed, read and drawn. It is the mean of `compute` over positions."""

    name: str  # its key in `result.json`
    label: str  # its name for people, as in the head of a column
    meaning: str  # what it is, in one sentence
    higher_is_better: bool  # whether the higher of two values is the better one
    limits: tuple[float, float]  # the lowest and the highest value that one position can have
    compute: Callable[[Rows], FloatArray]  # gives the value at each position
    needs: tuple[str, ...] = ("predicted", "truth")  # the fields of `Rows` that `compute` reads beside `targets`
    log_axis: bool = False  # whether plots have a logarithmic axis for it
    kind: Literal["tokens", "vectors"] = "tokens"  # of the tasks that it is for
    over: str = ""  # the metric whose `compute` it has. It differs from `name` where only a group of positions counts.

    def __post_init__(self) -> None:
        object.__setattr__(self, "over", self.over or self.name)

    @property
    def needs_truth(self) -> bool:
        """Whether it is for tasks that know their truth alone: of others no more than `token` is kept."""
        return self.needs != ("token",)

    @property
    def arrow(self) -> str:
        """Which way is better, as "↑" or "↓"."""
        return "↑" if self.higher_is_better else "↓"

    @property
    def heading(self) -> str:
        """The label and the arrow, as over a column."""
        return f"{self.label} {self.arrow}"

    @property
    def sign(self) -> int:
        """1 where higher is better, else -1: times this, the better of two values is the higher."""
        return 1 if self.higher_is_better else -1


class Metrics(dict[str, Metric]):
    """Metrics by name. Asking for an unknown name is a mistake of the user."""

    def __missing__(self, name: str) -> Metric:
        """Tells of a name that is not there."""
        raise UserError(f"unknown score '{name}'{nearest(name, self)}")


def _right(rows: Rows) -> FloatArray:
    assert rows.token is not None
    return (rows.token.most_likely == rows.targets.astype(np.int64)).astype(np.float64)


def _nll(rows: Rows) -> FloatArray:
    assert rows.token is not None
    found: FloatArray = -np.log(np.maximum(rows.token.probability.astype(np.float64), NLL_FLOOR))
    return found


def _legal(rows: Rows) -> FloatArray:
    assert rows.truth is not None
    assert rows.token is not None
    return (np.take_along_axis(rows.truth, rows.token.most_likely[..., None], -1)[..., 0] > 0).astype(np.float64)


def _tvd(rows: Rows) -> FloatArray:
    assert rows.predicted is not None
    assert rows.truth is not None
    found: FloatArray = 0.5 * np.abs(rows.predicted - rows.truth).sum(-1)
    return found


def _area(rows: Rows) -> FloatArray:
    assert rows.chance is not None
    assert rows.best is not None
    found: FloatArray = (_legal(rows) - rows.chance) / (rows.best - rows.chance)
    return found


def _squared(rows: Rows, to: NDArray[Any] | None) -> FloatArray:
    assert rows.predicted is not None
    assert to is not None
    found: FloatArray = ((rows.predicted - to) ** 2).mean(-1)
    return found


_ALL = (
    Metric(
        "legal_accuracy",
        "legal accuracy",
        "Share of scored positions whose most likely symbol is one that the language allows (ICLL Eq. 10).",
        higher_is_better=True,
        limits=(0.0, 1.0),
        compute=_legal,
        needs=("token", "truth"),
    ),
    Metric(
        "token_accuracy",
        "token accuracy",
        "Share of scored positions whose most likely symbol is the one that was sampled.",
        higher_is_better=True,
        limits=(0.0, 1.0),
        compute=_right,
        needs=("token",),
    ),
    Metric(
        "tvd",
        "TVD",
        "Total variation distance: half the L1 distance between the predicted and the true distribution (ICLL Eq. 11).",
        higher_is_better=False,
        limits=(0.0, 1.0),
        compute=_tvd,
    ),
    Metric(
        "nll",
        "NLL (nats)",
        f"Negative log likelihood of the sampled symbol, in nats. Probabilities are raised to {NLL_FLOOR:g} first.",
        higher_is_better=False,
        limits=(0.0, -math.log(NLL_FLOOR)),
        compute=_nll,
        needs=("token",),
        log_axis=True,
    ),
    Metric(
        "mse",
        "MSE",
        "Mean squared difference, over components, from the vector that was sampled.",
        higher_is_better=False,
        limits=(0.0, math.inf),
        compute=lambda rows: _squared(rows, rows.targets),
        needs=("predicted",),
        log_axis=True,
        kind="vectors",
    ),
    Metric(
        "truth_mse",
        "MSE to truth",
        "Mean squared difference, over components, from the true mean.",
        higher_is_better=False,
        limits=(0.0, math.inf),
        compute=lambda rows: _squared(rows, rows.truth),
        log_axis=True,
        kind="vectors",
    ),
    Metric(
        "area",
        "area",
        "Accuracy rescaled so that chance is 0 and the best possible is 1, averaged over sizes, each of which counts the same.",
        higher_is_better=True,
        limits=(-10.0, 2.0),
        compute=_area,
        needs=("token", "truth", "chance", "best"),
    ),
)
METRICS = Metrics({metric.name: metric for metric in _ALL})
"""The built-in metrics, in the order in which they are shown. A task says what its scores over groups of positions are."""

WITHOUT_TRUTH = tuple(name for name, metric in METRICS.items() if not metric.needs_truth)
"""The metrics that compare a prediction with the sampled token alone."""


def position_metrics(task: Task) -> Metrics:
    """The built-in metrics, and those of the task's own."""
    return Metrics(METRICS | {metric.name: metric for metric in task.metrics})


def metrics_of(task: Task) -> Metrics:
    """The scores of a task, in its order. A score over a group takes all but its name and its words from its metric."""
    if not isinstance(task.metrics, tuple) or not all(isinstance(metric, Metric) for metric in task.metrics):
        raise UserError(
            f"{type(task).__name__}: its metrics must be a tuple of regbench.Metric, not {task.metrics!r:.60}"
        )
    own = [metric.name for metric in task.metrics]
    own += [name for name, (over, *_) in task.group_scores.items() if name != over]
    if twice := next((name for name in own if name in METRICS), None):
        raise UserError(f"{type(task).__name__}: '{twice}' is the name of a built-in metric: give it another name")
    found, metrics = Metrics(), position_metrics(task)
    for name in task.scores:
        over, group = task.metric_and_group(name)
        if over not in metrics:
            known = metrics if group is not None else (*metrics, *task.group_scores)
            fault = f" is over '{over}', no metric" if group is not None else " is no metric or group score"
            raise UserError(f"{type(task).__name__}: the score '{name}'{fault}{nearest(over, known)}")
        found[name] = metrics[over]
        if group is not None:
            words = task.group_scores[name][2:] or (
                _spaced(name),
                f"{found[name].label} over the group '{group}' alone.",
            )
            found[name] = replace(found[name], name=name, label=words[0], meaning=words[1])
    return found


def metrics_told(result: Result) -> Metrics:
    """The scores of a result whose track is not here. "late_nll" is read and drawn as the NLL: its name tells what it is over.

    Where a name tells nothing, the better way is that from the baseline at chance to the one that knows the truth.
    """
    found, meaning = Metrics(), "Its track, which is not here, says what it is."
    for name in result.metrics:
        kinds = (kind for word in name.split("_") for kind in (word, f"token_{word}"))
        anchors = {one.anchor: one.scores[name].value for one in result.baselines.values()}
        higher = anchors.get("end", 0.0) >= anchors.get("start", 0.0)
        unknown = Metric(name, _spaced(name), meaning, higher, (-1e9, 1e9), _right)
        over = next((METRICS[kind] for kind in kinds if kind in METRICS), unknown)
        found[name] = METRICS.get(name) or replace(over, name=name, label=unknown.label, meaning=meaning)
    return found


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def computed(rows: Rows, metrics: Iterable[Metric] = METRICS.values()) -> dict[str, FloatArray]:
    """By metric its value at every position, S float64: of each metric of this kind whose needs the rows have."""
    kind = "vectors" if rows.token is None else "tokens"
    return {
        metric.name: metric.compute(rows)
        for metric in metrics
        if metric.kind == kind and all(getattr(rows, need) is not None for need in metric.needs)
    }


def score_positions(
    predicted: FloatArray, truth: FloatArray | None, tokens: NDArray[np.integer]
) -> dict[str, FloatArray]:
    """Computes the built-in metrics of tokens at every position. Of equal maxima the first is the most likely token.

    `predicted` (B, L, V) and `truth` are distributions; without a truth there are only the metrics `WITHOUT_TRUTH`. Gives (B, L)
    float64 by metric.
    """
    return computed(Rows(tokens, predicted, TokenPrediction.of(predicted, tokens), truth))
