"""What a model predicts after a prompt, with different summaries y.

Each segment has a cut. The part before the cut is the prompt, the part after it is the text. There are five modes:

dynamic: The model reads the whole sequence, and y changes at every token.
specialised: y is that of the cut and constant. The model reads the text only (CGT section 4.2; 2024, Fig. 6b).
specialised, prompt read: The same y, but x also reads the prompt again (2024, Fig. 6a).
moving: As specialised, but y is a moving average that starts at the cut and follows the y of the text (2024, Fig. 13).
unprompted: The model reads the text only, and y is that of the text.

Activation patching (CGT D.3, "Token probabilities") reads the text of one segment with the y of another segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from architectures.cgt.slow import SlowModel
from papers.cgt.segments import Segments, windows
from regbench.data.instances import Instances
from regbench.metrics.metric import Rows, computed, score_positions
from regbench.metrics.scores import mean_over
from regbench.models.model import token_tensor
from regbench.models.predictor import rows_at_once
from regbench.results import ScoreRecord
from regbench.tasks.base import Task, VectorIO
from regbench.utils.arrays import FloatArray, IntArray

LOSSES = ("nll", "mse")
MODES = ("dynamic", "specialised", "specialised, prompt read", "moving", "unprompted")
PAIRS = 200
"""Activation patching uses at most this many pairs of segments."""
Read = Callable[[Tensor, IntArray, IntArray], Iterable[tuple[str, Tensor]]]
"""From whole sequences (B, L), the numbers of their segments (B,), and the positions of their texts (B, W) to the outputs for
the texts, by mode (B, W, V)."""
KINDS = ("the donor's alone", "both texts'", "its own alone", "neither text's")


def has_summary(model: Any) -> bool:
    """Whether a model has a summary y of its context, as `SlowModel` has."""
    return all(hasattr(model, method) for method in ("context", "summary", "with_context"))


@dataclass(frozen=True)
class Outcomes:
    """Metrics after the prompts."""

    values: Mapping[str, Mapping[str, FloatArray]]  # by mode and metric, (S, W). W is the distance from the cut
    scored: NDArray[np.bool_]  # which positions are scored, (S, W) bool
    # what errors are over, for each segment, (S,): its instance, or the problem that instances share
    unit: NDArray[np.integer]

    @property
    def loss(self) -> str:
        """The metric that is the loss: that of tokens or that of vectors."""
        return next(metric for metric in LOSSES if metric in self.values["dynamic"])

    def score(self, mode: str, metric: str) -> ScoreRecord:
        """The mean over scored positions, with its standard error over units."""
        return mean_by_unit(self.values[mode][metric], self.scored, self.unit)

    def difference(
        self, mode: str, other: str, metric: str, distance: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The metric of `mode` minus that of `other`, by distance from the cut.

        Distances with few scored positions are left out as noise: fewer than 20, or than a 20th of those at the first distance.

        Returns:
            The K distances, the mean differences and their standard errors, (K,) each.
        """
        gap = self.values[mode][metric] - self.values[other][metric]
        found, mean, error = [], [], []
        most = 0
        for at in np.unique(distance[self.scored]):
            counted = self.scored & (distance == at)
            most = most or int(counted.sum())
            if counted.sum() < max(20, most // 20):
                continue
            score = mean_by_unit(gap, counted, self.unit)
            found.append(float(at))
            mean.append(score.value)
            error.append(score.stderr)
        return np.array(found), np.array(mean), np.array(error)

    def first_tokens(self, mode: str, other: str, metric: str, tokens: int) -> ScoreRecord | None:
        """`difference` over the first tokens after the cut. None if none of them is scored."""
        counted = self.scored & (np.arange(self.scored.shape[1]) < tokens)
        gap = self.values[mode][metric] - self.values[other][metric]
        return mean_by_unit(gap, counted, self.unit) if counted.any() else None


def mean_by_unit(values: FloatArray, counted: NDArray[np.bool_], unit: NDArray[np.integer]) -> ScoreRecord:
    """The mean over counted values, (S, W), with its standard error over units, (S,); see `Instances.units`."""
    return mean_over((values * counted).sum(1), counted.sum(1), unit)


def read_in_modes(
    model: SlowModel,
    task: Task,
    instances: Instances,
    segments: Segments,
    rate: float,
    modes: Sequence[str] = MODES,
) -> Outcomes:
    """Every metric of the task after the prompts."""

    def read(tokens: Tensor, chosen: IntArray, at: IntArray) -> Iterator[tuple[str, Tensor]]:
        return _outputs(model, tokens, segments[chosen], at, rate, modes)

    return read_texts(task, instances, segments, read)


@torch.no_grad()
def read_texts(task: Task, instances: Instances, segments: Segments, read: Read) -> Outcomes:
    """Every metric of the task in the texts, by what `read` gives."""
    batch_size = rows_at_once(task.io, instances.tokens.shape[1], 32)
    index, inside = windows(segments.cut, segments.end)
    scored = inside & instances.scored[segments.row[:, None], index]
    values: dict[str, dict[str, FloatArray]] = defaultdict(dict)
    for begin in range(0, len(segments), batch_size):
        chosen = np.arange(begin, min(begin + batch_size, len(segments)))
        part = segments[chosen]
        rows = instances[part.row]
        tokens = token_tensor(rows.tokens)
        truth = task.truth(rows) if task.knows_truth else None
        at, _ = windows(part.cut, part.end)
        there = np.arange(len(part))[:, None]
        for mode, out in read(tokens, chosen, at):
            known = None if truth is None else truth[there, at]
            found = _scores(task, out.double(), known, rows.tokens[there, at])
            for metric, each in found.items():
                if metric not in (*task.scores, *LOSSES):  # it means nothing on this task
                    continue
                whole = values[mode].setdefault(metric, np.zeros(index.shape))
                whole[begin : begin + len(part), : each.shape[1]] = each
    return Outcomes(values, scored, instances.units(np.asarray(segments.row)))


def _scores(task: Task, out: Tensor, truth: FloatArray | None, tokens: NDArray[np.integer]) -> dict[str, FloatArray]:
    """Every metric at every position, (B, W) each, from outputs and truth (B, W, V). Some tasks have no known truth."""
    if isinstance(task.io, VectorIO):
        assert truth is not None  # every task of vectors knows it
        return computed(Rows(tokens[..., -task.io.d_out :].astype(np.float64), out.numpy(), truth=truth))
    return score_positions(out.softmax(-1).numpy(), truth, tokens)


def _outputs(
    model: SlowModel, tokens: Tensor, part: Segments, at: NDArray[np.integer], rate: float, modes: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """The model's output for tokens[at] in each mode: (B, L), (B, W) -> (B, W, V), one mode at a time."""
    there = torch.arange(len(part))[:, None]
    index, cut = torch.from_numpy(at), torch.from_numpy(part.cut)
    if "dynamic" in modes:
        yield "dynamic", model(tokens)[there, index]
    rest = tokens[there, index]
    if "unprompted" in modes:
        yield "unprompted", model(rest)
    if set(modes) <= {"dynamic", "unprompted"}:
        return
    y = model.context(tokens)[there[:, 0], cut]
    if "specialised" in modes:
        yield "specialised", model.with_context(rest, y)
    if "specialised, prompt read" in modes:
        again, _ = windows(part.start, part.end)
        after = torch.minimum(index - torch.from_numpy(part.start)[:, None], torch.tensor(again.shape[1] - 1))
        read = model.with_context(tokens[there, torch.from_numpy(again)], y)
        yield "specialised, prompt read", read[there, after]
    if "moving" in modes:
        yield "moving", model.with_context(rest, moving_average(y, model.context(rest), rate))


def moving_average(first: Tensor, y: Tensor, rate: float) -> Tensor:
    """The moving average u_t = (1 - rate) u_{t-1} + rate y_t, with u_{-1} = first (2024, Fig. 13).

    Args:
        first: (B, d).
        y: (B, L, d).
        rate: From 0, where u is constant, to 1, where it is y.

    Returns:
        (B, L, d).
    """
    used, now = [], first
    for each in y.unbind(1):
        now = torch.lerp(now, each, rate)
        used.append(now)
    return torch.stack(used, dim=1)


@dataclass(frozen=True)
class Patching:
    """How predictions change when y comes from another text, the donor's."""

    by_kind: dict[str, float]  # mean rise of the log probability in nats, over the tokens in prompts of `KINDS`
    rises: FloatArray  # mean rise of each token's log probability, over pairs and positions, in nats, (V,)
    total_variation: float  # mean total variation distance between the two predictions
    pairs: int  # number of pairs


@torch.no_grad()
def activation_patching(model: SlowModel, instances: Instances, segments: Segments) -> Patching:
    """Reads the text of each segment with its own y and with that of a donor (CGT D.3). For tasks of tokens.

    The donor is the next segment of another instance. Both y are those of the cuts, and constant. Only scored positions count.
    """
    size = model.io.vocab_size
    sums, counts = np.zeros(len(KINDS)), np.zeros(len(KINDS))
    rises, distances = [], []
    last = len(segments) - segments.per_row
    for k in range(0, min(PAIRS, max(0, last))):
        own, donor = segments[k : k + 1], segments[k + segments.per_row : k + segments.per_row + 1]
        prompts = [instances.tokens[s.row[0], s.start[0] : s.cut[0]] for s in (own, donor)]
        y = [_summary(model, instances, s) for s in (own, donor)]
        rest = instances.tokens[own.row[0], own.cut[0] : own.end[0]]
        scored = instances.scored[own.row[0], own.cut[0] : own.end[0]]
        if not scored.any():
            continue
        text = token_tensor(rest[None])
        before, after = (model.with_context(text, each)[0].double().log_softmax(-1).numpy()[scored] for each in y)
        rise = (after - before).mean(0)
        rises.append(rise)
        distances.append(0.5 * np.abs(np.exp(after) - np.exp(before)).sum(-1).mean())
        has = [np.isin(np.arange(size), part) for part in prompts]
        for number, kind in enumerate((~has[0] & has[1], has[0] & has[1], has[0] & ~has[1], ~has[0] & ~has[1])):
            sums[number] += rise[kind].sum()
            counts[number] += kind.sum()
    by_kind = {kind: float(s / c) for kind, s, c in zip(KINDS, sums, counts, strict=True) if c}
    mean = np.mean(rises, axis=0) if rises else np.zeros(size)
    return Patching(by_kind, mean, float(np.mean(distances)) if distances else 0.0, len(rises))


def _summary(model: SlowModel, instances: Instances, segment: Segments) -> Tensor:
    """The y of the cut, after the whole sequence before it: (1, d)."""
    prefix = instances.tokens[segment.row[0], : segment.cut[0]]
    return model.summary(token_tensor(prefix[None]))
