"""What is scored: a map from tokens to next-token distributions."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np

from regbench.data.instances import Instances
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError


@runtime_checkable
class Predictor(Protocol):
    """A trained architecture or a baseline.

    `predict(tokens)[b, t]` is the distribution of `tokens[b, t]` given `tokens[b, :t]`. Index 0 is the prior. For a task of
    vectors (`VectorIO`) it is the expected value of the components to predict: (B, L, D_in) -> (B, L, D_out).
    """

    def predict(self, tokens: IntArray) -> FloatArray:
        """(B, L) integers -> (B, L, V) probabilities. Every row sums to 1."""
        ...


class Baseline:
    """A predictor without training. It learns from the prefix of the instance, or it knows the truth.

    A subclass sets `name`, the name of its row in every table, and writes `predict`.
    """

    name: str
    version: ClassVar[int] = 1
    """Raised whenever the predictions change. Predictions and scores of an older version are not taken from the cache."""
    takes: ClassVar[tuple[str, ...]] = ("tokens",)
    """The kinds of task it is for: "tokens", "vectors" or both. Its `defaults` are not asked for tasks of another kind."""
    anchor: Literal["start", "end"] | None = None
    """Where the normalized score is 0 ("start") or 100 ("end"); None for every other baseline."""

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """The forms of this baseline that stand beside every result on `instances` of `task`; [] where it has none."""
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        """What distinguishes it from others of its class. It is part of the key under which its predictions are cached."""
        raise NotImplementedError

    def predict(self, tokens: IntArray) -> FloatArray:
        """(B, L) integers -> (B, L, V) probabilities. Every row sums to 1."""
        raise NotImplementedError


def check_tokens(tokens: IntArray, vocab_size: int) -> IntArray:
    """`tokens` as a contiguous (B, L) array of int64.

    Raises:
        UserError: the shape is wrong, they are not integers, or a token is outside [0, vocab_size).
    """
    array = np.asarray(tokens)
    if array.ndim != 2:
        raise UserError(f"tokens must have the shape (B, L), not {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"tokens must be integers, not {array.dtype}")
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        bad = int(array.min()) if array.min() < 0 else int(array.max())
        raise UserError(f"token {bad} is outside the vocabulary [0, {vocab_size})")
    return np.ascontiguousarray(array, dtype=np.int64)


def check_vectors(tokens: FloatArray, d_in: int) -> FloatArray:
    """`tokens` as a contiguous (B, L, D_in) array of float64.

    Raises:
        UserError: the shape is wrong, they are not floating-point numbers, or NaN or infinity is among them.
    """
    array = np.asarray(tokens)
    if array.ndim != 3 or array.shape[2] != d_in:
        raise UserError(f"vectors must have the shape (B, L, {d_in}), not {array.shape}")
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"vectors must be floating-point numbers, not {array.dtype}")
    if not np.isfinite(array).all():
        raise UserError("the vectors hold NaN or infinity")
    return np.ascontiguousarray(array, dtype=np.float64)
