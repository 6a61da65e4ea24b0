"""Which of several predictors is better: their scores, the paired differences from the first, and whether these are chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from regbench.evaluation.baselines import Announce, predict_baseline, score_stored
from regbench.evaluation.find_predictors import ComparedPredictor, Found, KnownScores, Run
from regbench.evaluation.predictions import read_scored
from regbench.metrics.scores import Scores, by_problem, counted_positions, score
from regbench.metrics.significance import SIGNIFICANCE, Change, Sample, compare
from regbench.models.predictor import Baseline
from regbench.results import Result, ScoreRecord
from regbench.tracks import Track


@dataclass(frozen=True)
class ScoreRow:
    """One predictor."""

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
    counts = by_problem(counted_positions(found.track.task, found.test)[main.name].sum(1), found.test.problem)
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
        cut = found.prior.gap_in(seeds)
        learned = None if cut is None else sum(main.sign * (x - cut) > 0 for x in seeds)
        rows.append(ScoreRow(found.names[i], len(seeds), known[i].scores, change, learned, known[i].result))
    return rows


def _known(one: ComparedPredictor, found: Found, announce: Announce) -> KnownScores:
    """The scores of one predictor, computed from its predictions where it has any."""
    if isinstance(one.source, KnownScores):
        return one.source
    if isinstance(one.source, Baseline):
        made = predict_baseline(one.source, found.track, found.test, partial(announce, one.name))
        return known_scores(one.name, [score_stored(found.track, found.test, made.stored)], found.track, trained=False)
    result = one.source.result
    return known_scores(
        one.name, _of_run(one.source, found), found.track, trained=result.evaluation is None, result=result
    )


def _of_run(run: Run, found: Found) -> list[Scores]:
    task, scored = found.track.task, []
    for seed in run.result.seeds:
        predictions = read_scored(run.folder, seed, task, found.test)
        scored.append(score(task, found.test, predictions.batches(at=found.test.scored)))
        del predictions  # before the next is read: of a large track two would fill the memory
    return scored


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
