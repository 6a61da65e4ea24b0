"""Checks against what a run left: its configuration, its logs, its weights and, above all, its predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from regbench.leaderboard.case import Case, Check
from regbench.leaderboard.entry import InstanceScores
from regbench.leaderboard.guard import Refused
from regbench.metrics.scores import score_records
from regbench.results import Curve, SeedRecord

_EXACT = 1e-9
"""Of figures that are computed again from the same numbers, relative: only the order of a sum may differ."""


def predictions(case: Case) -> Iterator[str]:
    """Scores, standard errors, curves and instance scores are computed again from the stored predictions."""
    if case.scored is None:
        return
    for seed, one in zip(case.result.seeds, case.scored, strict=True):
        if one.digest != seed.predictions_sha256:
            yield f"seed {seed.seed}: the predictions are not those that were scored: their SHA-256 is {one.digest[:12]}"
        scores, curves = score_records(one.scores)
        for metric, record in scores.items():
            given = seed.scores[metric]
            for what, claimed, real in (
                (metric, given.value, record.value),
                (f"the standard error of {metric}", given.stderr, record.stderr),
            ):
                if not abs(claimed - real) <= _EXACT * max(1.0, abs(real)):
                    yield f"seed {seed.seed}: {what} is {claimed:.7g}, and the predictions give {real:.7g}"
            if not _same_curve(seed.curves[metric], curves[metric]):
                yield f"seed {seed.seed}: the curve of {metric} is not that of the predictions"
    if case.instances is not None:
        own = InstanceScores.of([one.scores for one in case.scored])
        for seed, claimed_sums, sums in zip(case.result.seeds, case.instances.sums, own.sums, strict=True):
            for metric in sums:
                if not np.allclose(claimed_sums[metric], sums[metric], rtol=1.1e-6, atol=1e-12):
                    yield f"seed {seed.seed}: instances: {metric} is not that of the predictions"


def config(case: Case) -> Iterator[str]:
    """`config.yaml` asks for what the command asks for."""
    if case.run is not None and case.run.recipe != case.recipe:
        yield f"config.yaml asks for: {case.run.recipe}"


def logs(case: Case) -> Iterator[str]:
    """`scores.json` and `metrics.jsonl` of every seed say what the result says."""
    for seed in _recorded(case):
        assert case.run is not None
        try:
            if case.run.seed_record(seed.seed) != seed:
                yield f"seed-{seed.seed}/scores.json differs from the result"
            rows = [_row(row) for row in case.run.evaluations(seed.seed)]
        except Refused as error:
            yield str(error)
        else:
            if rows != [_row({**c.loss, **c.model_dump(exclude={"loss"})}) for c in seed.training_curve]:
                yield f"seed-{seed.seed}/metrics.jsonl has another training curve than the result"


def weights(case: Case) -> Iterator[str]:
    """The checkpoint of every seed holds as many parameters as are claimed."""
    for seed in _recorded(case):
        assert case.run is not None
        try:
            elements = sum(case.run.weights(seed.seed).values())
        except Refused as error:
            yield str(error)
        else:
            if elements < case.result.architecture.parameters:
                yield (
                    f"seed-{seed.seed}/checkpoint.safetensors holds {elements:,} numbers, fewer than the "
                    f"{case.result.architecture.parameters:,} parameters"
                )


CHECKS: tuple[Check, ...] = (config, logs, weights, predictions)


def _recorded(case: Case) -> list[SeedRecord]:
    """The seeds whose folders can be there."""
    return [] if case.run is None else [seed for seed in case.result.seeds if 0 <= seed.seed < 2**32]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("learning_rate", "tokens_per_second")}


def _same_curve(claimed: Curve, real: Curve) -> bool:
    if (claimed.position, claimed.count, claimed.axis) != (real.position, real.count, real.axis):
        return False
    pairs = [(claimed.value, real.value)]
    if real.stderr is not None:
        pairs.append((claimed.stderr or [], real.stderr))
    return all(len(a) == len(b) and np.allclose(a, b, rtol=0.0, atol=1.5e-6) for a, b in pairs)
