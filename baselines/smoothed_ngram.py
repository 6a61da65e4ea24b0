"""n-grams that leave some probability to every token: for text, where most of the vocabulary is new to a prefix."""

from __future__ import annotations

from typing import Self

from baselines.ngram import NGram
from regbench.data.instances import Instances
from regbench.models.predictor import Baseline
from regbench.tasks.base import Task


class SmoothedNGram(NGram, Baseline):
    """`NGram` by Witten and Bell's rule, which goes down to the uniform distribution over the symbols.

    It stands beside results of tasks that do not know their truth. There nats are the score, and the back-off of the paper,
    which gives nothing to symbols that have not been seen, pays the most for each of them.
    """

    def __init__(self, order: int | None, vocab_size: int, separator: int) -> None:
        super().__init__(order, vocab_size, separator, "witten-bell")

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        if task.knows_truth:
            return []
        return [cls(order, task.io.vocab_size, task.io.separator) for order in (1, 2, 3)]
