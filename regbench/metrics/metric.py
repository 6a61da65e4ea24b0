"""What a metric is: one table that scoring, checks, tables, plots and pages read, and its value at one position."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError, nearest

NLL_FLOOR = 1e-7
"""Probabilities are raised to this before the logarithm. A probability of zero then costs 16.1 nats, not infinity."""


@dataclass(frozen=True)
class Metric:
    """A score of predictions: how it is computed, read and drawn.

    Attributes:
        name: Its key in `result.json`.
        label: Its name for people, as in the head of a column.
        meaning: What it is, in one sentence.
        higher_is_better: Whether the higher of two values is the better one.
        limits: The lowest and the highest value that one position can have.
        log_axis: Whether plots have a logarithmic axis for it.
        over: The metric of single positions that is averaged. It differs from `name` where only a group of positions counts.
        kind: The kind of task that it is for, as `kind` of `TokenIO` and `VectorIO`.
        needs_truth: Whether the task's true distributions (or means) are needed to compute it.
    """

    name: str
    label: str
    meaning: str
    higher_is_better: bool
    limits: tuple[float, float]
    log_axis: bool
    over: str
    kind: Literal["tokens", "vectors"] = "tokens"
    needs_truth: bool = True

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
        """Tells of a name that is not there.

        Raises:
            UserError: Always.
        """
        raise UserError(f"unknown score '{name}'{nearest(name, self)}")


_LEGAL = Metric(
    "legal_accuracy",
    "legal accuracy",
    "Share of scored positions whose most likely symbol is one that the language allows (ICLL Eq. 10).",
    higher_is_better=True,
    limits=(0.0, 1.0),
    log_axis=False,
    over="legal_accuracy",
)
_TOKEN = Metric(
    "token_accuracy",
    "token accuracy",
    "Share of scored positions whose most likely symbol is the one that was sampled.",
    higher_is_better=True,
    limits=(0.0, 1.0),
    log_axis=False,
    over="token_accuracy",
    needs_truth=False,
)
_AREA = Metric(
    "area",
    "area",
    "Accuracy rescaled so that chance is 0 and the best possible is 1, averaged over sizes, each of which counts the same.",
    higher_is_better=True,
    limits=(-10.0, 2.0),
    log_axis=False,
    over="area",
)
_TVD = Metric(
    "tvd",
    "TVD",
    "Total variation distance: half the L1 distance between the predicted and the true distribution (ICLL Eq. 11).",
    higher_is_better=False,
    limits=(0.0, 1.0),
    log_axis=False,
    over="tvd",
)
_NLL = Metric(
    "nll",
    "NLL (nats)",
    f"Negative log likelihood of the sampled symbol, in nats. Probabilities are raised to {NLL_FLOOR:g} first.",
    higher_is_better=False,
    limits=(0.0, -math.log(NLL_FLOOR)),
    log_axis=True,
    over="nll",
    needs_truth=False,
)
_MSE = Metric(
    "mse",
    "MSE",
    "Mean squared difference, over components, from the vector that was sampled.",
    higher_is_better=False,
    limits=(0.0, math.inf),
    log_axis=True,
    over="mse",
    kind="vectors",
)

METRICS = Metrics(
    {
        metric.name: metric
        for metric in (
            _AREA,
            _LEGAL,
            _TOKEN,
            replace(
                _TOKEN,
                name="last_two_accuracy",
                label="accuracy, last two",
                meaning="Token accuracy in the answers of the last two examples of each task (CGT Table 1).",
            ),
            replace(
                _TOKEN,
                name="final_accuracy",
                label="accuracy, last value",
                meaning="Token accuracy of the last value alone, the one after the query (ICLL Figure 3a).",
            ),
            replace(
                _TOKEN,
                name="label_accuracy",
                label="accuracy, query",
                meaning="Token accuracy of the label of the query alone (TinT section 5.1).",
            ),
            replace(
                _TOKEN,
                name="in_context_accuracy",
                label="accuracy in context",
                meaning="Token accuracy of the outputs of triggers that have occurred before (Bietti et al. 2023).",
            ),
            replace(
                _TOKEN,
                name="longer_accuracy",
                label="accuracy, longer",
                meaning="Token accuracy of states after more symbols than any stretch in training has.",
            ),
            *(
                replace(
                    _TOKEN,
                    name=f"{group.lower().replace('-', '_')}_accuracy",
                    label=f"accuracy, {group}",
                    meaning=f"Token accuracy of states after more symbols than any stretch in training has, in {group}.",
                )
                for group in ("parity", "S3", "A4", "A5", "S5", "S5-swaps")
            ),
            _TVD,
            replace(
                _TVD,
                name="global_tvd",
                label="TVD, global",
                meaning="TVD over what comes from the global transitions alone: how well training has taught them.",
            ),
            _NLL,
            replace(
                _NLL,
                name="nll_behind_cut",
                label="NLL after the switch (nats)",
                meaning="NLL over what follows the first switch.",
            ),
            _MSE,
            replace(
                _MSE,
                name="truth_mse",
                label="MSE to truth",
                meaning="Mean squared difference, over components, from the true mean.",
                over="truth_mse",
            ),
        )
    }
)
"""Every metric, and every group score of the built-in tasks, in the order in which they are shown."""

POSITION_METRICS = Metrics({name: metric for name, metric in METRICS.items() if metric.over == name})
"""What can be computed at one position: see `score_positions` and `score_vectors`."""

WITHOUT_TRUTH = tuple(name for name, metric in POSITION_METRICS.items() if not metric.needs_truth)
"""The metrics that compare a prediction with the sampled token alone."""


def metrics_of(task: Task) -> Metrics:
    """The scores of a task, in its order. A group score that is not built in takes all but its name from its metric.

    Raises:
        UserError: A score is neither a metric nor a group score, a group score is over no metric, or a built-in score of
            that name is better the other way.
    """
    found = Metrics()
    for name in task.scores:
        over, group = task.metric_and_group(name)
        if over not in POSITION_METRICS:
            known = POSITION_METRICS if group is not None else (*POSITION_METRICS, *task.group_scores)
            fault = f" is over '{over}', no metric" if group is not None else " is no metric or group score"
            raise UserError(f"{type(task).__name__}: the score '{name}'{fault}{nearest(over, known)}")
        metric = POSITION_METRICS[over]
        if name in METRICS and METRICS[name].higher_is_better != metric.higher_is_better:
            raise UserError(
                f"{type(task).__name__}: the score '{name}' is over '{over}', but of another score of that name "
                f"{'lower' if metric.higher_is_better else 'higher'} is better; give it another name"
            )
        label, meaning = name.replace("_", " "), f"{metric.label} over the group '{group}' alone."
        if name in METRICS:
            label, meaning = METRICS[name].label, METRICS[name].meaning
        found[name] = replace(metric, name=name, label=label, meaning=meaning)
    return found


# --- Values at single positions. ---


@dataclass(frozen=True)
class TokenPrediction:
    """The part of predictions that the metrics without a truth need.

    Attributes:
        probability: (B, L), the probability of the token that is there.
        most_likely: (B, L), the token with the highest probability. Of equal maxima it is the first.
    """

    probability: FloatArray
    most_likely: IntArray

    def __len__(self) -> int:
        return len(self.probability)

    @classmethod
    def of(cls, predicted: FloatArray, tokens: IntArray) -> TokenPrediction:
        """Takes the part from distributions (B, L, V) for tokens (B, L)."""
        token = tokens.astype(np.int64)[..., None]
        return cls(np.take_along_axis(predicted, token, -1)[..., 0], predicted.argmax(-1))


def score_tokens(prediction: TokenPrediction, tokens: IntArray) -> dict[str, FloatArray]:
    """Computes the metrics `WITHOUT_TRUTH` at every position, each (B, L) float64. See `score_positions`."""
    return {
        "token_accuracy": (prediction.most_likely == tokens.astype(np.int64)).astype(np.float64),
        "nll": -np.log(np.maximum(prediction.probability.astype(np.float64), NLL_FLOOR)),
    }


def score_positions(
    predicted: FloatArray, truth: FloatArray | None, tokens: NDArray[np.integer]
) -> dict[str, FloatArray]:
    """Computes every metric of tokens at every position.

    `METRICS` says what each metric is. Of equal maxima the first is the most likely token.

    Args:
        predicted: (B, L, V), predicted distributions.
        truth: (B, L, V), true distributions. None: only the metrics `WITHOUT_TRUTH`.
        tokens: (B, L), the sampled tokens.

    Returns:
        By metric (B, L) float64.
    """
    prediction = TokenPrediction.of(predicted, tokens)
    without_truth = score_tokens(prediction, tokens)
    if truth is None:
        return without_truth
    allowed = np.take_along_axis(truth, prediction.most_likely[..., None], -1)[..., 0] > 0
    return {
        "legal_accuracy": allowed.astype(np.float64),
        "token_accuracy": without_truth["token_accuracy"],
        "tvd": 0.5 * np.abs(predicted - truth).sum(-1),
        "nll": without_truth["nll"],
    }


def score_vectors(predicted: FloatArray, truth: FloatArray, targets: FloatArray) -> dict[str, FloatArray]:
    """Computes every metric of vectors at every position.

    Args:
        predicted: (B, L, D_out), predicted means.
        truth: (B, L, D_out), true means.
        targets: (B, L, D_out), the sampled vectors.

    Returns:
        By metric (B, L) float64.
    """
    return {"mse": ((predicted - targets) ** 2).mean(-1), "truth_mse": ((predicted - truth) ** 2).mean(-1)}
