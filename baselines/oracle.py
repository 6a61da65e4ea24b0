"""The truth: the distribution each token was drawn from."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from regbench.data import Instances
from regbench.errors import UserError
from regbench.predictor import Baseline, FloatArray, IntArray, check_tokens
from regbench.tasks.task import Task


class Oracle(Baseline):
    """The ceiling. It knows an instance by its content, trailing separators aside, so a batch may be cut or padded.

    Where nothing is scored the task states no truth; there the oracle is uniform over the symbols.
    """

    name = "oracle"
    anchor = "end"

    def __init__(self, task: Task, instances: Instances) -> None:
        self.task = task
        self.instances = instances
        lengths = instances.lengths.tolist()
        rows = (self._key(row[:n].astype(np.int64)) for row, n in zip(instances.tokens, lengths, strict=True))
        self._index = {key: i for i, key in enumerate(rows)}

    @classmethod
    def lineup(cls, task: Task, instances: Instances) -> list[Self]:
        return [cls(task, instances)]

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def _key(self, row: IntArray) -> bytes:
        symbols = np.flatnonzero(row != self.task.io.separator)
        return row[: symbols[-1] + 1 if len(symbols) else 0].tobytes()

    def predict(self, tokens: IntArray) -> FloatArray:
        """(B, L) -> (B, L, V), each row of tokens a whole instance.

        Raises:
            UserError: a row is none of the instances.
        """
        io = self.task.io
        tokens = check_tokens(tokens, io.vocab_size)
        found = [self._index.get(self._key(row)) for row in tokens]
        if None in found:
            raise UserError(
                f"row {found.index(None)} is none of the {len(self.instances)} instances that the oracle knows"
            )
        # Instances are cut to the longest of those chosen, which need not be the length of `tokens`.
        truth = self.task.truth(self.instances[np.array(found, np.int64)])[:, : tokens.shape[1]]
        probs = np.zeros((*tokens.shape, io.vocab_size))
        probs[:, : truth.shape[1]] = truth
        unknown = probs.sum(-1) == 0.0
        probs[unknown] = 1.0 / (io.vocab_size - 1)
        probs[unknown, io.separator] = 0.0
        return probs
