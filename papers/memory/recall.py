"""What the memories of a model recall over training, and in which order they are learned, from the logs of runs.

A model that measures its weights (`Model.measured`) has rows `measured.NAME` in the log of its training. A figure called
`recall.NAME` is the share of its pairs that a memory recalls, and `chance.NAME` is what chance gives (*Birth of a Transformer*,
Bietti et al. 2023, arXiv:2306.00802). `divergence.NAME` is in nats.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from regbench.config import read_run
from regbench.report.pictures import COLOURS, DASHES, drawing
from regbench.training.progress import MEASURED
from regbench.utils.errors import UserError, nearest
from regbench.utils.files import write_rows
from regbench.utils.folder import Folder
from regbench.utils.guard import Refused, parse_json

RECALL, CHANCE = "recall.", "chance."
_LOG_BYTES = 16 << 20


@dataclass(frozen=True)
class Measured:
    """The figures of one seed's training."""

    run: Path  # the run folder
    seed: int  # the seed
    steps: tuple[int, ...]  # the steps after which they were measured, (R,), from 0
    figures: Mapping[str, tuple[float, ...]]  # by name the values, (R,)

    @property
    def every(self) -> int:
        """The most steps from one row to the next."""
        return max((b - a for a, b in pairwise(self.steps)), default=0)

    def memories(self) -> list[str]:
        return [name.removeprefix(RECALL) for name in self.figures if name.startswith(RECALL)]


def read_measured(folder: str | Path) -> list[Measured]:
    folder = Path(folder)
    config, found = read_run(folder), []
    for seed in config.seeds:
        path = folder / f"seed-{seed}" / "metrics.jsonl"
        if not os.path.lexists(path):
            raise UserError(f"{folder} has not trained seed {seed}: there is no seed-{seed}/metrics.jsonl")
        try:
            lines = Folder(folder).read(f"seed-{seed}/metrics.jsonl", _LOG_BYTES).splitlines()
            rows: list[dict[str, Any]] = [parse_json(line, path.name) for line in lines]
            rows = [row for row in rows if any(name.startswith(MEASURED) for name in row)]
            names = [name for name in rows[0] if name.startswith(MEASURED)] if rows else []
            figures = {name.removeprefix(MEASURED): tuple(float(row[name]) for row in rows) for name in names}
            steps = tuple(int(row["step"]) for row in rows)
        except (Refused, KeyError, TypeError, ValueError):
            raise UserError(f"{path} is no log of a training") from None
        if not any(name.startswith(RECALL) for name in figures):
            raise UserError(
                f"{folder} has no recall to show: '{config.architecture}' measures none while it trains, "
                "as associative_memory does"
            )
        found.append(Measured(folder, seed, steps, figures))
    return found


def learned_at(measured: Measured, memory: str) -> int | None:
    """The step at which a memory is half learned.

    This is the first measured step from which on its recall stays at or above half of the way from chance to the last value.
    None: its last value is not above chance.
    """
    values = measured.figures.get(RECALL + memory)
    if values is None:
        raise UserError(f"unknown memory '{memory}'{nearest(memory, measured.memories())}")
    chance = measured.figures.get(CHANCE + memory, values)[0]
    if values[-1] <= chance:
        return None
    half, since = chance + (values[-1] - chance) / 2, measured.steps[-1]
    for step, value in zip(reversed(measured.steps), reversed(values), strict=True):
        if value < half - 1e-9:  # a share such as 3/5 is rounded
            break
        since = step
    return since


def in_order(measured: Measured, expected: Sequence[str]) -> bool:
    """Whether the memories are learned in this order.

    The first two may be learned within one row of the log, and then count as in order (as W_O2 and W_K2 often are).
    """
    if len(expected) < 2:
        raise UserError("an order of learning needs two memories or more, such as o2,k2,k1")
    steps = [learned_at(measured, memory) for memory in expected]
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return False
    gaps = [later - earlier for earlier, later in pairwise(known)]
    return gaps[0] >= -measured.every and all(gap > 0 for gap in gaps[1:])


def write_csv(found: Iterable[Measured], path: Path) -> None:
    """Writes every figure: run, seed, step, name, value."""
    rows = [
        (one.run, one.seed, step, name, value)
        for one in found
        for name, values in one.figures.items()
        for step, value in zip(one.steps, values, strict=True)
    ]
    write_rows(path, ("run", "seed", "step", "name", "value"), rows)


def plot_recall(found: Sequence[Measured], path: Path) -> None:
    """Draws recall by training step, a panel for each run: the mean over seeds thick, each seed thin, chance grey."""
    runs = list(dict.fromkeys(one.run for one in found))
    names = list(dict.fromkeys(name for one in found for name in one.memories()))
    styles = dict(zip(names, itertools.cycle(zip(COLOURS, ("-", *DASHES), strict=True)), strict=False))
    with drawing(path, (5.6 * len(runs), 4.4)) as figure:
        for axes, run in zip(figure.subplots(1, len(runs), squeeze=False, sharey=True).flat, runs, strict=True):
            seeds = [one for one in found if one.run == run]
            for name in (name for name in names if all(name in one.memories() for one in seeds)):
                colour, dashes = styles[name]
                values = [one.figures[RECALL + name] for one in seeds]
                for one, own in zip(seeds, values, strict=True):
                    axes.plot(one.steps, own, color=colour, linewidth=0.7, alpha=0.35)
                shared = min(len(own) for own in values)
                mean = [sum(own[i] for own in values) / len(values) for i in range(shared)]
                axes.plot(seeds[0].steps[:shared], mean, color=colour, linestyle=dashes, linewidth=2, label=name)
                if CHANCE + name in seeds[0].figures:
                    axes.axhline(
                        seeds[0].figures[CHANCE + name][0], color="#999999", linewidth=0.8, linestyle=(0, (1, 2))
                    )
            axes.set_title(f"{run.name}: {len(seeds)} seed{'s' * (len(seeds) > 1)}; dotted: chance")
            axes.set_xlabel("training step")
            axes.set_ylim(-0.02, 1.04)
            axes.legend(frameon=False, loc="lower right", title="memory")
        figure.axes[0].set_ylabel("share of its pairs that a memory recalls")
