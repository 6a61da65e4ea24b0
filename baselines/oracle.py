"""The truth: the distribution from which each token was drawn; for vectors its mean."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_tokens, check_vectors
from regbench.tasks.base import Task, VectorIO
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError


@dataclass(eq=False)
class Oracle(Baseline):
    """The upper bound of all predictors.

    `predict` recognises an instance by its content, without trailing separators. So a batch may be cut or padded. Positions
    that are not scored have no truth: there the oracle is uniform over the symbols, and zero for vectors.
    """

    task: Task  # the task of the instances
    instances: Instances  # the instances that it can predict

    name = "oracle"
    version = 2
    takes = ("tokens", "vectors")
    anchor = "end"
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """The oracle of the instances."""
        return [cls(task, instances)]

    @cached_property
    def _index(self) -> dict[bytes, int]:
        """The place of each instance by its key. Made when it is first asked for: most predictions come from the cache."""
        return {key: i for i, key in enumerate(self._keys(self.instances.tokens))}

    def _keys(self, tokens: NDArray[Any]) -> list[bytes]:
        """The bytes of each row without its trailing separators. Raises a UserError if a row cannot be of the task."""
        io = self.task.io
        tokens = check_vectors(tokens, io.d_in) if isinstance(io, VectorIO) else check_tokens(tokens, io.vocab_size)
        symbols = (tokens != io.separator).reshape(*tokens.shape[:2], -1).any(2)
        return [
            row[: np.flatnonzero(some).max(initial=-1) + 1].tobytes() for row, some in zip(tokens, symbols, strict=True)
        ]

    def predict(self, tokens: NDArray[Any]) -> FloatArray:
        """The true distributions: (B, L) -> (B, L, V), or for vectors (B, L, d_in) -> (B, L, d_out).

        Args:
            tokens: Each row is a whole instance.

        Raises:
            UserError: A row is none of the instances.
        """
        found = [self._index.get(key) for key in self._keys(tokens)]
        if None in found:
            raise UserError(
                f"row {found.index(None)} is none of the {len(self.instances)} instances that the oracle knows"
            )
        # The chosen instances are cut to the longest of them, which may be shorter or longer than `tokens`.
        return self._truth(self.instances[np.array(found, np.int64)], tokens.shape[1])

    def predict_instances(self, instances: Instances) -> FloatArray:
        """The true distributions of these instances. Two that have the same tokens may differ in their hidden values."""
        return self._truth(instances, instances.tokens.shape[1])

    def _truth(self, instances: Instances, length: int) -> FloatArray:
        """The true distributions (B, length, V), uniform where there are none; for vectors (B, length, d_out)."""
        io = self.task.io
        truth = self.task.truth(instances)[:, :length]
        probs = np.zeros((len(truth), length, truth.shape[-1]))
        probs[:, : truth.shape[1]] = truth
        if isinstance(io, VectorIO):
            return probs
        unknown = probs.sum(-1) == 0.0
        probs[unknown] = 1.0 / (io.vocab_size - 1)
        probs[unknown, io.separator] = 0.0
        return probs
