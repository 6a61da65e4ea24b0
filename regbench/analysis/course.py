"""How far a model is from other predictors over the course of its training: ICLL Figure 6 with time as an axis.

It is asked of runs with `training.keep_checkpoints=true`. Their weights at every evaluation lie in `seed-N/course/`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from regbench.config import read_run
from regbench.data.instances import Instances
from regbench.evaluation.comparison import (
    Announce,
    Found,
    Run,
    at_scored,
    compared_part,
    mean_distance,
    predictions_at_scored,
)
from regbench.evaluation.predictions import Predictions, predict
from regbench.models.backbone import build, resolve_options
from regbench.models.model import ModelPredictor
from regbench.models.predictor import Baseline
from regbench.results import ScoreRecord
from regbench.tracks import Track
from regbench.training.checkpoint import kept_checkpoints, load_tensors
from regbench.utils import registry
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write


@dataclass(frozen=True)
class Course:
    """The distances of one run.

    Attributes:
        name: What the run is called.
        tokens: The S numbers of training tokens at which weights were kept, from 0 on.
        distance: By predictor the S total variation distances, a mean over seeds. Their errors are over instances.
    """

    name: str
    tokens: Sequence[int]
    distance: Mapping[str, Sequence[ScoreRecord]]


def courses(found: Found, *, tokens: int = 100, announce: Announce = lambda name, done, total: None) -> list[Course]:
    """Computes how far the kept checkpoints of every run are from every baseline.

    Args:
        found: The predictors. Runs are followed, and baselines are what they are compared with.
        tokens: How many tokens of each test instance are compared.
        announce: Is told of what has predicted.

    Raises:
        UserError: There is no run or no baseline, a run kept no checkpoints, or its architecture is a file.
        NoDistances: The track has no distributions to compare.
    """
    early = compared_part(found, tokens)
    named = [(name, one.source) for name, one in zip(found.names, found.compared, strict=True)]
    runs = [(name, source) for name, source in named if isinstance(source, Run)]
    baselines = [(name, source) for name, source in named if isinstance(source, Baseline)]
    if not runs or not baselines:
        raise UserError("a course needs a run to follow, and a baseline to compare it with")
    for _, run in runs:
        if not all(kept_checkpoints(run.folder / f"seed-{seed.seed}") for seed in run.result.seeds):
            raise UserError(f"{run.folder} kept no checkpoints: train it with --set training.keep_checkpoints=true")
    others = {name: predictions_at_scored(one, found.track, found.test, early, announce)[0] for name, one in baselines}
    made = []
    for name, run in runs:
        made.append(_course(name, run, found, others, early))
        announce(name, len(early), len(early))
    return made


def write_csv(found: Sequence[Course], path: Path) -> None:
    """Writes a CSV file with a line for each run, predictor and number of training tokens."""
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["run", "predictor", "training_tokens", "tvd", "stderr"])
        for course in found:
            for other, records in course.distance.items():
                for tokens, record in zip(course.tokens, records, strict=True):
                    writer.writerow([course.name, other, tokens, f"{record.value:.6f}", f"{record.stderr:.6f}"])


def _course(name: str, run: Run, found: Found, others: Mapping[str, FloatArray], early: Instances) -> Course:
    """The course of one run. All its seeds are evaluated after about as many tokens: those of the first are shown."""
    by_seed = [_predictions(run, seed.seed, found.track, early) for seed in run.result.seeds]
    moments = list(zip(*(made.values() for made in by_seed), strict=True))
    distance = {
        other: [mean_distance([(predicted, said) for predicted in at], early) for at in moments]
        for other, said in others.items()
    }
    return Course(name, list(by_seed[0]), distance)


def _predictions(run: Run, seed: int, track: Track, early: Instances) -> dict[int, FloatArray]:
    """By the number of training tokens, what a seed's kept weights predict at the P scored positions: (P, V) each."""
    architecture, settings = read_run(run.folder).architecture, read_run(run.folder).settings
    if registry.is_file(architecture):
        raise UserError(
            f"{run.folder} is of the architecture in the file {architecture}: a comparison executes no file"
        )
    cls = registry.load(registry.ARCHITECTURE, architecture)
    own = {name: value for name, value in settings.items() if not name.startswith("training.")}
    model, made = build(cls, resolve_options(cls, own), track.task.io), {}
    for tokens, path in kept_checkpoints(run.folder / f"seed-{seed}").items():
        try:
            model.load_state_dict(load_tensors(path)[0])
        except RuntimeError:
            raise UserError(f"{path} does not hold the weights of '{architecture}' with these options") from None
        stored = predict(track.task, ModelPredictor(model, torch.device("cpu")), early)
        assert isinstance(stored, Predictions)  # the task knows its truth
        made[tokens] = at_scored(stored, early)
    return made
