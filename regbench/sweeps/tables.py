"""What a sweep shows: one row for each chosen configuration and for each trial, as CSV files, and the best as a configuration."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from regbench.results import Result, read_result
from regbench.sweeps.grid import Group, Point, shown
from regbench.sweeps.state import SweepFolder
from regbench.training.checkpoint import read_trained
from regbench.utils.files import atomic_write, write_rows

_DIGITS = 6


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Chosen:
    group: Group
    """What it was chosen in."""
    point: Point
    result: Result
    validation: Spread
    """The best validation loss of each seed, in nats."""
    folder: Path

    def score(self, metric: str) -> Spread:
        return Spread.of([seed.scores[metric].value for seed in self.result.seeds])

    @property
    def normalized(self) -> Spread | None:
        return Spread.of(self.result.normalized) if self.result.normalized else None


def rows_of(folder: SweepFolder, finished: Iterable[tuple[Group, Point]], groups: Sequence[Group]) -> list[Chosen]:
    order = {group.key: i for i, group in enumerate(groups)}
    rows = []
    for group, point in sorted(finished, key=lambda pair: order[pair[0].key]):
        run = folder.run_folder(point)
        result = read_result(run)
        losses = [min(row.validation_loss for row in seed.training_curve) for seed in result.seeds]
        rows.append(Chosen(group, point, result, Spread.of(losses), run))
    return rows


def best_rows(rows: Sequence[Chosen]) -> list[Chosen]:
    """The best of each architecture on each track, by the median validation loss; the test split is not asked."""
    best: dict[tuple[str, str], Chosen] = {}
    for row in rows:
        place = (row.point.track.name, row.point.name)
        if place not in best or row.validation.median < best[place].validation.median:
            best[place] = row
    return list(best.values())


def axes_of(groups: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(axis for group in groups for point in group.points for axis in point.axes))


FIGURES = ("trials", "seeds", "parameters", "state")
"""Columns of every table with one number."""
SPREADS = ("validation_loss", "normalized_score", "reach")
"""Columns of every table with a median and, beside it, the lowest and highest seed."""


def lines_of(rows: Sequence[Chosen], groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What `table.csv` says of each row, by column."""
    axes, best = axes_of(groups), best_rows(rows)
    lines = []
    for row in rows:
        line: dict[str, Any] = {
            "track": row.point.track_name,
            "architecture": row.point.name,
            **{axis: shown(row.point.axes[axis]) for axis in axes if axis in row.point.axes},
            "configuration": row.point.digest[:12],
            "trials": row.result.selection.trials,
            "seeds": len(row.result.seeds),
            "parameters": row.result.architecture.parameters,
            "state": row.result.architecture.state_after(row.point.track.task.io.max_length),
            "best": "yes" if row in best else "no",
            **_spread("validation_loss", row.validation),
            **_spread("normalized_score", row.normalized),
            **_reach(row.result),
        }
        for metric in row.result.metrics:
            line |= _spread(metric, row.score(metric))
        lines.append(line)
    return lines


def write_table(path: Path, rows: Sequence[Chosen], groups: Sequence[Group]) -> None:
    """Writes `table.csv`: nothing in it depends on time or machine, so that the same sweep has the same bytes."""
    lines = lines_of(rows, groups)
    columns = ["track", "architecture", *axes_of(groups), "configuration", *FIGURES, "best"]
    for name in (*SPREADS, *dict.fromkeys(metric for row in rows for metric in row.result.metrics)):
        columns += [name, f"{name}_low", f"{name}_high"]
    columns.insert(columns.index("reach") + 1, "reach_bound")
    without = {name for name in columns if name.startswith("reach") and not any(name in line for line in lines)}
    columns = [name for name in columns if name not in without]
    write_rows(path, columns, ([line.get(name, "") for name in columns] for line in lines))


def write_trials(path: Path, folder: SweepFolder, groups: Sequence[Group], chosen: Mapping[str, Point]) -> None:
    """Writes `trials.csv`: the validation loss of every trial, and which was chosen. `chosen` is that of a `Schedule`."""
    axes, lines = axes_of(groups), []
    for group in groups:
        for point, cell in zip(group.points, group.trials, strict=bool(group.trials)):
            trained = read_trained(folder.cell(cell))
            loss = None if trained is None else trained.progress.best_validation_loss
            lines.append(
                {
                    "track": point.track_name,
                    "architecture": point.name,
                    **{axis: shown(value) for axis, value in point.axes.items()},
                    "configuration": point.digest[:12],
                    "seed": cell.seed,
                    "train_tokens": None if trained is None else trained.progress.tokens,
                    "validation_loss": _rounded(loss),
                    "chosen": "yes" if point is chosen.get(group.key) else "no",
                }
            )
    columns = ["track", "architecture", *axes, "configuration", "seed", "train_tokens", "validation_loss", "chosen"]
    write_rows(path, columns, ([line.get(name, "") for name in columns] for line in lines))


def write_best(folder: SweepFolder, rows: Sequence[Chosen]) -> None:
    """Writes `best.yaml`, which `regbench run --config` takes: the best of a track by validation; of several tracks a file each.

    Its trials are all that were made with its architecture on its track. Files of an earlier form of the sweep are removed.
    """
    path = folder.path
    for earlier in (path / "best.yaml", *(path / f"best-{run.name}.yaml" for run in path.glob("runs/*"))):
        earlier.unlink(missing_ok=True)
    tracks = list(dict.fromkeys(row.point.track.name for row in rows))
    for track in tracks:
        own = [row for row in rows if row.point.track.name == track]
        best = min(own, key=lambda row: row.validation.median)
        name = "best.yaml" if len(tracks) == 1 else f"best-{track}.yaml"
        with atomic_write(path / name) as file:
            config = best.point.config(best.group.seeds, folder.tried(best.point))
            yaml.safe_dump(config.model_dump(mode="json"), file, sort_keys=False)


def _spread(name: str, spread: Spread | None) -> dict[str, float | None]:
    if spread is None:
        return {}
    values = (spread.median, spread.low, spread.high)
    return {f"{name}{end}": _rounded(value) for end, value in zip(("", "_low", "_high"), values, strict=True)}


def _reach(result: Result) -> dict[str, float | str]:
    """The reach in the main score, where the track has an axis of sizes: of the median seed, the lowest and the highest."""
    main = result.track.main_score
    found = sorted(
        (seed.reach[main] for seed in result.seeds if seed.reach and main in seed.reach), key=lambda reach: reach.rank
    )
    if not found:
        return {}
    middle = found[(len(found) - 1) // 2]
    return {"reach": middle.size, "reach_bound": middle.bound, "reach_low": found[0].size, "reach_high": found[-1].size}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
