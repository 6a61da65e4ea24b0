"""Task vectors: does one activation, taken from the end of a prompt, make a transformer do the task without the prompt?

A model reads the prompt of a segment. Its hidden state after a block, at one position, is the vector. Then it reads the text of
the segment alone, and the vector takes the place of the hidden state after the same block (Hendel et al. 2023,
arXiv:2310.15916; CGT section 4.2). There are two places:

separator: The state that has read the last token of the prompt. It takes the place of the state of the separator that stands
    before the text.
query: The state that has read the prompt and the question of another example, up to where its answer begins. It takes the place
    of the state of every question of the text at that token.

The block is chosen on the validation split. Layer i is the input of block i, so layer 0 is the embedding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papers.cgt.modes import read_texts
from papers.cgt.segments import Segments, examples_before, single_context_segments
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.metrics.metric import METRICS
from regbench.models.model import Model
from regbench.results import ScoreRecord
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError

Place = Literal["separator", "query"]
PLACES: tuple[Place, ...] = ("separator", "query")


@dataclass(frozen=True)
class TaskVectors:
    """What one run gains from task vectors."""

    metric: str  # the track's main metric, over the texts
    prompted: ScoreRecord  # the model reads the whole sequence
    unprompted: ScoreRecord  # the model reads the text only
    validation: Mapping[Place, Mapping[int, ScoreRecord]]  # by place and block, the score on the validation split
    block: Mapping[Place, int]  # by place, the block that is best there, from 1
    task_vector: Mapping[Place, ScoreRecord]  # by place, the score on the split that was asked for, with this block


def task_vectors(trained: Trained, split: str, limit: int) -> TaskVectors:
    count = len(_blocks(trained.model))
    if count < 2:
        raise UserError(f"{trained.folder} has one block: a task vector is put after a block and read by the next")
    known = _Reading(trained, "validation", limit)
    validation = {place: {b: known.with_vectors(place, b) for b in range(1, count)} for place in PLACES}
    sign = METRICS[known.metric].sign
    block = {place: max(found, key=lambda b: sign * found[b].value) for place, found in validation.items()}
    asked = known if split == "validation" else _Reading(trained, split, limit)
    scores = {place: asked.with_vectors(place, block[place]) for place in PLACES}
    return TaskVectors(known.metric, asked.prompted(), asked.unprompted(), validation, block, scores)


def states_before(model: Model, tokens: Tensor) -> list[Tensor]:
    """The inputs of all blocks, (B, L) -> (B, L, D) for each. The first is the embedding."""
    found: list[Tensor] = []
    with contextlib.ExitStack() as stack, torch.no_grad():
        for block in _blocks(model):
            stack.callback(block.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])).remove)
        model(tokens)
    return found


@torch.no_grad()
def patched(model: Model, tokens: Tensor, layer: int, where: Tensor, states: Tensor) -> Tensor:
    """The model's output with other hidden states before one block.

    Args:
        model: A model with `blocks`.
        tokens: (B, L).
        layer: The block whose input changes, from 0.
        where: Which positions change, (B, L) bool.
        states: Their hidden states, (B, L, D) or (B, 1, D).

    Returns:
        The logits (B, L, V).
    """

    def put(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (torch.where(where[..., None], states, inputs[0]), *inputs[1:])

    handle = _blocks(model)[layer].register_forward_pre_hook(put)
    try:
        out: Tensor = model(tokens)
    finally:
        handle.remove()
    return out


def _blocks(model: Any) -> nn.ModuleList:
    """The blocks of a model: maps (B, L, D) -> (B, L, D), one after another."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        raise UserError(f"{type(model).__name__} has no list of blocks to take task vectors from")
    return blocks


class _Reading:
    """The segments of one split, and what the model predicts in their texts."""

    def __init__(self, trained: Trained, split: str, limit: int) -> None:
        track = trained.track
        self.task, self.model = track.task, trained.model.eval()
        self.instances: Instances = track.instances(split)[:limit]
        if self.task.io.kind != "tokens" or examples_before(self.task, self.instances) is None:
            raise UserError(f"task vectors are of examples of tokens, and {track.name} has none")
        self.parts: Segments = single_context_segments(self.task, self.instances)
        if len(self.parts) < 2:
            raise UserError(f"{track.name} has no two prompts with a text in its first {limit} instances")
        self.metric = track.metrics[track.definition.main_score].over

    def prompted(self) -> ScoreRecord:
        return self._score(lambda tokens, chosen, at: self.model(tokens)[np.arange(len(at))[:, None], at])

    def unprompted(self) -> ScoreRecord:
        return self._score(lambda tokens, chosen, at: self.model(_text(tokens, at)))

    def with_vectors(self, place: Place, block: int) -> ScoreRecord:
        """The score without the prompt, with a task vector after a block (from 1)."""

        def read(tokens: Tensor, chosen: IntArray, at: IntArray) -> Tensor:
            text, source, last = _text(tokens, at), tokens, self.parts.cut[chosen]
            if place == "separator":
                where = torch.zeros(text.shape, dtype=torch.bool)
                where[:, 0] = True
            else:
                source, last = self._with_questions(tokens, chosen)
                scored = self.instances.scored[self.parts.row[chosen][:, None], at]
                # The state at the first position of an answer has read its question.
                where = torch.from_numpy(scored & ~np.pad(scored, ((0, 0), (1, 0)))[:, :-1])
            states = states_before(self.model, source)[block]
            vectors = states[torch.arange(len(chosen)), torch.from_numpy(last)][:, None]
            return patched(self.model, text, block, where, vectors)

        return self._score(read)

    def _with_questions(self, tokens: Tensor, chosen: IntArray) -> tuple[Tensor, IntArray]:
        """The prompts, each with the question of the next segment's text after it, (B, L'), and their lengths (B,)."""
        questions = []
        for k in (chosen + 1) % len(self.parts):
            row, begin = int(self.parts.row[k]), int(self.parts.cut[k])
            answer = begin + int(self.instances.scored[row, begin:].argmax())
            questions.append(torch.from_numpy(np.asarray(self.instances.tokens[row, begin:answer], np.int64)))
        cuts = self.parts.cut[chosen]
        ends = cuts + np.array([len(question) for question in questions])
        # A state at t has read what stands before t, so one position more is needed.
        out = F.pad(tokens, (0, max(0, int(ends.max()) + 1 - tokens.shape[1])))
        for i, question in enumerate(questions):
            out[i, cuts[i] : ends[i]] = question
        return out, ends

    def _score(self, read: Callable[[Tensor, IntArray, IntArray], Tensor]) -> ScoreRecord:
        """The mean over the scored positions of all texts. Its error is over instances, or over problems that they share."""
        found = read_texts(self.task, self.instances, self.parts, lambda *asked: [("read", read(*asked))])
        return found.score("read", self.metric)


def _text(tokens: Tensor, at: IntArray) -> Tensor:
    """The texts alone, (B, L), (B, W) -> (B, W)."""
    return tokens[torch.arange(len(at))[:, None], torch.from_numpy(at)]
