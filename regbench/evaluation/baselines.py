"""Scores of a trained model and of the baselines on the test split, as a result keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from regbench.checks.baseline import blaming, examined
from regbench.checks.task import examine_task_once
from regbench.data.instances import Instances
from regbench.evaluation.baseline_predictions import baseline_key, files_digest
from regbench.metrics import scores as scoring
from regbench.metrics.scores import Scores, Steps, bin_width, predict_in_batches, rows_at_once, score
from regbench.models.predictor import Baseline
from regbench.results import BaselineRecord, Curve, ScoreRecord
from regbench.tasks.base import Task
from regbench.tracks import Track
from regbench.utils import registry
from regbench.utils.cache import cache_root
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write


def score_records(scores: Scores) -> tuple[dict[str, ScoreRecord], dict[str, Curve]]:
    """The scores and their curves by position, as the result keeps them; by progress, where the task tells its own."""
    width = bin_width(len(scores.position_counts))
    curves = {}
    for metric in scores.sums:
        if metric in scores.steps:
            curves[metric] = _curve_by_step(scores.steps[metric])
            continue
        position, value, count = scores.curve(metric, width)
        curves[metric] = Curve(position=position.round(2).tolist(), value=value.round(6).tolist(), count=count.tolist())
    return {m: ScoreRecord(value=s.value, stderr=s.stderr) for m, s in scores.table().items()}, curves


def _curve_by_step(steps: Steps) -> Curve:
    step, scores, count = steps.curve()
    return Curve(
        position=step.round(2).tolist(),
        value=[round(s.value, 6) for s in scores],
        count=count.tolist(),
        stderr=[round(s.stderr, 6) for s in scores],
        axis=steps.label,
    )


def lineup(track: Track, instances: Instances) -> list[Baseline]:
    """Every registered baseline that fits the track's task; where nobody knows the truth, none that is the truth itself.

    Raises:
        UserError: the task or a baseline is not built in and breaks its contract, or two baselines have one name or one place.
    """
    examine_task_once(track)
    found = [b for name in registry.entries(registry.BASELINE) for b in forms_of(name, track, instances)]
    anchors = [str(b.anchor) for b in found if b.anchor is not None]
    for what, said in (("called", [b.name for b in found]), ("the anchor", anchors)):
        twice = next((name for name in said if said.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"two baselines on {track.name} are {what} '{twice}'")
    return found


def forms_of(name: str, track: Track, instances: Instances) -> list[Baseline]:
    """The forms of one baseline, a registered one or a file, that stand beside results on the track; [] where it has none.

    Raises:
        UserError: there is no such baseline, or it is not built in and breaks its contract.
    """
    cls = registry.load(registry.BASELINE, name)
    if track.task.io.kind not in cls.takes or (cls.anchor == "end" and not track.task.knows_truth):
        return []
    if registry.is_built_in(registry.BASELINE, cls):
        made: list[Baseline] = cls.lineup(track.task, instances)
        return made
    return examined(cls, registry.short_name(name), track.task, instances)


def score_baseline(baseline: Baseline, task: Task, instances: Instances) -> Scores:
    """Its scores, computed now."""
    rows = rows_at_once(task.io, instances.tokens.shape[1], len(instances))
    with blaming(baseline):
        return score(task, instances, predict_in_batches(baseline, instances, rows))


def score_baselines(
    track: Track, instances: Instances, announce: Callable[[str], None], *, anchors: bool = False
) -> dict[str, BaselineRecord]:
    """Scores of the whole lineup, by name. They depend on nothing that is trained, so they are kept in the cache.

    The key is what decides the baseline's predictions, and the code that scores them.

    Args:
        track: the track.
        instances: of the split to score on.
        announce: is told the name of each baseline that is computed now.
        anchors: whether only those two are wanted by which normalized scores are measured.
    """
    records = {}
    for baseline in lineup(track, instances):
        if anchors and baseline.anchor is None:
            continue
        path = cache_root() / "baselines" / f"{_record_key(baseline, track, instances)}.json"
        record = _read_record(path)
        if record is None:
            announce(baseline.name)
            started = time.perf_counter()
            scores, curves = score_records(score_baseline(baseline, track.task, instances))
            text = BaselineRecord(
                scores=scores,
                curves=curves,
                options=baseline.options,
                seconds=round(time.perf_counter() - started, 3),
                anchor=baseline.anchor,
            ).model_dump_json()
            record = BaselineRecord.model_validate_json(
                text
            )  # as it will be read: tuples among the options become lists
            try:
                with atomic_write(path) as file:
                    file.write(text)
            except OSError:
                pass  # a cache that cannot be written is done without
        records[baseline.name] = record
    return records


def _record_key(baseline: Baseline, track: Track, instances: Instances) -> str:
    return baseline_key(baseline, track, instances, scoring=files_digest([Path(scoring.__file__)]))


def _read_record(path: Path) -> BaselineRecord | None:
    try:
        return BaselineRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
