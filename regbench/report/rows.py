"""The model among the baselines: the rows of every table of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from regbench.metrics.metric import METRICS, Metrics
from regbench.metrics.scores import share_of_the_way
from regbench.results import Result, ScoreRecord


@dataclass(frozen=True)
class Row:
    """One predictor's scores. way: how far from the unigram model to the truth by the main score; None without these two.

    kind: "model" is what the run is about, its only seed or the median of several; "seed" is one of several.
    """

    name: str
    scores: Mapping[str, ScoreRecord]
    way: float | None
    kind: Literal["baseline", "seed", "model"]


def score_rows(result: Result, metrics: Metrics = METRICS) -> list[Row]:
    """The model among the baselines, best first by the track's main score; under several seeds each, and their median."""
    main = result.track.main_score
    start = next((b.scores[main].value for b in result.baselines.values() if b.anchor == "start"), None)
    end = next((b.scores[main].value for b in result.baselines.values() if b.anchor == "end"), None)

    def row(name: str, scores: Mapping[str, ScoreRecord], kind: Literal["baseline", "seed", "model"]) -> Row:
        way = None if start is None or end is None else share_of_the_way(scores[main].value, start, end)
        return Row(name, scores, way, kind)

    rows = [row(name, record.scores, "baseline") for name, record in result.baselines.items()]
    name = result.architecture.name
    if len(result.seeds) == 1:
        rows.append(row(name, result.seeds[0].scores, "model"))
    else:
        rows += [row(f"{name}, seed {seed.seed}", seed.scores, "seed") for seed in result.seeds]
        rows.append(row(f"{name}, median", {metric: result.score(metric) for metric in result.metrics}, "model"))
    return sorted(rows, key=lambda r: r.scores[main].value, reverse=metrics[main].higher_is_better)
