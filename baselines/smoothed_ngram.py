"""n-grams that give every token some probability: for text, where most of the vocabulary is new to a prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from baselines.ngram import NGram
from regbench.data.instances import Instances
from regbench.models.predictor import Baseline
from regbench.tasks.base import Task


@dataclass
class SmoothedNGram(NGram, Baseline):
    """`NGram` with Witten and Bell's smoothing, which backs off down to the uniform distribution over the symbols.

    It is a default baseline of tasks without a known truth. There the score is the NLL (nats). The paper's back-off gives
    probability zero to new symbols, so each of them would cost the most that is possible.
    """

    smoothing: str = "witten-bell"  # as of `NGram`

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """Orders 1, 2 and 3 for tasks without a known truth; [] for others."""
        return [] if task.knows_truth else super().defaults(task, instances)
