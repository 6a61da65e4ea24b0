"""How far the gradient that TinT computes is from the true one, on the segments of a split.

TinT lets no gradient flow through attention scores, and no bound makes what is missing small for a real model (Panigrahi et al.
2023, section 3 and D.5). So it is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from architectures.tint import explicit
from papers.tint.adaptation import BATCH, Place
from papers.tint.gradient_steps import refusal_of
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.metrics.scores import mean_over
from regbench.models.model import token_tensor
from regbench.report.table import narrow_table, plain
from regbench.results import ScoreRecord
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError

HEADS = {"values": "values against full", "tint": "tint against full", "hard": "hard heads"}
"""The columns, by measure."""


@dataclass(frozen=True)
class AngleRow:
    """A part of a model."""

    run: str  # the name of the run
    place: Place  # where the segment ends
    part: str  # "block 1", ..., "last norm"
    # by measure the mean over instances and seeds, with its standard error over instances or the problems they share
    measures: dict[str, ScoreRecord]


def measure_angles(models: Sequence[Trained], run: str, place: Place, split: str, limit: int) -> list[AngleRow]:
    instances = models[0].track.instances(split)[:limit]
    cuts = place.cuts(instances.lengths)
    seeds = [list(_of_model(trained, instances, cuts)) for trained in models]
    rows = []
    for part in sorted(seeds[0][0], key=lambda part: (part == "last norm", len(part), part)):  # block 10 after block 9
        every = {
            measure: np.mean([np.concatenate([batch[part][measure] for batch in seed]) for seed in seeds], axis=0)
            for measure in HEADS
            if measure in seeds[0][0][part]
        }
        measures = {name: mean_over(each, np.ones_like(each), instances.problem) for name, each in every.items()}
        rows.append(AngleRow(run, place, part, measures))
    return rows


def table(rows: Sequence[AngleRow]) -> Table:
    """A row for each part of each run at each place."""
    shown = narrow_table(None, ["run", "segment", "part", *HEADS.values()], 3)
    for row in rows:
        cells = [plain(row.measures[measure]) if measure in row.measures else "" for measure in HEADS]
        shown.add_row(row.run, str(row.place), row.part, *cells)
    return shown


def _of_model(
    trained: Trained, instances: Instances, cuts: NDArray[np.int64]
) -> Iterator[dict[str, dict[str, FloatArray]]]:
    """By part and measure the values of some instances, (B,), one batch after another."""
    if (why := refusal_of(trained.model)) is not None:
        raise UserError(f"--angles is not for {trained.folder}: {why}")
    if (cuts < 2).any():
        raise UserError("a segment of one token has no scores to look at: give --tokens 2 or more, or a larger --at")
    for begin in range(0, len(instances), BATCH):
        part = instances[begin : begin + BATCH]
        tokens = token_tensor(part.tokens)
        counted = torch.arange(tokens.shape[1]) < torch.from_numpy(cuts[begin : begin + BATCH, None])
        with torch.no_grad():
            found = explicit.angles(trained.model.eval(), tokens, counted)
        yield {name: {m: values.double().numpy() for m, values in own.items()} for name, own in found.items()}
