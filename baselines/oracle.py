"""The truth: the distribution from which each token was drawn; for vectors its mean."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_tokens, check_vectors
from regbench.tasks.base import Task, VectorIO
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError


class Oracle(Baseline):
    """The upper bound of all predictors.

    It recognises an instance by its content, without trailing separators. So a batch may be cut or padded. Positions that are not
    scored have no truth: there the oracle is uniform over the symbols, and zero for vectors.

    Args:
        task: The task of the instances.
        instances: The instances that it can predict.
    """

    name = "oracle"
    takes = ("tokens", "vectors")
    anchor = "end"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, task: Task, instances: Instances) -> None:
        self.task = task
        self.instances = instances
        lengths = instances.lengths.tolist()
        rows = zip(self._checked(instances.tokens), lengths, strict=True)
        self._index = {self._key(row[:n]): i for i, (row, n) in enumerate(rows)}

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """The oracle of the instances."""
        return [cls(task, instances)]

    def _checked(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Tokens as int64, vectors as float64. Raises a UserError if they cannot be of the task."""
        io = self.task.io
        return check_vectors(tokens, io.d_in) if isinstance(io, VectorIO) else check_tokens(tokens, io.vocab_size)

    def _key(self, row: NDArray[Any]) -> bytes:
        """The bytes of a row without its trailing separators."""
        symbols = np.flatnonzero((row != self.task.io.separator).reshape(len(row), -1).any(1))
        return row[: symbols[-1] + 1 if len(symbols) else 0].tobytes()

    def predict(self, tokens: NDArray[Any]) -> FloatArray:
        """The true distributions: (B, L) -> (B, L, V), or for vectors (B, L, d_in) -> (B, L, d_out).

        Args:
            tokens: Each row is a whole instance.

        Raises:
            UserError: A row is none of the instances.
        """
        io = self.task.io
        tokens = self._checked(tokens)
        found = [self._index.get(self._key(row)) for row in tokens]
        if None in found:
            raise UserError(
                f"row {found.index(None)} is none of the {len(self.instances)} instances that the oracle knows"
            )
        # The chosen instances are cut to the longest of them, which may be shorter or longer than `tokens`.
        truth = self.task.truth(self.instances[np.array(found, np.int64)])[:, : tokens.shape[1]]
        probs = np.zeros((*tokens.shape[:2], truth.shape[-1]))
        probs[:, : truth.shape[1]] = truth
        if isinstance(io, VectorIO):
            return probs
        unknown = probs.sum(-1) == 0.0
        probs[unknown] = 1.0 / (io.vocab_size - 1)
        probs[unknown, io.separator] = 0.0
        return probs
