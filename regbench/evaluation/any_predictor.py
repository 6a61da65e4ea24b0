"""The evaluation of any predictor: guarded, and scored as a run scores its own, beside the same baselines."""

from __future__ import annotations

import hashlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from regbench.data.instances import Instances
from regbench.evaluation.baselines import Progress, named_baselines, score_baselines
from regbench.evaluation.given import Given, check_shape, given
from regbench.evaluation.guards import CUTS, TOLERANCE, CutCheck, HonestyCheck, require_bottleneck
from regbench.evaluation.predictions import StoredPredictions, store
from regbench.metrics.reach import reach_of
from regbench.metrics.scores import score, score_records
from regbench.models.predictor import predict_in_batches, rows_at_once
from regbench.results import (
    ArchitectureRecord,
    BaselineRecord,
    Evaluation,
    Result,
    SeedRecord,
    Selection,
    normalized_scores,
)
from regbench.tasks.base import Task, VectorIO
from regbench.tracks import Track
from regbench.training.progress import now_and_then
from regbench.training.provenance import describe_code, describe_environment
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, nearest

_SPLITS = ("test", "validation")


def evaluate_predictor(
    track: Track,
    predictor: Any,
    predicts: str | None,
    kind: str | None,
    split: str,
    name: str | None,
    device: str,
    announce: Callable[[str], None],
    baselines: Sequence[str] | None = None,
) -> tuple[Result, StoredPredictions]:
    """The result of any predictor, and its predictions. `regbench.runner.evaluate` explains the arguments.

    `announce` is told what happens.
    """
    if split not in _SPLITS:
        raise UserError(f"unknown split '{split}'{nearest(split, _SPLITS)}")
    if name is not None and not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise UserError(f"a name for tables is needed, not {name!r}")
    require_bottleneck(predictor, track)
    one = given(predictor, track.task, predicts, kind, device)
    weights = weights_digest(one.module) if one.module is not None else None
    instances = track.instances(split)
    named_baselines(track, instances, baselines)  # a wrong name is told before all is predicted
    what = f"predicting the {split} split of {track.name}"
    announce(what)
    started = time.perf_counter()
    task = track.task
    fresh = None
    if split == "test" and task.portable:  # what makes fresh ones makes them as the test split
        with track.blaming_task():
            fresh = task.fresh(track.definition.splits, CUTS, secrets.randbits(48))
    with _in_evaluation_mode(one.module):
        stored = stored_of(one, task, instances, fresh, progress=now_and_then(what, announce))
    seconds = time.perf_counter() - started
    records = score_baselines(track, instances, announce, names=baselines)
    result = result_of(
        track,
        ArchitectureRecord(
            name=name or _name_of(predictor),
            source=one.what,
            source_sha256=weights or stored.digest,
            options={},
            parameters=sum(p.numel() for p in one.module.parameters()) if one.module is not None else 0,
            state_bytes=None,
            state_at={},
        ),
        [record_of(track, instances, stored, seconds, records)],
        records,
        Evaluation.model_validate({"given": one.what, "predicts": one.predicts, "kind": one.kind, "split": split}),
        one.device,
    )
    return result, stored


def record_of(
    track: Track,
    instances: Instances,
    stored: StoredPredictions,
    seconds: float,
    baselines: Mapping[str, BaselineRecord],
    seed: int = 0,
) -> SeedRecord:
    """The scores of predictions that took so many seconds, with zeros where a training would stand."""
    scores, curves = score_records(score(track.task, instances, stored.batches()))
    return SeedRecord(
        seed=seed,
        scores=scores,
        share_of_the_way=normalized_scores(scores, baselines),
        curves=curves,
        training_curve=[],
        best_step=0,
        steps=0,
        tokens=0,
        seconds=round(seconds, 3),
        tokens_per_second=round(instances.n_tokens / max(seconds, 1e-9), 1),
        peak_memory_bytes=0,
        reach=reach_of(track.task, curves),
        predictions_sha256=stored.digest,
    )


def result_of(
    track: Track,
    architecture: ArchitectureRecord,
    seeds: list[SeedRecord],
    baselines: dict[str, BaselineRecord],
    evaluation: Evaluation,
    device: torch.device,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> Result:
    """The result of what regbench has not trained."""
    return Result(
        track=track.record(),
        architecture=architecture,
        training={},
        seeds=seeds,
        baselines=baselines,
        selection=Selection(),
        environment=describe_environment(device, {}, {}, precision),
        code=describe_code(),
        evaluation=evaluation,
    )


_NO_NAMES = ("model", "net", "predict", "predictor", "forward", "__call__", "<lambda>")
"""What many functions and classes are called."""


def _name_of(predictor: Any) -> str:
    """The name of a function or of an object, of a published model its own, else its class. An array is called "predictions".

    A method is called as its object, what `torch.compile` made as what it was made from. Where the name could be any model's, it
    is that of the file.
    """
    if isinstance(predictor, np.ndarray | Tensor):
        return "predictions"
    predictor = getattr(predictor, "__self__", predictor)
    predictor = getattr(predictor, "_orig_mod", predictor)
    names = (getattr(predictor, key, None) for key in ("__name__", "name", "name_or_path"))
    name = next((one for one in names if isinstance(one, str) and one), type(predictor).__name__)
    name = name.rstrip("/").rpartition("/")[2]
    if name.lower() in _NO_NAMES:
        file = getattr(sys.modules.get(getattr(predictor, "__module__", "")), "__file__", None)
        name = Path(file).stem if file else name if name.isidentifier() else "callable"
    return name if name.isprintable() else type(predictor).__name__


def weights_digest(module: nn.Module) -> str:
    """SHA-256 of every tensor of a module, with its name, shape and type."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor):
            raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode() + raw.numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _in_evaluation_mode(module: nn.Module | None) -> Iterator[None]:
    """A module and all its parts are in evaluation mode, and afterwards each in the mode in which it was."""
    modes = {} if module is None else {part: part.training for part in module.modules()}
    if module is not None:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def stored_of(
    one: Given,
    task: Task,
    instances: Instances,
    fresh: Instances | None = None,
    tolerance: float = TOLERANCE,
    progress: Progress = lambda done, total: None,
) -> StoredPredictions:
    """Asks for all predictions, weighs them against the tokens and the truth on the way, and then asks for some once more.

    `fresh` and `tolerance` are for `CutCheck`.
    """
    honesty, cuts = HonestyCheck(task), CutCheck(instances, fresh)
    at_once = rows_at_once(one.io, instances.tokens.shape[1], 64)
    rows = predict_in_batches(one, instances, at_once) if one.rows is None else _rows_of_array(one, instances, at_once)

    def watched() -> Iterator[FloatArray]:
        start = 0
        for batch in rows:
            honesty.add(batch, instances[start : start + len(batch)])
            cuts.add(batch, start)
            start += len(batch)
            progress(start, len(instances))
            yield batch

    stored = store(task, watched(), instances)
    honesty.judge(one, cuts)
    if one.rows is None:  # an array cannot be asked
        cuts.judge(one, tolerance)
    return stored


def _rows_of_array(one: Given, instances: Instances, at_once: int) -> Iterator[FloatArray]:
    """The rows of an array, each beside the token that it predicts, so many instances at once."""
    assert one.rows is not None
    n, length = instances.scored.shape
    width = one.io.width
    if one.predicts == "next" and one.rows.shape == (n, length - 1, width):
        raise UserError(
            f"the array has {length - 1} rows for {length} tokens: give each instance one more, of the token after its last, "
            "which is not read"
        )
    check_shape(one.rows, (n, length, width), one.what)
    for start in range(0, n, at_once):
        some = instances[start : start + at_once]
        shape = some.scored.shape
        given = some.lengths - (one.predicts == "next")  # the row of the last token predicts what is not there
        rows = one.distributions(one.rows[start : start + at_once, : shape[1]], shape, given)
        if one.predicts == "next":  # nothing predicts the first token
            first = 0.0 if isinstance(one.io, VectorIO) else 1.0 / width
            rows = np.concatenate([np.full_like(rows[:, :1], first), rows[:, :-1]], axis=1)
        yield rows
