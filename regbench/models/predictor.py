"""What is scored: a map from tokens to next-token distributions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, fields, is_dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np

from regbench.data.instances import Instances
from regbench.tasks.base import IO, Parameters, Task
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

    A subclass sets `name`, the name of its row in every table, and writes `predict` and `defaults`. It is a dataclass, or it
    writes `options` too.
    """

    name: str
    version: ClassVar[int] = 1
    """Raised whenever the predictions change. Predictions and scores of an older version are not taken from the cache."""
    only_task: ClassVar[str | None] = None
    """The task it is for, where that is a single one. The registry reads this line without importing the file."""
    takes: ClassVar[tuple[str, ...]] = ("tokens",)
    """The kinds of task it is for: "tokens", "vectors" or both. Its `defaults` are not asked for tasks of another kind."""
    anchor: Literal["start", "end"] | None = None
    """Where the normalized score is 0 ("start") or 100 ("end"); None for every other baseline."""

    slow: ClassVar[bool] = False
    """Whether it takes minutes where others take seconds. The others are scored first."""

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """The forms of this baseline that stand beside every result on `instances` of `task`; [] where it has none."""
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        """What distinguishes it from others of its class. It is part of the key under which its predictions are cached.

        Of a dataclass these are its fields, without those that the task decides: `vocab_size` and `separator`. A field that
        holds several options, a prior or the parameters of a task, gives each of them.
        """
        cls: Any = type(self)
        if not is_dataclass(cls):
            raise NotImplementedError
        found: dict[str, Any] = {}
        for name in [field.name for field in fields(cls) if field.name not in ("vocab_size", "separator")]:
            value: Any = getattr(self, name)
            if isinstance(value, Parameters):
                found |= value.model_dump(mode="json")
            elif is_dataclass(value):
                found |= asdict(value)  # type: ignore[arg-type]
            else:
                found[name] = value
        return found

    def predict(self, tokens: IntArray) -> FloatArray:
        """(B, L) integers -> (B, L, V) probabilities. Every row sums to 1."""
        raise NotImplementedError

    def predict_instances(self, instances: Instances) -> FloatArray:
        """The predictions that are scored. The oracle alone reads more of instances than their tokens."""
        return self.predict(instances.tokens)


def check_tokens(tokens: IntArray, vocab_size: int) -> IntArray:
    """`tokens` as a contiguous (B, L) array of int64.

    A UserError if the shape is wrong, they are not integers, or a token is outside [0, vocab_size).
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


LARGEST_COMPONENT = 1e100


def check_vectors(tokens: FloatArray, d_in: int) -> FloatArray:
    """`tokens` as a contiguous, aligned (B, L, D_in) array of float64. What is so small that its inverse overflows becomes 0.

    A UserError if the shape is wrong, they are not floating-point numbers, or NaN, infinity or a number beyond
    `LARGEST_COMPONENT` is among them.
    """
    array = np.asarray(tokens)
    if array.ndim != 3 or array.shape[2] != d_in:
        raise UserError(f"vectors must have the shape (B, L, {d_in}), not {array.shape}")
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"vectors must be floating-point numbers, not {array.dtype}")
    if not np.isfinite(array).all():
        raise UserError("the vectors hold NaN or infinity")
    if array.size and float(np.abs(array).max()) > LARGEST_COMPONENT:
        raise UserError(f"the vectors hold a component beyond {LARGEST_COMPONENT:g}, whose square would overflow")
    array = np.where(np.abs(array) < 1.0 / LARGEST_COMPONENT, 0.0, array)
    return np.require(array, np.float64, ["C_CONTIGUOUS", "ALIGNED"])


BATCH_BYTES = 128 << 20
"""The most memory that the predictions for one batch may take. Two batches exist at once: one is scored, the next is made."""


def rows_at_once(io: IO, length: int, most: int) -> int:
    """How many instances are predicted at once, so that a batch stays under `BATCH_BYTES`: between 1 and `most`.

    Predictions are counted in float64: (B, L, V), or (B, L, D_out) for vectors, with L the `length` of the longest instance.
    """
    width = io.width
    return max(1, min(most, BATCH_BYTES // max(1, 8 * length * width)))


def predict_in_batches(
    predictor: Predictor,
    instances: Instances,
    batch_size: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterable[FloatArray]:
    """Predicts the instances, a batch at a time. Each batch is cut to its longest instance. `progress`: how many are done."""
    for start in range(0, len(instances), batch_size):
        some = instances[start : start + batch_size]
        yield predictor.predict_instances(some) if isinstance(predictor, Baseline) else predictor.predict(some.tokens)
        progress(start + len(some), len(instances))


def check_vocabulary(vocab_size: int, separator: int) -> None:
    """Refuses a separator that is none of the tokens, or that is the only one."""
    check_at_least("vocab_size", vocab_size, 2)
    check_at_least("separator", separator, 0)
    if separator >= vocab_size:
        raise UserError(f"separator {separator} is outside the vocabulary [0, {vocab_size})")


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuses an argument `name` that is no integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise UserError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise UserError(f"{name} must be at least {least}, not {value}")


def longest_first(tokens: IntArray, separator: int) -> list[int]:
    """The rows of tokens (B, L), those with the most symbols first, so that no thread begins a long row at the end."""
    order: list[int] = np.argsort(-(tokens != separator).sum(-1), kind="stable").tolist()
    return order
