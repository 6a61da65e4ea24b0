"""From a sweep file to what is trained: points of the grid, the trials among which one is chosen, cells.

A point is one configuration, without seeds. A cell is a point and a seed. A group holds the points that differ in the axes of
`select.over` alone: one of them is chosen on validation.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

from regbench.config import OF_TASK, Config, parted, require_readable, variant
from regbench.models.mixer import Options
from regbench.ops.backend import use_backend
from regbench.sweeps.file import SweepFile, settings_of
from regbench.tracks import Track, load_track
from regbench.training.options import TrainingOptions, resolve_settings
from regbench.training.trainer import training_steps
from regbench.utils import registry
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError

SELECTION_SEED = 0
"""The seed of every trial."""


@dataclass(frozen=True)
class Point:
    track: Track
    """With the parameters of the task that its axes set."""
    track_name: str
    """Of the track in the file, whose parameters they change."""
    architecture: str
    cls: type[Any]
    axes: dict[str, Any]
    """The values of its axes, by the setting that each sets."""
    settings: dict[str, Any]
    options: Options
    training: TrainingOptions
    content: dict[str, Any]
    """All that decides what is trained, but for the seed."""

    def config(self, seeds: tuple[int, ...], trials: int = 1) -> Config:
        content = self.content
        return Config(
            track=content["track"][0],
            architecture=self.architecture,
            seeds=seeds,
            settings=self.settings,
            backend=content["backend"],
            device=content["device"],
            trials=trials,
        )

    @cached_property
    def digest(self) -> str:
        return digest_of(self.content)

    @property
    def name(self) -> str:
        return registry.short_name(self.architecture)

    @property
    def label(self) -> str:
        return f"{self.name} {shown_axes(self.axes)}".rstrip()

    @property
    def train_tokens(self) -> int:
        """How many tokens one seed trains on, to within an epoch's last batches."""
        budget = self.training.train_tokens or self.track.definition.budget.train_tokens
        if self.training.epochs is None:
            return budget
        lengths = train_lengths(self.track)[: self.training.train_instances]
        return min(budget, self.training.epochs * int(lengths.sum()))


@dataclass(frozen=True)
class Cell:
    """A point and a seed: what one process trains."""

    point: Point
    seed: int

    @cached_property
    def digest(self) -> str:
        return digest_of({**self.point.content, "seed": self.seed})

    @property
    def label(self) -> str:
        return f"{self.point.label} seed {self.seed}"


@dataclass(frozen=True)
class Group:
    """Points of which one is chosen, or a single point."""

    points: tuple[Point, ...]
    trials: tuple[Cell, ...]
    """The cell of each point that decides; empty where there is nothing to choose."""
    seeds: tuple[int, ...]
    axes: dict[str, Any] = field(default_factory=dict)
    """The values that all its points share."""

    @property
    def first(self) -> Point:
        return self.points[0]

    @property
    def label(self) -> str:
        return f"{self.first.name} {shown_axes(self.axes)}".rstrip()

    @property
    def further(self) -> int:
        """How many cells its chosen point needs beside the trials. Its trial is its first seed, where both are the same."""
        again = [cell.point.digest for cell in self.trials] != [point.digest for point in self.points]
        return len(self.seeds) - (bool(self.trials) and not again and SELECTION_SEED in self.seeds)

    @cached_property
    def key(self) -> str:
        """What distinguishes it from other groups of any sweep: the track, the architecture and the shared axes."""
        content = self.first.content
        return digest_of({"axes": self.axes, **{k: content[k] for k in ("track", "architecture", "source")}})


def expand(sweep: SweepFile) -> list[Group]:
    """Every group of a sweep, in the order of the file; points that come to the same are one."""
    with use_backend(sweep.backend):
        pass  # an unknown op or implementation is refused at once
    groups: list[Group] = []
    loaded: dict[str, str] = {}
    load = cache(load_track)
    for name in sweep.tracks:
        track = load(name)
        if track.name in loaded:
            raise UserError(f"track: {loaded[track.name]} and {name} are both called '{track.name}'")
        loaded[track.name] = name
        for architecture in sweep.architectures:
            groups += _groups(sweep, name, load, architecture)
    names: dict[str, str] = {}
    for architecture in sweep.architectures:
        short = registry.short_name(architecture)
        if short in names:
            raise UserError(f"grid.arch: {names[short]} and {architecture} are both called '{short}'")
        names[short] = architecture
    trained = [p for group in groups for p in (*group.points, *(cell.point for cell in group.trials))]
    # Together these have every path and every training option.
    for point in {key: p for p in trained for key in (p.track.name, p.architecture, p.training)}.values():
        require_readable(point.config(tuple(sweep.seeds)))
    for point in {(id(p.track), p.training): p for p in trained}.values():
        budget = point.track.definition.budget.train_tokens
        next(training_steps(train_lengths(point.track), point.training, budget, SELECTION_SEED))
    return groups


@lru_cache(maxsize=16)
def train_lengths(track: Track) -> IntArray:
    """(N,): the lengths of a track's training instances, read once."""
    return track.instances("train").lengths


def _groups(sweep: SweepFile, name: str, load: Callable[[str], Track], architecture: str) -> list[Group]:
    cls = registry.load(registry.ARCHITECTURE, architecture)
    source = registry.source_digest(cls)
    axes = sweep.axes_of(architecture)

    def point(values: dict[str, Any], more: dict[str, Any]) -> Point:
        of_task, settings = parted({**_joined(sweep.base), **values, **_joined(more)}, OF_TASK)
        address = variant(name, of_task)
        track = load(address)
        if settings.get("training.train_tokens") == track.definition.budget.train_tokens:
            del settings["training.train_tokens"]  # so it is without it, and a trial may be a seed of what is chosen
        try:
            options, training = resolve_settings(cls, settings)
        except UserError as error:
            hint = "; what one architecture alone knows stands under options_of" if "unknown key" in str(error) else ""
            raise UserError(f"{architecture}: {error}{hint}") from None
        content = {
            "track": [address, *track.sources],
            "architecture": architecture,
            "source": source,
            "options": options.model_dump(mode="json"),
            "training": training.model_dump(mode="json"),
            "backend": sweep.backend,
            "device": sweep.device,
        }
        return Point(track, load(name).name, architecture, cls, values, settings, options, training, content)

    found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for combination in itertools.product(*axes.values()):
        pairs = dict(zip(axes, combination, strict=True))
        shared = _joined({axis: value for axis, value in pairs.items() if not sweep.is_selected(axis)})
        found.setdefault(repr(shared), (shared, []))[1].append(_joined(pairs))
    groups: dict[tuple[str, ...], Group] = {}
    for shared, several in found.values():
        points = {made.digest: (made, values) for values in several for made in [point(values, {})]}
        more = sweep.select.settings if sweep.select is not None else {}
        trials = [Cell(point(values, more), SELECTION_SEED) for _, values in points.values()]
        chosen_among = tuple(made for made, _ in points.values())
        group = Group(chosen_among, tuple(trials) if len(trials) > 1 else (), tuple(sweep.seeds), shared)
        groups.setdefault(tuple(points), group)  # two groups of the same points are one
    return list(groups.values())


def _joined(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by the names that a run knows."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= settings_of(key, value)
    return found


def digest_of(content: Any) -> str:
    """128 bits of the SHA-256 of plain content, as 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]


def shown_axes(axes: dict[str, Any]) -> str:
    """The values of axes on one line, for people."""
    return " ".join(f"{bare(axis)}={shown(value)}" for axis, value in axes.items())


def bare(axis: str) -> str:
    """An axis without what says whose setting it is."""
    return axis.removeprefix("training.").removeprefix(OF_TASK)


def shown(value: Any) -> str:
    """A value of an axis, for people and tables."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list):
        return "[" + ",".join(map(shown, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
