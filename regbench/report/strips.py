"""Instances laid out position by position: the true next-token distributions above those of each trained model.

What the page draws are whole numbers, thousandths of probability; what is decided by an argmax is decided here, on the
predictions as they were stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regbench.data.instances import Instances
from regbench.evaluation.predictions import KeptPredictions, Predictions
from regbench.metrics.metric import metrics_of
from regbench.metrics.scores import score, score_positions
from regbench.results import Result
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

MOST_ROWS = 48
"""Of a larger vocabulary only so many tokens get a row: those with the most probability in the truth and the models."""


@dataclass(frozen=True)
class Choice:
    """A test instance to show, and why: "the worst", "the median", ..."""

    index: int
    why: str


def choose(badness: FloatArray, asked: int | None = None) -> list[Choice]:
    """The worst, the median and the best of (N,) instances, and before them the one asked for.

    Raises:
        UserError: there is no such instance.
    """
    n = len(badness)
    if asked is not None and not 0 <= asked < n:
        raise UserError(f"there is no test instance {asked}: they are numbered 0 to {n - 1}")
    order = np.argsort(-badness, kind="stable")
    reasons = {int(order[0]): "the worst", int(order[n // 2]): "the median", int(order[-1]): "the best"}
    if asked is None:
        return [Choice(index, why) for index, why in reasons.items()]
    place = int(np.flatnonzero(order == asked)[0])
    why = reasons.pop(asked, f"number {place + 1} from the worst")
    return [Choice(asked, why), *(Choice(index, why) for index, why in reasons.items())]


def check_predictions(
    predictions: KeptPredictions, result: Result, seed: int, test: Instances, vocab_size: int
) -> None:
    """Raises:
    UserError: these are not the predictions that the scores of this seed were computed from, on this split.
    """
    record = next(s for s in result.seeds if s.seed == seed)
    if not predictions.fits(test, vocab_size) or predictions.digest != record.predictions_sha256:
        raise UserError(f"the stored predictions of seed {seed} are not those that result.json scored")


def choose_by(
    metric: str, task: Task, test: Instances, models: Sequence[KeptPredictions], asked: int | None = None
) -> tuple[list[Choice], FloatArray]:
    """The instances to draw, by the mean of all models' scores, and each model's score of every instance: (models, N).

    Raises:
        UserError: there is no instance `asked`.
    """
    tables = [score(task, test, model.batches()) for model in models]
    by_instance = np.array([t.sums[metric] / np.maximum(t.counts_of(metric), 1) for t in tables])
    mean = by_instance.mean(0)
    return choose(-mean if metrics_of(task)[metric].higher_is_better else mean, asked), by_instance


def layout(task: Task, test: Instances, models: Sequence[Predictions], asked: int | None = None) -> dict[str, Any]:
    """What the page needs to draw a few instances: by which metric they were chosen, and each of them.

    The choice is by the mean of all models' scores on an instance: by TVD, or by the main score where a task has none.

    Raises:
        UserError: there is no instance `asked`.
    """
    metric = "tvd" if "tvd" in task.scores else task.main_score
    choices, by_instance = choose_by(metric, task, test, models, asked)
    return {
        "metric": metric,
        "total": len(test),
        "instances": [_instance(task, test, models, choice, by_instance[:, choice.index]) for choice in choices],
    }


def _instance(
    task: Task, test: Instances, models: Sequence[Predictions], choice: Choice, scores: FloatArray
) -> dict[str, Any]:
    one = test[choice.index : choice.index + 1]
    tokens, scored, truth = one.tokens[0].astype(np.int64), one.scored[0], task.truth(one)[0]
    predicted = [_rows_of(model, choice.index) for model in models]
    shown = _shown_tokens(np.stack([truth, *predicted])[:, scored], tokens[scored])
    place = {int(token): row for row, token in enumerate(shown)}
    names = task.io.names
    return {
        "index": choice.index,
        "why": choice.why,
        "scores": [round(float(value), 4) for value in scores],
        "rows": [names[v] for v in shown],
        "omitted": task.io.vocab_size - len(shown),
        "tokens": [names[v] for v in tokens],
        "row": [place.get(int(v), -1) for v in tokens],
        "boundary": (tokens == task.io.separator).astype(int).tolist(),
        "scored": scored.astype(int).tolist(),
        "truth": _thousandths(truth, scored, shown),
        "models": [_model(p, truth, tokens, scored, shown, names) for p in predicted],
    }


def _model(
    predicted: FloatArray,
    truth: FloatArray,
    tokens: IntArray,
    scored: np.ndarray[Any, np.dtype[np.bool_]],
    shown: IntArray,
    names: Sequence[str],
) -> dict[str, Any]:
    """One model on one instance; all (L, V) or (L,)."""
    metrics = {m: v[0] for m, v in score_positions(predicted[None], truth[None], tokens[None]).items()}
    wrong = scored & (metrics["legal_accuracy"] == 0.0)
    return {
        "p": _thousandths(predicted, scored, shown),
        "illegal": {str(t): names[int(predicted[t].argmax())] for t in np.flatnonzero(wrong)},
        "tvd": np.where(scored, metrics["tvd"], 0.0).round(3).tolist(),
        "nll": np.where(scored, metrics["nll"], 0.0).round(3).tolist(),
    }


def _rows_of(model: Predictions, index: int) -> FloatArray:
    """(L, V) float64: what a model said at the positions of one instance."""
    end = int(model.lengths[: index + 1].sum())
    rows = model.packed[end - int(model.lengths[index]) : end].astype(np.float64)
    return rows / rows.sum(-1, keepdims=True)


def _shown_tokens(distributions: FloatArray, sampled: IntArray) -> IntArray:
    """The tokens that get a row, ascending: all of a small vocabulary, else those with the most probability or sampled most.

    distributions: (models + 1, scored positions, V).
    """
    vocab_size = distributions.shape[-1]
    if vocab_size <= MOST_ROWS:
        return np.arange(vocab_size)
    weight = distributions.sum((0, 1)) + np.bincount(sampled, minlength=vocab_size)
    return np.sort(np.argsort(-weight, kind="stable")[:MOST_ROWS])


def _thousandths(p: FloatArray, scored: np.ndarray[Any, np.dtype[np.bool_]], shown: IntArray) -> list[list[int]]:
    """(L, V) probabilities as whole thousandths of the tokens shown; [] where nothing is scored."""
    whole = np.rint(1000 * p[:, shown]).astype(int)
    return [row.tolist() if counts else [] for row, counts in zip(whole, scored, strict=True)]
