"""One model read in several ways behind a cut: with the prompt, without it, with y frozen, with y let drift.

dynamic: the whole sequence is read, and y changes from token to token.
specialised: y stands still as it was at the cut, and the text behind it is read alone (CGT section 4.2; 2024, Fig. 6b).
specialised, prompt read: the same y, but x also reads the stretch's first part again (2024, Fig. 6a).
moving: as specialised, but y follows its value in the text behind the cut as a moving average (2024, Fig. 13).
unprompted: the text behind the cut is read alone, y and all: what knows nothing of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regbench.analysis.guided import Guided
from regbench.analysis.segments import Segments, windows
from regbench.data.instances import Instances
from regbench.metrics.batching import rows_at_once
from regbench.metrics.metric import TokenPrediction, score_positions, score_tokens, score_vectors
from regbench.metrics.scores import Score
from regbench.models.model import token_tensor
from regbench.tasks.base import Task, VectorIO
from regbench.utils.arrays import FloatArray

LOSSES = ("nll", "mse")
MODES = ("dynamic", "specialised", "specialised, prompt read", "moving", "unprompted")


@dataclass(frozen=True)
class Outcomes:
    """Metrics behind the cuts. values: by mode and metric, (S, W), W the distance from the cut.  scored: (S, W).  row: (S,)."""

    values: Mapping[str, Mapping[str, FloatArray]]
    scored: NDArray[np.bool_]
    row: NDArray[np.integer]

    def score(self, mode: str, metric: str) -> Score:
        """The mean over what is scored, with its standard error over instances."""
        return self._mean(self.values[mode][metric], self.scored)

    def difference(
        self, mode: str, other: str, metric: str, distance: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """metric of `mode` less that of `other` at each distance from the cut, (S, W): which, mean, standard error, (K,) each.

        Distances at which fewer than 20 positions are scored, or a 20th of those at the first, are left out: they are noise.
        """
        gap = self.values[mode][metric] - self.values[other][metric]
        found, mean, error = [], [], []
        most = 0
        for at in np.unique(distance[self.scored]):
            counted = self.scored & (distance == at)
            most = most or int(counted.sum())
            if counted.sum() < max(20, most // 20):
                continue
            score = self._mean(gap, counted)
            found.append(float(at))
            mean.append(score.value)
            error.append(score.stderr)
        return np.array(found), np.array(mean), np.array(error)

    def _mean(self, values: FloatArray, counted: NDArray[np.bool_]) -> Score:
        """Of what is counted, (S, W), with its standard error over instances."""
        sums = np.bincount(self.row, (values * counted).sum(1)).astype(np.float64)
        counts = np.bincount(self.row, counted.sum(1)).astype(np.int64)
        return Score.of(sums[counts > 0], counts[counts > 0])


@torch.no_grad()
def read_in_modes(
    model: Guided,
    task: Task,
    instances: Instances,
    segments: Segments,
    rate: float,
    batch_size: int = 32,
    modes: Sequence[str] = MODES,
) -> Outcomes:
    """Every metric of the task behind the cuts of `segments`, in each of `modes`. rate: of the moving average.

    For "dynamic" alone the model need only be callable. Of a large vocabulary fewer stretches than `batch_size` are read at once.
    """
    batch_size = rows_at_once(task.io, instances.tokens.shape[1], batch_size)
    index, inside = windows(segments.cut, segments.end)
    scored = inside & instances.scored[segments.row[:, None], index]
    values: dict[str, dict[str, FloatArray]] = {mode: {} for mode in modes}
    for begin in range(0, len(segments), batch_size):
        part = segments[begin : begin + batch_size]
        rows = instances[part.row]
        tokens = token_tensor(rows.tokens, torch.device("cpu"))
        truth = task.truth(rows) if task.knows_truth else None
        at, _ = windows(part.cut, part.end)
        there = np.arange(len(part))[:, None]
        for mode, out in _outputs(model, tokens, part, at, rate, modes):
            known = None if truth is None else truth[there, at]
            found = _scores(task, out.double(), known, rows.tokens[there, at])
            for metric, each in found.items():
                if metric not in (*task.scores, *LOSSES):  # what says nothing of this task
                    continue
                whole = values[mode].setdefault(metric, np.zeros(index.shape))
                whole[begin : begin + len(part), : each.shape[1]] = each
    return Outcomes(values, scored, np.asarray(segments.row))


def _scores(task: Task, out: Tensor, truth: FloatArray | None, tokens: NDArray[np.integer]) -> dict[str, FloatArray]:
    """Every metric at every position, (B, W) each, of a model's output (B, W, V). truth: the same, None where it is unknown."""
    if truth is None:
        return score_tokens(TokenPrediction.of(out.softmax(-1).numpy(), tokens), tokens)
    if isinstance(task.io, VectorIO):
        return score_vectors(out.numpy(), truth, tokens[..., -task.io.d_out :].astype(np.float64))
    return score_positions(out.softmax(-1).numpy(), truth, tokens)


def _outputs(
    model: Guided, tokens: Tensor, part: Segments, at: NDArray[np.integer], rate: float, modes: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """What the model says of tokens[at] in each mode: (B, L), (B, W) -> (B, W, V), one at a time."""
    there = torch.arange(len(part))[:, None]
    index, cut = torch.from_numpy(at), torch.from_numpy(part.cut)
    if "dynamic" in modes:
        yield "dynamic", model(tokens)[there, index]
    if set(modes) <= {"dynamic"}:
        return
    rest = tokens[there, index]
    y = model.context(tokens)[there[:, 0], cut]
    if "specialised" in modes:
        yield "specialised", model.with_context(rest, y)
    if "specialised, prompt read" in modes:
        again, _ = windows(part.start, part.end)
        behind = torch.minimum(index - torch.from_numpy(part.start)[:, None], torch.tensor(again.shape[1] - 1))
        read = model.with_context(tokens[there, torch.from_numpy(again)], y)
        yield "specialised, prompt read", read[there, behind]
    if "moving" in modes:
        yield "moving", model.with_context(rest, moving_average(y, model.context(rest), rate))
    if "unprompted" in modes:
        yield "unprompted", model(rest)


def moving_average(first: Tensor, y: Tensor, rate: float) -> Tensor:
    """u_t = (1 - rate) u_{t-1} + rate y_t from u = first before position 0: (B, d), (B, L, d) -> (B, L, d). 2024, Fig. 13."""
    used, now = [], first
    for computed in y.unbind(1):
        now = torch.lerp(now, computed, rate)
        used.append(now)
    return torch.stack(used, dim=1)
