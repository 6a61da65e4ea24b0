"""The baselines of a track side by side: scores, time, and how far each is from the best that does not know the truth.

Differences are paired: both predictors answer the same instances, so the standard error is that of the difference over
instances, far less than either score's own.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pydantic

from regbench.evaluation.baselines import Announce, default_baselines, predict_baseline, score_stored
from regbench.metrics.scores import Scores
from regbench.results import ScoreRecord
from regbench.tracks import Track
from regbench.utils.errors import UserError
from regbench.utils.settings import Strict


class BaselineRow(Strict):
    options: dict[str, Any]
    version: int
    """The baseline's `version` when it was measured."""
    scores: dict[str, ScoreRecord]
    difference: dict[str, ScoreRecord]
    """By score its value less that of the best baseline, paired over instances. The best itself has none."""
    seconds: float = pydantic.Field(ge=0)
    processor_seconds: float = pydantic.Field(ge=0)
    """Processor time of all threads together. Other programs on the machine do not add to it."""
    threads: int = pydantic.Field(ge=1)


class TrackTable(Strict):
    """The baselines of one track, the best first."""

    split: str
    """Fingerprint of the test split."""
    instances: int
    main_score: str
    losses: list[str]
    """The scores of which lower is better."""
    best: str
    """The baseline that differences are to: the best one that does not know the truth."""
    rows: dict[str, BaselineRow]

    @property
    def metrics(self) -> list[str]:
        return list(self.rows[self.best].scores)


def measure(track: Track, announce: Announce = lambda name, done, total: None) -> TrackTable:
    """Scores the default baselines on the test split. Predictions come from the cache where it has them."""
    test = track.instances("test")
    baselines = default_baselines(track, test)
    if not any(baseline.anchor != "end" for baseline in baselines):
        raise UserError(f"no baseline is for the task '{track.definition.task}' of {track.name}")
    main = track.definition.main_score
    sign = track.metrics[main].sign
    scored: dict[str, Scores] = {}
    costs: dict[str, dict[str, Any]] = {}
    for baseline in baselines:
        made = predict_baseline(baseline, track, test, partial(announce, baseline.name))
        scored[baseline.name] = score_stored(track, test, made.stored)
        costs[baseline.name] = made.costs
    baselines.sort(key=lambda baseline: sign * scored[baseline.name][main].value, reverse=True)
    best = next(baseline.name for baseline in baselines if baseline.anchor != "end")
    rows = {}
    for baseline in baselines:
        name = baseline.name
        rows[name] = BaselineRow(
            options=json.loads(json.dumps(baseline.options)),  # tuples become lists, as in a file that is read
            version=baseline.version,
            scores=scored[name].table(),
            difference={} if name == best else difference(scored[name], scored[best]),
            **costs[name],
        )
    return TrackTable(
        split=test.fingerprint,
        instances=len(test),
        main_score=main,
        losses=[name for name, metric in track.metrics.items() if not metric.higher_is_better],
        best=best,
        rows=rows,
    )


def difference(one: Scores, other: Scores) -> dict[str, ScoreRecord]:
    """By score its value of `one` less that of `other`, with the standard error of the paired difference over instances."""
    return {m: ScoreRecord.of(one.sums[m] - other.sums[m], one.counts_of(m)) for m in one.sums}
