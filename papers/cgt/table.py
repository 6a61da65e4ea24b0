"""A table of several runs on one track, a row each over all its seeds (CGT Table 1).

All columns are over the positions after the prompts:

base: The model reads the whole sequence, and y changes at every token. Runs without y have only this column.
specialised: y is constant from the cut on, and only the text is read. "prompt read": x reads the prompt again, with the same y.
unprompted: The model reads the text only, and y is that of the text.
variation: How far y moves per token (CGT Eq. 4).
linear probe: Mean absolute error of a linear probe that reads the hidden numbers from y, in standard deviations.

On tracks of examples the cuts may be after given numbers of examples. Then each row is a run with one cut (CGT Figure 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from papers.cgt.linear_probe import LinearProbe, probe_hidden, require_scikit_learn
from papers.cgt.modes import Outcomes, has_summary, mean_by_unit, read_in_modes
from papers.cgt.representation import contexts, step_lengths
from papers.cgt.segments import Segments, examples_before, single_context_segments, windows
from regbench.analysis.trained import Trained, load_named, own_track, run_names
from regbench.config import read_run
from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines
from regbench.models.predictor import Predictor
from regbench.results import ScoreRecord
from regbench.tasks.base import Task, VectorIO
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

DYNAMIC = "dynamic"
FROZEN = ("specialised", "specialised, prompt read", "unprompted")
VARIATION, LINEAR_PROBE = "variation", "linear_probe"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds."""

    value: float  # the mean
    stderr: float  # its standard error over seeds. For one seed, or a baseline, over instances
    by_seed: tuple[float, ...]  # the value of each seed

    @classmethod
    def of(cls, scores: Sequence[ScoreRecord]) -> Mean:
        mean = ScoreRecord.over_seeds(scores)
        return cls(mean.value, mean.stderr, tuple(score.value for score in scores))


@dataclass(frozen=True)
class Row:
    """One run, or a baseline, at one cut."""

    name: str  # of the run or the baseline
    architecture: str  # of the run
    seeds: tuple[int, ...]  # of the run; none for a baseline
    cut: int | None  # after how many examples. None: where the task has its cut
    scores: Mapping[str, Mapping[str, Mean]]  # by mode and metric
    y: Mapping[str, Mean] = field(default_factory=dict)  # `VARIATION` and `LINEAR_PROBE`, if they can be measured
    # by mode, the track's metric at each number of examples before
    by_example: Mapping[str, Mapping[int, Mean]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTable:
    """The whole table."""

    track: str  # name of the track
    split: str  # the split that was read
    instances: int  # how many of its instances
    # the track's main score. If that is over a group of positions (`last_two_accuracy`), its metric (`token_accuracy`)
    metric: str
    label: str  # what `by_example` counts
    rows: tuple[Row, ...]  # runs and baselines
    segments: int  # number of segments


@dataclass(frozen=True)
class _Place:
    """The segments of one cut, and their task and instances."""

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
    track: str | None = None,
) -> RunTable:
    require_scikit_learn()
    runs = _runs(folders, split, track)
    read = next(iter(runs.values()))[0].track
    instances = read.instances(split)[:limit]
    metric = read.metrics[read.definition.main_score].over
    places = [_Place(read.task, instances, parts, cut, metric) for cut, parts in _parts(read, instances, cuts)]
    rows: list[Row] = []
    for name, seeds in runs.items():
        announce(f"reading {name}, {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}")
        rows += _rows(name, seeds, places)
    if isinstance(read.task.io, VectorIO):
        for baseline in default_baselines(read, instances):
            announce(f"reading {baseline.name}")
            rows += [_baseline_row(baseline.name, baseline, place) for place in places]
    # Rows with one cut are compared with each other.
    order = {place.cut: number for number, place in enumerate(places)}
    rows.sort(key=lambda row: order[row.cut])
    return RunTable(
        read.name, split, len(instances), metric, read.task.progress_label, tuple(rows), len(places[0].parts)
    )


def cut_after(parts: Segments, progress: IntArray, examples: int) -> Segments:
    """The same segments with their cut after a number of examples."""
    index, inside = windows(parts.start, parts.end)
    before = progress[parts.row[:, None], index]
    most = int(before[inside].max()) + 1
    if not 0 < examples < most:
        raise UserError(f"a cut after {examples} examples of {most} leaves nothing on one side: 1 to {most - 1}")
    late = inside & (before >= examples)
    cut = parts.start + late.argmax(1)
    return Segments(parts.row, parts.start, cut, parts.end, parts.number)


def _runs(folders: Sequence[str | Path], split: str, track: str | None) -> dict[str, list[Trained]]:
    """The models of all seeds of every run, by its name. All runs are checked before anything is measured."""
    names, paths = run_names(folders), [Path(folder) for folder in folders]
    configs = [read_run(path) for path in paths]
    found: dict[str, list[Trained]] = {}
    for name, path, config in zip(names, paths, configs, strict=True):
        if not (path / "result.json").exists():
            raise UserError(f"{path} is not finished: go on with regbench run --resume {path}")
        found[name] = [
            load_named(path, seed, split, track=own_track(path, track), read_track=True) for seed in config.seeds
        ]
    (first, (one, *_)), *others = found.items()
    for name, (other, *_) in others:
        if other.track.definition.digest != one.track.definition.digest:
            raise UserError(
                f"runs of different tracks cannot be in one table: {first} is on {one.track.name}, "
                f"{name} on {other.track.name}"
            )
    return found


def _parts(track: Track, instances: Instances, cuts: Sequence[int]) -> Iterator[tuple[int | None, Segments]]:
    """The segments with each of the cuts, or with the task's own cut."""
    parts = single_context_segments(track.task, instances)
    if not len(parts):
        raise UserError(f"no instance of {track.name} can be cut into a prompt and a text")
    if not cuts:
        yield None, parts
        return
    progress = examples_before(track.task, instances)
    if progress is None:
        raise UserError(f"--cuts counts examples, and {track.name} has none: its cut is where the task has it")
    for examples in sorted(set(cuts)):
        yield examples, cut_after(parts, progress, examples)


def _rows(name: str, seeds: Sequence[Trained], places: Sequence[_Place]) -> list[Row]:
    summarises = has_summary(seeds[0].model)
    modes = (DYNAMIC, *FROZEN) if summarises else (DYNAMIC,)
    read: list[list[Outcomes]] = [[] for _ in places]
    about_y: list[list[dict[str, ScoreRecord]]] = [[] for _ in places]
    for trained in seeds:
        model: Any = trained.model
        y = contexts(model, places[0].instances.tokens) if summarises else None
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
            {what: Mean.of([each[what] for each in measured]) for what in measured[0]},
            _by_example(outcomes, place),
        )
        for place, outcomes, measured in zip(places, read, about_y, strict=True)
    ]


def _scores(outcomes: Sequence[Outcomes]) -> dict[str, dict[str, Mean]]:
    """By mode and metric, over the seeds."""
    return {
        mode: {metric: Mean.of([each.score(mode, metric) for each in outcomes]) for metric in metrics}
        for mode, metrics in outcomes[0].values.items()
    }


def _by_example(outcomes: Sequence[Outcomes], place: _Place) -> dict[str, dict[int, Mean]]:
    """By mode, the metric at each number of examples before; empty if the task counts no examples."""
    progress = examples_before(place.task, place.instances)
    if progress is None:
        return {}
    index, _ = windows(place.parts.cut, place.parts.end)
    before = progress[place.parts.row[:, None], index]
    scored = outcomes[0].scored
    return {
        mode: {
            int(step): Mean.of(
                [
                    mean_by_unit(each.values[mode][place.metric], scored & (before == step), each.unit)
                    for each in outcomes
                ]
            )
            for step in np.unique(before[scored])
        }
        for mode in outcomes[0].values
    }


def _about_y(y: FloatArray, place: _Place) -> dict[str, ScoreRecord]:
    """Variation, and the error of the linear probe if the truth has real numbers. y: (N, L, d)."""
    steps, late = step_lengths(y, place.parts)
    found = {VARIATION: mean_by_unit(steps, late, place.instances.units(np.asarray(place.parts.row)))}
    probe = probe_hidden(y, place.instances, place.parts)
    if isinstance(probe, LinearProbe):
        errors = np.abs(probe.targets - probe.predictions)
        found[LINEAR_PROBE] = mean_by_unit(
            errors, np.ones_like(errors, dtype=np.bool_), place.instances.units(probe.row)
        )
    return found


def _baseline_row(name: str, predictor: Predictor, place: _Place) -> Row:
    """The row of a baseline of vectors, which reads the whole sequence."""
    model: Any = lambda tokens: torch.from_numpy(predictor.predict(tokens.numpy()))  # noqa: E731
    outcomes = read_in_modes(model, place.task, place.instances, place.parts, rate=0.0, modes=(DYNAMIC,))
    return Row(name, "", (), place.cut, _scores([outcomes]), {}, _by_example([outcomes], place))
