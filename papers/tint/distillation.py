"""Prompt distillation: how many steps of training make a model that has not read a prompt predict as one that has.

This is a proposal of ours. None of the papers measures it. It gives a price to what CGT claims: a prompt becomes weights in one
forward pass, without tuning (Zhmoginov et al. 2024, section 1). The tuned counterpart: the student is a copy of the trained
model and reads texts alone. The teacher is the same model, with the prompt before each text. Adam minimises the mean of
KL(teacher || student) over the scored positions of some sampled texts. A text has the questions of a training instance (its
tokens that are not scored), and answers that are drawn from the teacher. So no label is used. Each prompt has a student of its
own. Learning rates are chosen on the validation split, for each number of steps.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.tint import TinT
from papers.cost import total_flops
from papers.tint.adaptation import Outcome, Place, behind_segment, best_rate, position_scores, probabilities
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.models.model import Model, token_tensor
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError


@dataclass(frozen=True)
class Texts:
    """What a student is trained on.

    Attributes:
        tokens: Sampled texts, (M, W).
        scored: Which positions count, (M, W) bool.
        targets: The teacher's log probabilities, (M, W, V).
    """

    tokens: Tensor
    scored: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Distilled:
    """One run after one number of steps.

    Attributes:
        run: The name of the run.
        place: Where the prompt ends.
        steps: Steps of training.
        rate: The learning rate that was chosen.
        outcome: Before: the model without the prompt. After: the student.
        divergence: Mean KL(teacher || student) on the sampled texts, in nats a scored token.
        seconds: Per prompt, the sampling of texts included.
        operations: Of the first prompt, the sampling of texts included: each text as a whole pass, so at most so many.
    """

    run: str
    place: Place
    steps: int
    rate: float
    outcome: Outcome
    divergence: float
    seconds: float
    operations: float


@dataclass(frozen=True)
class Distillation:
    """All numbers of steps of one run at one place.

    Attributes:
        rows: One for each number of steps.
        prompted: Before: the model without the prompt. After: the model with it.
        pass_operations: Of one pass over a prompt.
    """

    rows: tuple[Distilled, ...]
    prompted: Outcome
    pass_operations: float


@torch.no_grad()
def sample_texts(model: Model, prompt: Tensor, texts: Tensor, scored: Tensor, generator: torch.Generator) -> Texts:
    """The texts with answers drawn from the model after the prompt, and its predictions.

    Args:
        model: The teacher.
        prompt: (c,).
        texts: (M, W). Their tokens at scored positions are replaced.
        scored: (M, W) bool.
        generator: Of the draws.
    """
    cut = len(prompt)
    whole = torch.cat([prompt.expand(len(texts), -1), texts], dim=1)
    for t in scored.any(0).nonzero()[:, 0].tolist():
        drawn = torch.multinomial(model(whole[:, : cut + t + 1])[:, -1].double().softmax(-1), 1, generator=generator)
        whole[:, cut + t] = torch.where(scored[:, t], drawn[:, 0], whole[:, cut + t])
    return Texts(whole[:, cut:].clone(), scored, model(whole)[:, cut:].log_softmax(-1))


def divergence(texts: Texts, logits: Tensor) -> Tensor:
    """The mean of KL(teacher || student) over scored positions, in nats: student's logits (M, W, V) -> scalar."""
    each = F.kl_div(logits.log_softmax(-1), texts.targets, log_target=True, reduction="none").sum(-1)
    return (each * texts.scored).sum() / texts.scored.sum()


def distil(model: Model, texts: Texts, at: Sequence[int], rate: float) -> Iterator[tuple[int, Model]]:
    """Trains a copy of the model on the texts.

    Args:
        model: It is left as it is.
        texts: The texts.
        at: The numbers of steps after which the student is given out, ascending.
        rate: Of Adam.

    Yields:
        Steps, and the student in evaluation mode. It goes on learning afterwards.
    """
    student = copy.deepcopy(model).eval()
    adam = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], lr=rate)
    done = 0
    for steps in at:
        for _ in range(steps - done):
            adam.zero_grad()
            divergence(texts, student(texts.tokens)).backward()
            adam.step()
        done = steps
        yield steps, student


def distil_run(
    models: Sequence[Trained],
    name: str,
    place: Place,
    *,
    rates: Sequence[float],
    steps: Sequence[int],
    queries: int,
    limit: int,
    split: str,
) -> Distillation:
    """Distils every prompt of a run, a mean over its seeds.

    Args:
        models: The run's models, one a seed.
        name: Of the run.
        place: Where the prompt ends.
        rates: Learning rates to choose from, on validation.
        steps: Numbers of steps, ascending.
        queries: Texts that are sampled for each prompt.
        limit: The most instances of a split.
        split: The split to measure on.

    Raises:
        UserError: The model changes its weights while it reads (TinT), the prompt leaves no text in the training split, or every
            rate diverges.
    """
    if isinstance(models[0].model, TinT):  # no gradient leads through the weights that it changes
        raise UserError(f"{name}: a model that takes steps of its own while it reads cannot be distilled")
    known = _measure(models, "validation", place, rates, steps, queries, limit)
    best: dict[int, float] = {}
    for n in steps:
        gains = {rate: -float(known.students[rate, n]["nll"][known.behind].mean()) for rate in rates}
        best[n] = best_rate(gains, f"{name}: every rate diverges for distill at {place}")
    chosen = sorted(set(best.values()))
    asked = known if split == "validation" else _measure(models, split, place, chosen, steps, queries, limit)
    for n, rate in best.items():
        if not np.isfinite(asked.students[rate, n]["nll"][asked.behind]).all():
            raise UserError(f"{name}: the rate {rate:g} diverges on the {split} split at {place}: give smaller --rates")
    rows = [
        Distilled(
            name,
            place,
            n,
            best[n],
            asked.outcome(best[n], n),
            *(float(np.mean(asked.figures[best[n], n][k])) for k in range(3)),
        )
        for n in steps
    ]
    prompted = Outcome(asked.unprompted, asked.prompted, asked.behind, asked.distance, asked.problem)
    return Distillation(tuple(rows), prompted, asked.pass_operations)


@dataclass
class _Measured:
    """Metrics (N, L) by name, means over the seeds; and for each rate and number of steps divergence, seconds, operations."""

    behind: np.ndarray
    distance: np.ndarray
    problem: IntArray | None
    unprompted: dict[str, FloatArray]
    prompted: dict[str, FloatArray]
    students: dict[tuple[float, int], dict[str, FloatArray]]
    figures: dict[tuple[float, int], tuple[list[float], list[float], list[float]]]
    pass_operations: float

    def outcome(self, rate: float, steps: int) -> Outcome:
        """The student beside the model without the prompt."""
        return Outcome(self.unprompted, self.students[rate, steps], self.behind, self.distance, self.problem)


def _measure(
    models: Sequence[Trained],
    split: str,
    place: Place,
    rates: Sequence[float],
    at: Sequence[int],
    queries: int,
    limit: int,
) -> _Measured:
    """Every prompt of a split."""
    track = models[0].track
    instances, train = track.instances(split)[:limit], track.instances("train")[:queries]
    cuts, behind = behind_segment(track, split, instances, place)
    own = place.cuts(train.lengths)
    found = _Measured(behind, np.arange(behind.shape[1]) - cuts[:, None], instances.problem, {}, {}, {}, {}, 0.0)
    for rate in rates:
        for n in at:
            found.students[rate, n], found.figures[rate, n] = {}, ([], [], [])

    def add(into: dict[str, FloatArray], row: int, each: Mapping[str, FloatArray]) -> None:
        for metric, values in each.items():
            whole = into.setdefault(metric, np.zeros(behind.shape))
            whole[row, : values.shape[1]] += values[0] / len(models)

    for trained in models:
        model = trained.model.eval()
        for row in range(len(instances)):
            if not behind[row].any():
                continue
            part, cut = instances[row : row + 1], int(cuts[row])
            tokens = token_tensor(part.tokens)
            questions, scored = _questions(train, own, track.task.io.max_length - cut)
            if not scored.any():
                raise UserError(f"a prompt of {place} leaves nothing scored in the training split of {track.name}")
            with torch.no_grad():
                add(found.unprompted, row, _text_scores(track.task, part, cut, model(tokens[:, cut:])))
                add(found.prompted, row, position_scores(track.task, part, probabilities(model(tokens))))
            begin = time.perf_counter()
            generator = torch.Generator().manual_seed(row)
            texts = sample_texts(model, tokens[0, :cut], questions, scored, generator)
            sampling = time.perf_counter() - begin
            if not found.pass_operations:
                found.pass_operations = float(total_flops(model, tokens[:, :cut]))
                drawn = int(scored.any(0).sum()) + 1
                whole_text = torch.cat([tokens[:, :cut].expand(len(questions), -1), texts.tokens], dim=1)
                once = drawn * total_flops(model, whole_text), 3 * total_flops(model, texts.tokens)
            for rate in rates:
                begin, spent = time.perf_counter(), 0.0
                for n, student in distil(model, texts, at, rate):
                    spent += time.perf_counter() - begin
                    with torch.no_grad():
                        add(found.students[rate, n], row, _text_scores(track.task, part, cut, student(tokens[:, cut:])))
                        left = float(divergence(texts, student(texts.tokens)))
                    figures = left, sampling + spent, once[0] + n * once[1]
                    for kept, figure in zip(found.figures[rate, n], figures, strict=True):
                        kept.append(figure)
                    begin = time.perf_counter()
    return found


def _questions(train: Instances, begin: IntArray, room: int) -> tuple[Tensor, Tensor]:
    """The texts of training instances from a position on, as far as there is room.

    Args:
        train: M instances.
        begin: Where each text begins, (M,).
        room: The most tokens.

    Returns:
        The tokens, (M, W) with the first of an instance as padding, and which positions are scored, (M, W) bool.
    """
    width = max(0, min(room, int((train.lengths - begin).max())))
    index = begin[:, None] + np.arange(width)
    inside = index < train.lengths[:, None]
    index, there = np.where(inside, index, 0), np.arange(len(train))[:, None]
    tokens = torch.from_numpy(np.asarray(train.tokens[there, index], np.int64))
    return tokens, torch.from_numpy(inside & train.scored[there, index])


def _text_scores(task: Task, instance: Instances, cut: int, logits: Tensor) -> dict[str, FloatArray]:
    """`position_scores` of one instance from logits (1, W, V) of its text alone, with nothing for the prompt."""
    return position_scores(task, instance, probabilities(F.pad(logits, (0, 0, cut, 0))))
