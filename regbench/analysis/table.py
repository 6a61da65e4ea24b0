"""Several runs on one track, a row each: what they say with their prompt and specialised to it (the form of CGT Table 1).

For each run, over the positions behind the cuts and over all its seeds:

base: the metric where the whole sequence is read and y changes from token to token. Of a model without y all it has.
specialised: y frozen at the cut, and what is behind it read alone; "prompt read": x reads the prompt again, with that y.
unprompted: what is behind the cut read alone, y and all.
variation: how far y travels behind the cut, a token (CGT Eq. 4).
linear fit: mean absolute error of what a linear map reads from y of the hidden numbers, in their standard deviations, on
    instances it was not fitted to.

Of tracks of examples the cuts may stand after given numbers of them: then a row is a run and a cut, as in CGT Figure 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regbench.analysis.guided import is_guided
from regbench.analysis.linear_fit import LinearFit, fit_hidden
from regbench.analysis.modes import Outcomes, read_in_modes
from regbench.analysis.representation import contexts, travelled
from regbench.analysis.segments import Segments, examples_before, stretches_to_read, windows
from regbench.analysis.trained import Trained, load_trained, read_run
from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines
from regbench.metrics.scores import Score
from regbench.models.predictor import Predictor
from regbench.tasks.base import Task, VectorIO
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

BASE = "dynamic"
FROZEN = ("specialised", "specialised, prompt read", "unprompted")
VARIATION, LINEAR_FIT = "variation", "linear_fit"


@dataclass(frozen=True)
class Figure:
    """A mean over seeds with its standard error over them; of one seed (or a baseline) the standard error over instances."""

    value: float
    stderr: float
    by_seed: tuple[float, ...]

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Figure:
        """From the score of each seed."""
        values = [score.value for score in scores]
        if len(values) == 1:
            return cls(values[0], scores[0].stderr, (values[0],))
        stderr = float(np.std(values, ddof=1) / np.sqrt(len(values)))
        return cls(float(np.mean(values)), stderr, tuple(values))


@dataclass(frozen=True)
class Row:
    """One run, or a baseline, at one cut. seeds: of a baseline none.  cut: after how many examples; None: where the task has it.

    scores: by mode and metric.  y: `VARIATION` and `LINEAR_FIT`, as far as they can be measured.
    by_example: by mode the track's metric at each number of examples before, over those behind the cut.
    """

    name: str
    architecture: str
    seeds: tuple[int, ...]
    cut: int | None
    scores: Mapping[str, Mapping[str, Figure]]
    y: Mapping[str, Figure] = field(default_factory=dict)
    by_example: Mapping[str, Mapping[int, Figure]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTable:
    """All rows; metric: the track's main one, or what that is a group of (`last_two_accuracy`: `token_accuracy`).

    stretches: those of one context each, over which everything is measured.
    """

    track: str
    split: str
    instances: int
    metric: str
    label: str
    rows: tuple[Row, ...]
    stretches: int


@dataclass(frozen=True)
class _Place:
    """Where everything is measured, for one cut."""

    task: Task
    instances: Instances
    parts: Segments
    cut: int | None
    metric: str


def tabulate(
    folders: Sequence[str | Path],
    *,
    split: str,
    limit: int,
    cuts: Sequence[int] = (),
    announce: Callable[[str], None] = lambda _: None,
) -> RunTable:
    """Measures every seed of finished runs on the first `limit` instances of a split.

    Raises:
        UserError: a folder twice, runs of different tracks, an unfinished one, or a cut that leaves nothing on one side.
    """
    runs = _runs(folders, split)
    track = next(iter(runs.values()))[0].track
    instances = track.instances(split)[:limit]
    main = track.definition.main_score
    metric = track.task.group_scores.get(main, (main, None))[0]
    places = [_Place(track.task, instances, parts, cut, metric) for cut, parts in _parts(track, instances, cuts)]
    rows: list[Row] = []
    for name, seeds in runs.items():
        announce(f"reading {name}, {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}")
        rows += _rows(name, seeds, places)
    if isinstance(track.task.io, VectorIO):
        for baseline in default_baselines(track, instances):
            announce(f"reading {baseline.name}")
            rows += [_baseline_row(baseline.name, baseline, place) for place in places]
    # Those of one cut are to be compared.
    order = {place.cut: number for number, place in enumerate(places)}
    rows.sort(key=lambda row: order[row.cut])
    return RunTable(
        track.name, split, len(instances), metric, track.task.progress_label, tuple(rows), len(places[0].parts)
    )


def cut_after(parts: Segments, progress: IntArray, examples: int) -> Segments:
    """The same stretches cut behind so many examples. progress: (N, L), how many examples stand before a position's own.

    Raises:
        UserError: nothing would be on one side.
    """
    index, inside = windows(parts.start, parts.end)
    before = progress[parts.row[:, None], index]
    most = int(before[inside].max()) + 1
    if not 0 < examples < most:
        raise UserError(f"a cut after {examples} examples of {most} leaves nothing on one side: 1 to {most - 1}")
    late = inside & (before >= examples)
    cut = parts.start + late.argmax(1)
    return Segments(parts.row, parts.start, cut, parts.end, parts.number)


def _runs(folders: Sequence[str | Path], split: str) -> dict[str, list[Trained]]:
    """The models of every run by its name, all seeds; whatever is wrong is said before anything is measured."""
    paths = [Path(folder) for folder in folders]
    seen: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in seen:
            raise UserError(f"{path} is given twice")
        seen[path.resolve()] = path
    configs = [read_run(path) for path in paths]
    found: dict[str, list[Trained]] = {}
    for name, path, config in zip(_names(list(seen)), paths, configs, strict=True):
        if not (path / "result.json").exists():
            raise UserError(f"{path} is not finished: go on with regbench run --resume {path}")
        found[name] = [load_trained(path, seed, split) for seed in config.seeds]
    (first, (one, *_)), *others = found.items()
    for name, (other, *_) in others:
        if other.track.definition.digest != one.track.definition.digest:
            raise UserError(
                f"runs of different tracks have no table in common: {first} is on {one.track.name}, "
                f"{name} on {other.track.name}"
            )
    return found


def _names(paths: Sequence[Path]) -> list[str]:
    """What the folders are called, with as much of the path as tells them apart."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _parts(track: Track, instances: Instances, cuts: Sequence[int]) -> Iterator[tuple[int | None, Segments]]:
    """The stretches with each of the cuts; none are asked for: with the task's own."""
    parts = stretches_to_read(track.task, instances)
    if not len(parts):
        raise UserError(f"no instance of {track.name} can be cut into a part that shows its context and a rest")
    if not cuts:
        yield None, parts
        return
    progress = examples_before(track.task, instances)
    if progress is None:
        raise UserError(f"--cuts counts examples, and {track.name} has none: its cut is where the task has it")
    for examples in sorted(set(cuts)):
        yield examples, cut_after(parts, progress, examples)


def _rows(name: str, seeds: Sequence[Trained], places: Sequence[_Place]) -> list[Row]:
    """A run at every cut."""
    guided = is_guided(seeds[0].model)
    modes = (BASE, *FROZEN) if guided else (BASE,)
    read: list[list[Outcomes]] = [[] for _ in places]
    about_y: list[list[dict[str, Score]]] = [[] for _ in places]
    for trained in seeds:
        model: Any = trained.model
        y = contexts(model, places[0].instances.tokens) if guided else None
        for number, place in enumerate(places):
            read[number].append(read_in_modes(model, place.task, place.instances, place.parts, rate=0.0, modes=modes))
            about_y[number].append({} if y is None else _about_y(y, place))
    return [
        Row(
            name,
            seeds[0].architecture,
            tuple(trained.seed for trained in seeds),
            place.cut,
            _scores(outcomes),
            {what: Figure.of([each[what] for each in measured]) for what in measured[0]},
            _by_example(outcomes, place),
        )
        for place, outcomes, measured in zip(places, read, about_y, strict=True)
    ]


def _scores(outcomes: Sequence[Outcomes]) -> dict[str, dict[str, Figure]]:
    """By mode and metric, over the seeds."""
    return {
        mode: {metric: Figure.of([each.score(mode, metric) for each in outcomes]) for metric in metrics}
        for mode, metrics in outcomes[0].values.items()
    }


def _by_example(outcomes: Sequence[Outcomes], place: _Place) -> dict[str, dict[int, Figure]]:
    """By mode, the metric at each number of examples before; nothing where the task counts no examples."""
    progress = examples_before(place.task, place.instances)
    if progress is None:
        return {}
    index, _ = windows(place.parts.cut, place.parts.end)
    before = progress[place.parts.row[:, None], index]
    scored = outcomes[0].scored
    return {
        mode: {
            int(step): Figure.of(
                [
                    _by_instance(each.values[mode][place.metric], scored & (before == step), place.parts.row)
                    for each in outcomes
                ]
            )
            for step in np.unique(before[scored])
        }
        for mode in outcomes[0].values
    }


def _about_y(y: FloatArray, place: _Place) -> dict[str, Score]:
    """Variation, and the error of the linear fit where the truth tells real numbers: (N, L, d) -> scores over instances."""
    steps, late = travelled(y, place.parts)
    found = {VARIATION: _by_instance(steps, late, place.parts.row)}
    fit = fit_hidden(y, place.instances, place.parts)
    if isinstance(fit, LinearFit):
        errors = np.abs(fit.true - fit.said)
        found[LINEAR_FIT] = _by_instance(errors, np.ones_like(errors, dtype=np.bool_), fit.row)
    return found


def _by_instance(values: FloatArray, counted: Any, row: IntArray) -> Score:
    """The mean of what is counted, (S, W), with its standard error over instances; row: (S,), of which instance each is."""
    sums = np.bincount(row, (values * counted).sum(1)).astype(np.float64)
    counts = np.bincount(row, counted.sum(1)).astype(np.int64)
    return Score.of(sums[counts > 0], counts[counts > 0])


class _Predicts(nn.Module):
    """A predictor as `read_in_modes` reads a model: (B, L, D) -> (B, L, D_out)."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(self.predictor.predict(tokens.numpy()))


def _baseline_row(name: str, predictor: Predictor, place: _Place) -> Row:
    """A baseline of vectors, which reads the prompt and what is behind it."""
    model: Any = _Predicts(predictor)
    outcomes = read_in_modes(model, place.task, place.instances, place.parts, rate=0.0, modes=(BASE,))
    return Row(name, "", (), place.cut, _scores([outcomes]), {}, _by_example([outcomes], place))
