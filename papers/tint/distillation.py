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
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError


@dataclass(frozen=True)
class Texts:
    """What a student is trained on."""

    tokens: Tensor  # sampled texts, (M, W)
    scored: Tensor  # which positions count, (M, W) bool
    targets: Tensor  # the teacher's log probabilities, (M, W, V)


@dataclass(frozen=True)
class Distilled:
    """One run after one number of steps."""

    steps: int  # steps of training
    rate: float  # the learning rate that was chosen
    outcome: Outcome  # before: the model without the prompt. After: the student
    divergence: float  # mean KL(teacher || student) on the sampled texts, in nats a scored token
    seconds: float  # per prompt, the sampling of texts included
    # of the first prompt, the sampling of texts included: each text as a whole pass, so at most so many
    operations: float


@dataclass(frozen=True)
class Distillation:
    """All numbers of steps of one run at one place."""

    run: str  # the name of the run
    place: Place  # where the prompt ends
    rows: tuple[Distilled, ...]  # one for each number of steps
    prompted: Outcome  # before: the model without the prompt. After: the model with it
    pass_operations: float  # of one pass over a prompt


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
    """Distils every prompt of a run, a mean over its seeds."""
    if isinstance(models[0].model, TinT):  # no gradient leads through the weights that it changes
        raise UserError(f"{name}: a model that takes steps of its own while it reads cannot be distilled")
    known = _measure(models, "validation", place, rates, steps, queries, limit)
    best: dict[int, float] = {}
    for n in steps:
        gains = {rate: -float(known.scores[rate, n]["nll"][known.behind].mean()) for rate in rates}
        best[n] = best_rate(gains, f"{name}: every rate diverges for distill at {place}")
    chosen = sorted(set(best.values()))
    asked = known if split == "validation" else _measure(models, split, place, chosen, steps, queries, limit)
    for n, rate in best.items():
        if not np.isfinite(asked.scores[rate, n]["nll"][asked.behind]).all():
            raise UserError(f"{name}: the rate {rate:g} diverges on the {split} split at {place}: give smaller --rates")
    rows = [
        Distilled(n, rate, asked.outcome((rate, n)), *np.mean(asked.figures[rate, n], axis=0).tolist())
        for n, rate in best.items()
    ]
    return Distillation(name, place, tuple(rows), asked.outcome("prompted"), asked.pass_operations)


@dataclass
class _Measured:
    """Metrics (N, L) by name, means over the seeds: "unprompted", "prompted", and of the student by rate and steps."""

    behind: np.ndarray
    distance: np.ndarray
    problem: IntArray | None
    scores: dict[Any, dict[str, FloatArray]] = field(default_factory=lambda: defaultdict(dict))
    figures: dict[Any, list[tuple[float, float, float]]] = field(default_factory=lambda: defaultdict(list))
    pass_operations: float = 0.0

    def outcome(self, which: Any) -> Outcome:
        """Beside the model without the prompt."""
        return Outcome(self.scores["unprompted"], self.scores[which], self.behind, self.distance, self.problem)


def _measure(
    models: Sequence[Trained],
    split: str,
    place: Place,
    rates: Sequence[float],
    at: Sequence[int],
    queries: int,
    limit: int,
) -> _Measured:
    track = models[0].track
    instances, train = track.instances(split)[:limit], track.instances("train")[:queries]
    cuts, behind = behind_segment(track, split, instances, place)
    found = _Measured(behind, np.arange(behind.shape[1]) - cuts[:, None], instances.problem)
    for trained, row in itertools.product(models, np.flatnonzero(behind.any(1)).tolist()):
        model, part, cut = trained.model.eval(), instances[row : row + 1], int(cuts[row])
        tokens = token_tensor(part.tokens)

        def add(key: Any, logits: Tensor, row: int = row, cut: int = cut, part: Instances = part) -> None:
            """What is predicted of the text, (1, W, V); the prompt counts nowhere."""
            logits = F.pad(logits, (0, 0, cut, 0))
            for metric, values in position_scores(track.task, part, probabilities(logits)).items():
                whole = found.scores[key].setdefault(metric, np.zeros(behind.shape))
                whole[row, : values.shape[1]] += values[0] / len(models)

        questions, scored = _questions(train, place.cuts(train.lengths), track.task.io.max_length - cut)
        if not scored.any():
            raise UserError(f"a prompt of {place} leaves nothing scored in the training split of {track.name}")
        with torch.no_grad():
            add("unprompted", model(tokens[:, cut:]))
            add("prompted", model(tokens)[:, cut:])
        begin = time.perf_counter()
        texts = sample_texts(model, tokens[0, :cut], questions, scored, torch.Generator().manual_seed(row))
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
                    add((rate, n), student(tokens[:, cut:]))
                    left = float(divergence(texts, student(texts.tokens)))
                found.figures[rate, n].append((left, sampling + spent, once[0] + n * once[1]))
                begin = time.perf_counter()
    return found


def _questions(train: Instances, begin: IntArray, room: int) -> tuple[Tensor, Tensor]:
    """The texts of training instances from a position on, as far as there is room.

    Returns:
        The tokens, (M, W) with the first of an instance as padding, and which positions are scored, (M, W) bool.
    """
    width = max(0, min(room, int((train.lengths - begin).max())))
    index = begin[:, None] + np.arange(width)
    inside = index < train.lengths[:, None]
    index, there = np.where(inside, index, 0), np.arange(len(train))[:, None]
    tokens = torch.from_numpy(np.asarray(train.tokens[there, index], np.int64))
    return tokens, torch.from_numpy(inside & train.scored[there, index])
