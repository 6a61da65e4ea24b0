"""How far a model is from other predictors over the course of its training: ICLL Figure 6 with time as an axis.

It is asked of runs with `training.keep_checkpoints=true`. Their weights at every evaluation lie in `seed-N/course/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regbench.data.instances import Instances
from regbench.evaluation.baselines import Announce
from regbench.evaluation.comparison import at_scored, compared_part, mean_distance, normalized, predictions_at_scored
from regbench.evaluation.find_predictors import Found, Run
from regbench.evaluation.predictions import Predictions, predict
from regbench.models.model import ModelPredictor
from regbench.models.predictor import Baseline
from regbench.results import ScoreRecord, SeedRecord
from regbench.tracks import Track
from regbench.training.checkpoint import course_file, load_model
from regbench.utils import registry
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.files import write_rows
from regbench.utils.folder import Folder


@dataclass(frozen=True)
class Course:
    """The distances of one run."""

    name: str  # what the run is called
    tokens: Sequence[int]  # the S numbers of training tokens at which weights were kept, from 0 on
    # by predictor the S total variation distances, a mean over seeds. Their errors are over instances
    distance: Mapping[str, Sequence[ScoreRecord]]


def courses(found: Found, *, tokens: int = 100, announce: Announce = lambda name, done, total: None) -> list[Course]:
    """Computes how far the kept checkpoints of every run are from every baseline."""
    early = compared_part(found, tokens)
    named = [(name, one.source) for name, one in zip(found.names, found.compared, strict=True)]
    runs = [(name, source) for name, source in named if isinstance(source, Run)]
    baselines = [(name, source) for name, source in named if isinstance(source, Baseline)]
    if not runs or not baselines:
        raise UserError("a course needs a run to follow, and a baseline to compare it with")
    for _, run in runs:
        _check_followed(run)
    others = {
        name: normalized(predictions_at_scored(one, found.track, found.test, early, announce)[0])
        for name, one in baselines
    }
    made = []
    for name, run in runs:
        # All its seeds are evaluated after about as many tokens: those of the first are shown.
        by_seed = [_predictions(run, seed, found.track, early) for seed in run.result.seeds]
        distance: dict[str, list[ScoreRecord]] = {other: [] for other in others}
        for predicted in zip(*by_seed, strict=True):
            for other, said in others.items():
                distance[other].append(mean_distance([(one, said) for one in predicted], early))
        made.append(Course(name, _moments(run.result.seeds[0]), distance))
        announce(name, len(early), len(early))
    return made


def write_csv(found: Sequence[Course], path: Path) -> None:
    """Writes a CSV file with a line for each run, predictor and number of training tokens."""
    rows = [
        [course.name, other, tokens, f"{record.value:.6f}", f"{record.stderr:.6f}"]
        for course in found
        for other, records in course.distance.items()
        for tokens, record in zip(course.tokens, records, strict=True)
    ]
    write_rows(path, ["run", "predictor", "training_tokens", "tvd", "stderr"], rows)


def _check_followed(run: Run) -> None:
    """Refuses a run whose weights over the course of training are not there, or may not be loaded."""
    folder, seeds = Folder(run.folder), run.result.seeds
    if not all(folder.has(f"seed-{seed.seed}/{course_file(0)}") for seed in seeds):
        raise UserError(f"{run.folder} kept no checkpoints: train it with --set training.keep_checkpoints=true")
    record = run.result.architecture
    for file in [record.source] if registry.is_file(record.source) else registry.files_in(record.options):
        raise UserError(f"{run.folder} is of the architecture in the file {file}: a comparison executes no file")
    counts = sorted({len(seed.training_curve) for seed in seeds})
    if len(counts) > 1:
        raise UserError(
            f"the seeds of {run.folder} were evaluated {' and '.join(map(str, counts))} times: their mean has no course"
        )


def _moments(seed: SeedRecord) -> list[int]:
    """The numbers of training tokens at which a seed was evaluated, from 0 on."""
    return [0, *(row.tokens for row in seed.training_curve)]


def _predictions(run: Run, seed: SeedRecord, track: Track, early: Instances) -> Iterator[FloatArray]:
    """What the kept weights of a seed predict at the P scored positions: (P, V) for each moment."""
    for tokens in _moments(seed):
        name = f"seed-{seed.seed}/{course_file(tokens)}"
        try:
            model = load_model(Folder(run.folder), name, run.result.architecture, track.task.io)
        except UserError as error:
            raise UserError(f"{run.folder}: {error}") from None
        stored = predict(track.task, ModelPredictor(model), early)
        assert isinstance(stored, Predictions)  # the task knows its truth
        yield at_scored(stored, early)
