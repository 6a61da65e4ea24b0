"""Every symbol is equally likely."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_tokens, check_vocabulary
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray


class Uniform(Baseline):
    """The lower bound: always uniform over all tokens except the separator.

    Args:
        vocab_size: V, the number of tokens.
        separator: The token that joins strings.

    Raises:
        UserError: The separator is outside the vocabulary.
    """

    version = 1
    name = "uniform"

    def __init__(self, vocab_size: int, separator: int) -> None:
        check_vocabulary(vocab_size, separator)
        self.vocab_size = vocab_size
        self.separator = separator

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """One for every task of tokens."""
        return [cls(task.io.vocab_size, task.io.separator)]

    @property
    def options(self) -> dict[str, Any]:
        """None: there is one uniform baseline."""
        return {}

    def predict(self, tokens: IntArray) -> FloatArray:
        """The distribution of every token given those before it: (B, L) -> (B, L, V)."""
        tokens = check_tokens(tokens, self.vocab_size)
        row = np.full(self.vocab_size, 1.0 / (self.vocab_size - 1))
        row[self.separator] = 0.0
        return np.broadcast_to(row, (*tokens.shape, self.vocab_size)).copy()
