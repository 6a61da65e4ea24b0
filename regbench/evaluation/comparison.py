"""How differently any two predictors predict: their total variation distance, early in the context (ICLL Figure 6).

Scores show which predictors are equally good. This shows which predict the same. It needs no truth.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.evaluation.baselines import Announce, kept_predictions, predict_baseline, score_stored
from regbench.evaluation.find_predictors import ComparedPredictor, Found, KnownScores, Run
from regbench.evaluation.predictions import Predictions, StoredPredictions, read_scored
from regbench.metrics.metric import TokenPrediction
from regbench.metrics.scores import Scores, counts_over, mean_over, score
from regbench.metrics.significance import SIGNIFICANCE, Change, Sample, compare
from regbench.models.predictor import Baseline
from regbench.results import Result, ScoreRecord
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.files import write_rows


class NoDistances(UserError):
    """Raised where predictors have scores, but no distributions to compare."""


FIRST_TOKENS = 100
"""So many tokens of each instance are compared by default (ICLL Figure 6)."""


@dataclass(frozen=True)
class Comparison:
    """How differently M predictors predict.

    The distance of two runs is the mean over all pairs of their seeds. The distance of a run to itself is the mean over pairs
    of its own seeds. Their standard errors are over instances, or over problems that they share.
    """

    track: str
    tokens: int  # of each instance
    instances: int
    positions: int  # that are scored
    names: Sequence[str]
    seeds: Sequence[int]  # the number of those of each predictor
    distance: NDArray[np.float64]  # (M, M)
    stderr: NDArray[np.float64]  # (M, M)

    def write_csv(self, path: Path) -> None:
        rows = [
            [one, other, f"{self.distance[i, j]:.6f}", f"{self.stderr[i, j]:.6f}"]
            for i, one in enumerate(self.names)
            for j, other in enumerate(self.names)
        ]
        write_rows(path, ["predictor", "other", "tvd", "stderr"], rows)


def distances(
    found: Found,
    *,
    tokens: int = FIRST_TOKENS,
    order: Literal["similar", "given"] = "similar",
    announce: Announce = lambda name, done, total: None,
) -> Comparison:
    """Computes the TVD between every two predictors, over the scored positions among the first tokens of each test instance.

    Predictors without predictions are left out. The order "similar" puts those that predict alike next to each other; the first
    stays first.
    """
    track, early = found.track, compared_part(found, tokens)
    chosen = [
        (name, one.source)
        for name, one in zip(found.names, found.compared, strict=True)
        if not isinstance(one.source, KnownScores)
    ]
    if len(chosen) < 2:
        raise NoDistances("entries of the leaderboard have no predictions; distances need two runs or baselines")
    seeds = [predictions_at_scored(source, track, found.test, early, announce) for _, source in chosen]
    distance, stderr = _distances(seeds, early)
    rows = similar_order(distance) if order == "similar" else list(range(len(chosen)))
    names, counts, at = [chosen[i][0] for i in rows], [len(seeds[i]) for i in rows], np.ix_(rows, rows)
    positions = int(early.scored.sum())
    return Comparison(track.name, tokens, len(early), positions, names, counts, distance[at], stderr[at])


def compared_part(found: Found, tokens: int) -> Instances:
    track = found.track
    if tokens < 1:
        raise UserError(f"tokens must be at least 1, not {tokens}")
    if track.task.io.kind != "tokens":
        raise NoDistances(f"{track.name} has no distributions over tokens to compare")
    if not track.task.knows_truth:
        raise NoDistances(
            f"nothing to compare on {track.name}: no truth is known there, so only the probability of each token is kept; "
            "the distance between two predictors needs whole distributions"
        )
    early = first_tokens(found.test, tokens)
    if not early.scored.any():
        raise NoDistances(f"nothing is scored among the first {tokens} tokens of {track.name}: give a larger --tokens")
    return early


def first_tokens(instances: Instances, count: int) -> Instances:
    """Cuts instances after `count` tokens. Predictions for them do not change, since no predictor sees the future."""
    return replace(instances, lengths=np.minimum(instances.lengths, count))[:]


def similar_order(distance: NDArray[np.float64]) -> list[int]:
    """Finds an order in which neighbours are near: a short path from the first predictor through all others.

    Parts of the path are reversed as long as that makes it shorter.
    """
    order = list(range(len(distance)))

    def length(path: list[int]) -> float:
        return float(sum(distance[a, b] for a, b in itertools.pairwise(path)))

    improved = True
    while improved:
        improved = False
        for i in range(1, len(order) - 1):
            for j in range(i + 1, len(order)):
                other = order[:i] + order[i : j + 1][::-1] + order[j + 1 :]
                if length(other) < length(order) - 1e-12:
                    order, improved = other, True
    return order


def predictions_at_scored(
    source: Baseline | Run, track: Track, test: Instances, early: Instances, announce: Announce
) -> list[FloatArray]:
    """What each seed predicts at the P scored positions of `early`, (P, V) each, as it is stored. A baseline has one seed.

    `normalized` makes distributions of it. Those of a run take four times the memory.
    """
    if isinstance(source, Baseline):
        return [_rows_at_scored(_of_baseline(source, track, test, early, announce), early)]
    found = []
    for seed in source.result.seeds:
        predictions = read_scored(source.folder, seed, track.task, test)
        assert isinstance(predictions, Predictions)  # the task knows its truth
        found.append(_rows_at_scored(predictions, early))
        del predictions  # before the next is read: of a large track two would fill the memory
    return found


def tokens_at_scored(
    source: Baseline | Run, track: Track, test: Instances, announce: Announce
) -> list[TokenPrediction]:
    """What each seed says of the tokens at the P scored positions, (P,) each. A baseline has one seed."""
    if isinstance(source, Baseline):
        return [_tokens_at_scored(predict_baseline(source, track, test, partial(announce, source.name)).stored, test)]
    return [_tokens_at_scored(read_scored(source.folder, seed, track.task, test), test) for seed in source.result.seeds]


def _tokens_at_scored(predictions: StoredPredictions, test: Instances) -> TokenPrediction:
    """The probability of the token, and the most likely token, at each scored position."""
    if isinstance(predictions, Predictions):
        row, position = np.nonzero(test.scored)
        return TokenPrediction.of(at_scored(predictions, test), test.targets[row, position])
    real = np.arange(test.scored.shape[1]) < test.lengths[:, None]
    scored = test.scored[real]
    return TokenPrediction(predictions.probability[scored], predictions.most_likely[scored])


def _of_baseline(
    baseline: Baseline, track: Track, test: Instances, early: Instances, announce: Announce
) -> Predictions:
    """A baseline's predictions. If they are not in the cache, it predicts the first tokens alone.

    The oracle predicts whole instances: it needs them to know which instance it is asked about.
    """
    found = kept_predictions(baseline, track, test)
    if found is None:
        part = test if baseline.anchor == "end" else early
        found = predict_baseline(baseline, track, part, partial(announce, baseline.name))
    assert isinstance(found.stored, Predictions)  # the task knows its truth
    return found.stored


def at_scored(predictions: Predictions, early: Instances) -> FloatArray:
    """(P, V) float64, a distribution for each scored position of `early`."""
    return normalized(_rows_at_scored(predictions, early))


def normalized(rows: FloatArray) -> FloatArray:
    """(P, V) float64: stored rows, each scaled to the sum 1."""
    distributions = rows.astype(np.float64)
    distributions /= distributions.sum(-1, keepdims=True)  # in place: of a large track a copy takes much memory
    return distributions


def _rows_at_scored(predictions: Predictions, early: Instances) -> FloatArray:
    """(P, V): what is stored for each scored position of `early`."""
    starts = np.cumsum(predictions.lengths) - predictions.lengths
    row, position = np.nonzero(early.scored)
    rows: FloatArray = predictions.packed[starts[row] + position]
    return rows


def _distances(
    compared: Sequence[Sequence[FloatArray]], early: Instances
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(M, M) TVD and its standard error. compared: by predictor and seed, see `predictions_at_scored`."""
    distance, stderr = np.zeros((2, len(compared), len(compared)))
    for i, one in enumerate(compared):
        for j, other in enumerate(compared[: i + 1]):
            pairs = [(a, b) for m, a in enumerate(one) for n, b in enumerate(other) if i != j or m < n]
            if pairs:
                score = mean_distance(((normalized(a), normalized(b)) for a, b in pairs), early)
                distance[i, j] = distance[j, i] = score.value
                stderr[i, j] = stderr[j, i] = score.stderr
    return distance, stderr


def mean_distance(pairs: Iterable[tuple[FloatArray, FloatArray]], early: Instances) -> ScoreRecord:
    """The mean TVD over pairs of predictions, each (P, V) at the scored positions of `early`, with its error over problems."""
    row, _ = np.nonzero(early.scored)
    each = np.mean([np.bincount(row, 0.5 * np.abs(a - b).sum(-1), len(early)) for a, b in pairs], 0)
    return mean_over(each, early.scored.sum(1), early.problem)


@dataclass(frozen=True)
class ScoreRow:
    name: str
    seeds: int
    """How many trained models its scores are the mean of. 0 of a baseline."""
    scores: Mapping[str, ScoreRecord]
    change: Change | None
    """The way from the first predictor that was given to this one, by the main score. None of the first."""
    learned: int | None = None
    """How many seeds have learned, where some have not. Else None."""
    result: Result | None = None
    """What it was trained with. None of a baseline."""

    @property
    def verdict(self) -> str:
        """What the test of significance says: "better", "worse" or "tied"; "" of the first."""
        if self.change is None:
            return ""
        return "worse" if self.change.worse else "better" if self.change.better else "tied"


def score_table(found: Found, announce: Announce = lambda name, done, total: None) -> list[ScoreRow]:
    """Scores the predictors on the test split, best first by the main score.

    Each is compared with the first that was given, on the same instances; see `regbench.metrics.significance`. A predictor that
    was not trained by regbench counts as it is, without noise of seeds.
    """
    main = found.track.metrics[found.track.definition.main_score]
    counts = counts_over(found.track.task, found.test, main.name)
    known = [_known(one, found, announce) for one in found.compared]
    order = sorted(range(len(known)), key=lambda i: (-main.sign * known[i].scores[main.name].value, i))
    rows = []
    for i in order:
        change = None
        if i != 0:
            higher = main.higher_is_better
            pair = known[0].main, known[i].main
            change = compare(*pair, counts, found.prior, higher_is_better=higher, level=SIGNIFICANCE / 2)
        seeds = known[i].main.seeds if known[i].main.trained else []
        learned = found.prior.learned(seeds, main.sign)
        rows.append(ScoreRow(found.names[i], len(seeds), known[i].scores, change, learned, known[i].result))
    return rows


def _known(one: ComparedPredictor, found: Found, announce: Announce) -> KnownScores:
    """The scores of one predictor, computed from its predictions where it has any."""
    if isinstance(one.source, KnownScores):
        return one.source
    if isinstance(one.source, Baseline):
        made = predict_baseline(one.source, found.track, found.test, partial(announce, one.name))
        return known_scores(one.name, [score_stored(found.track, found.test, made.stored)], found.track, trained=False)
    folder, result, task, test = one.source.folder, one.source.result, found.track.task, found.test
    # No name holds the predictions of a seed when the next are read: of a large track two would fill the memory.
    scores = [score(task, test, read_scored(folder, s, task, test).batches(at=test.scored)) for s in result.seeds]
    return known_scores(one.name, scores, found.track, trained=result.evaluation is None, result=result)


def known_scores(
    name: str, seeds: Sequence[Scores], track: Track, *, trained: bool, result: Result | None = None
) -> KnownScores:
    """Puts the scores of several seeds together. The error of a mean over seeds is their deviation over sqrt(n)."""
    main, records = track.definition.main_score, {}
    for metric in track.task.scores:
        records[metric] = ScoreRecord.over_seeds([one[metric] for one in seeds])
    sums = np.array([one.sums[main] for one in seeds])
    sample = Sample.of([one[main].value for one in seeds], sums, seeds[0].counts_of(main), trained)
    return KnownScores(name, records, sample, result)
