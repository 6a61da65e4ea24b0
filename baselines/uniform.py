"""Every symbol is equally likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_tokens, check_vocabulary
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray


@dataclass
class Uniform(Baseline):
    """The lower bound: always uniform over all tokens except the separator.

    Raises:
        UserError: The separator is outside the vocabulary.
    """

    vocab_size: int  # V, the number of tokens
    separator: int  # the token that joins strings

    name = "uniform"

    def __post_init__(self) -> None:
        check_vocabulary(self.vocab_size, self.separator)

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """One for every task of tokens that shows its answers."""
        if instances.answers is not None:
            return []
        return [cls(task.io.vocab_size, task.io.separator)]

    def predict(self, tokens: IntArray) -> FloatArray:
        """The distribution of every token given those before it: (B, L) -> (B, L, V)."""
        tokens = check_tokens(tokens, self.vocab_size)
        row = np.full(self.vocab_size, 1.0 / (self.vocab_size - 1))
        row[self.separator] = 0.0
        return np.broadcast_to(row, (*tokens.shape, self.vocab_size)).copy()
