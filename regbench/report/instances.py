"""Test instances as the page of a run draws them, position by position.

Where the task knows its truth: strips of the true next-token distributions above those of each trained model. They are
whole thousandths of probability. Every argmax is taken here, from the predictions as they were stored. Where the task
does not know its truth: running text, with the negative log likelihood of each token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines
from regbench.evaluation.predictions import Predictions, StoredPredictions, read_scored
from regbench.metrics.metric import Rows, TokenPrediction, computed, metrics_of, score_positions
from regbench.metrics.scores import score
from regbench.models.predictor import Baseline
from regbench.report.content import as_text, score_rows
from regbench.results import Result
from regbench.tasks.base import Task, TokenIO
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

MOST_ROWS = 48
"""So many tokens get a row in a strip. Of a larger vocabulary, those with the most probability in truth and models."""


@dataclass(frozen=True)
class Drawn:
    """Test instances for the page, as `layout` gives them: strips where the task knows its truth, else texts; or why neither."""

    strips: Mapping[str, Any] | None = None
    texts: Mapping[str, Any] | None = None
    why_not: str = ""


def draw_instances(folder: Path, result: Result, track: Track | None, asked: int | None = None) -> Drawn:
    """Lays out test instances of a run, with the predictions in its folder."""
    if track is None:
        name = result.track.name
        return Drawn(why_not=f"the track {name} that this run was made on is not here; one of your own: --track FILE")
    if not isinstance(track.task.io, TokenIO):
        return Drawn(why_not="the task has vectors, not tokens")
    test = track.instances(result.split)
    if test.fingerprint != result.track.fingerprints[result.split]:
        return Drawn(
            why_not=f"the code that makes the {result.split} instances of {track.name} has changed since this run"
        )
    if result.evaluation is not None and result.evaluation.limit is not None:
        test = test[: result.evaluation.limit]
    for seed in result.seeds:
        if not (folder / f"seed-{seed.seed}" / "predictions.npz").exists():
            return Drawn(why_not=f"the predictions of seed {seed.seed} are not in the run's folder")
    models = [partial(read_scored, folder, seed, track.task, test) for seed in result.seeds]
    if track.task.knows_truth:
        return Drawn(strips=layout(track.task, test, models, asked))
    baselines = {baseline.name: baseline for baseline in default_baselines(track, test)}
    ranked = [row.name for row in score_rows(result, track.metrics) if row.kind == "baseline"]
    best = next((baselines[name] for name in ranked if name in baselines), None)
    return Drawn(texts=layout(track.task, test, models, asked, best))


def choose(badness: FloatArray, asked: int | None = None) -> dict[int, str]:
    """The worst, the median and the best of (N,) instances, with the reason for each. Before them the one asked for.

    The badness of an instance in which no position counts is NaN. Such a one is only drawn where it is asked for.
    """
    n, counted = len(badness), int(np.isfinite(badness).sum())
    if asked is not None and not 0 <= asked < n:
        raise UserError(f"there is no test instance {asked}: they are numbered 0 to {n - 1}")
    order = np.argsort(-badness, kind="stable")  # NaN comes last
    reasons = {int(order[0]): "the worst", int(order[counted // 2]): "the median", int(order[counted - 1]): "the best"}
    if asked is not None:
        place = int(np.flatnonzero(order == asked)[0])
        otherwise = f"number {place + 1} from the worst" if place < counted else "no position counts"
        reasons = {asked: reasons.get(asked, otherwise)} | reasons
    return reasons


def layout(
    task: Task,
    test: Instances,
    models: Sequence[Callable[[], StoredPredictions]],
    asked: int | None = None,
    baseline: Baseline | None = None,
) -> dict[str, Any]:
    """What the page needs to draw a few instances.

    They are chosen by the mean of all models' scores on an instance: by TVD, or by the main score where a task has no TVD.

    Each of `models` reads the predictions of one seed, once to choose and once to draw: of a large track those of two would fill
    the memory. The `baseline` is shown beside the models in running text.
    """
    metric = "tvd" if "tvd" in task.scores else task.main_score
    tables = [score(task, test, read().batches(at=test.scored), apart=True) for read in models]
    counts = tables[0].counts_of(metric)
    by_instance = np.array([np.where(counts > 0, t.sums[metric] / np.maximum(counts, 1), np.nan) for t in tables])
    chosen = choose(-metrics_of(task)[metric].sign * by_instance.mean(0), asked)
    ends = test.lengths.astype(np.int64).cumsum()
    rows = {n: slice(int(ends[n] - test.lengths[n]), int(ends[n])) for n in chosen}
    stored = [_cut_out(read(), rows) for read in models]
    found = []
    for n, why in chosen.items():
        one, shown = test[n : n + 1], [rows_of[n] for rows_of in stored]
        if task.knows_truth:
            drawn = _strips(task, one, shown)
        else:
            shown += [TokenPrediction.of(baseline.predict(one.tokens), one.targets)] if baseline is not None else []
            drawn = _text(task, one, shown)
        scores = [round(float(value), 4) for value in by_instance[:, n]] if counts[n] else []
        scored = one.scored[0].astype(int).tolist()
        found.append({"index": n, "why": why, "scores": scores, "scored": scored, **drawn})
    name = None if baseline is None else baseline.name
    return {"metric": metric, "total": len(test), "baseline": name, "instances": found}


def _cut_out(stored: StoredPredictions, rows: Mapping[int, slice]) -> dict[int, Any]:
    """By instance what one model predicts there: (L, V) probabilities, or a `TokenPrediction` of (1, L)."""
    if isinstance(stored, Predictions):
        return {n: stored.packed[at].copy() for n, at in rows.items()}
    return {
        n: TokenPrediction(stored.probability[None, at].astype(np.float64), stored.most_likely[None, at])
        for n, at in rows.items()
    }


def _text(task: Task, one: Instances, predictions: Sequence[TokenPrediction]) -> dict[str, Any]:
    """One instance as text: the tokens, and by predictor the NLL of each and the most likely token in its place."""
    names, switch = [as_text(name) for name in task.io.names], one.truth.get("cut")
    return {
        "tokens": [names[token] for token in one.tokens[0]],
        "switch": None if switch is None else int(switch[0]),
        "nats": [
            [round(float(v), 2) for v in computed(Rows(one.targets, token=prediction))["nll"][0]]
            for prediction in predictions
        ],
        "best": [[names[token] for token in prediction.most_likely[0]] for prediction in predictions],
    }


def _strips(task: Task, one: Instances, stored: Sequence[FloatArray]) -> dict[str, Any]:
    """One instance as strips. `stored` has for each model (L, V) probabilities."""
    tokens, scored = one.targets[0].astype(np.int64), one.scored[0]
    truth = task.truth(one)[0][scored]
    predicted = [p[scored].astype(np.float64) for p in stored]  # of a large vocabulary all positions take much memory
    for p in predicted:
        p /= p.sum(-1, keepdims=True)
    shown = _shown_tokens(np.stack([truth, *predicted]), tokens[scored])
    place = {int(token): row for row, token in enumerate(shown)}
    names = task.io.names
    models = []
    for p in predicted:
        metrics = score_positions(p, truth, tokens[scored])
        wrong = np.flatnonzero(metrics["legal_accuracy"] == 0.0)
        drawn = {metric: np.zeros(len(tokens)) for metric in ("tvd", "nll")}
        for metric, values in drawn.items():
            values[scored] = metrics[metric]
        models.append(
            {
                "p": _thousandths(p, scored, shown),
                "illegal": {str(np.flatnonzero(scored)[i]): names[int(p[i].argmax())] for i in wrong},
                **{metric: values.round(3).tolist() for metric, values in drawn.items()},
            }
        )
    return {
        "rows": [names[v] for v in shown],
        "omitted": task.io.vocab_size - len(shown),
        "tokens": [names[v] for v in tokens],
        "row": [place.get(int(v), -1) for v in tokens],
        "boundary": (tokens == task.io.separator).astype(int).tolist(),
        "truth": _thousandths(truth, scored, shown),
        "models": models,
    }


def _shown_tokens(distributions: FloatArray, sampled: IntArray) -> IntArray:
    """The tokens that get a row, ascending: all of a small vocabulary, else those with most probability or sampled most.

    `distributions` are (models + 1, scored positions, V), the truth first; `sampled` are the tokens at these positions.
    """
    vocab_size = distributions.shape[-1]
    if vocab_size <= MOST_ROWS:
        return np.arange(vocab_size)
    weight = distributions.sum((0, 1)) + np.bincount(sampled, minlength=vocab_size)
    return np.sort(np.argsort(-weight, kind="stable")[:MOST_ROWS])


def _thousandths(p: FloatArray, scored: np.ndarray[Any, np.dtype[np.bool_]], shown: IntArray) -> list[list[int]]:
    """Probabilities (P, V) of the scored positions as whole thousandths of the tokens shown. [] where nothing is scored."""
    whole = iter(np.rint(1000 * p[:, shown]).astype(int))
    return [next(whole).tolist() if counts else [] for counts in scored]
