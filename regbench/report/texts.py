"""Instances of tasks that do not know their truth, as running text: how many nats each token cost each predictor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.evaluation.predictions import CompactPredictions
from regbench.metrics.metric import TokenPrediction, score_tokens
from regbench.models.predictor import Baseline
from regbench.report.strips import Choice, choose_by
from regbench.report.words import as_text
from regbench.tasks.base import Task


def layout(
    task: Task,
    test: Instances,
    models: Sequence[CompactPredictions],
    baseline: Baseline | None = None,
    asked: int | None = None,
) -> dict[str, Any]:
    """What the page needs to draw a few instances, beside what `baseline` says of them.

    The choice is by the mean of all models' main scores on an instance.

    Raises:
        UserError: there is no instance `asked`.
    """
    metric = task.main_score
    choices, by_instance = choose_by(metric, task, test, models, asked)
    return {
        "metric": metric,
        "total": len(test),
        "baseline": None if baseline is None else baseline.name,
        "instances": [_instance(task, test, models, baseline, c, by_instance[:, c.index].tolist()) for c in choices],
    }


def _instance(
    task: Task,
    test: Instances,
    models: Sequence[CompactPredictions],
    baseline: Baseline | None,
    choice: Choice,
    scores: Sequence[float],
) -> dict[str, Any]:
    one = test[choice.index : choice.index + 1]
    predictions = [_of_instance(model, choice.index) for model in models]
    if baseline is not None:
        predictions.append(TokenPrediction.of(baseline.predict(one.tokens), one.tokens))
    names = task.io.names
    cut = one.truth.get("cut")
    return {
        "index": choice.index,
        "why": choice.why,
        "scores": [round(value, 4) for value in scores],
        "tokens": [as_text(names[token]) for token in one.tokens[0]],
        "cut": None if cut is None else int(cut[0]),
        "scored": one.scored[0].astype(int).tolist(),
        "nats": [_rounded(score_tokens(p, one.tokens)["nll"][0]) for p in predictions],
        "best": [[as_text(names[token]) for token in p.most_likely[0]] for p in predictions],
    }


def _of_instance(model: CompactPredictions, index: int) -> TokenPrediction:
    """What a model said at the positions of one instance, (1, L)."""
    end = int(model.lengths[: index + 1].sum())
    rows = slice(end - int(model.lengths[index]), end)
    return TokenPrediction(model.probability[None, rows].astype(np.float64), model.most_likely[None, rows])


def _rounded(values: NDArray[Any]) -> list[float]:
    return [round(float(value), 2) for value in values]
