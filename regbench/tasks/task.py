"""What a task is: a generator family with typed parameters, deterministic splits, and a truth to score against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pydantic

from regbench.data import Instances
from regbench.predictor import FloatArray


class Parameters(pydantic.BaseModel):
    """A task's parameters: typed, frozen, unknown keys refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Splits:
    """How many instances each split has, and the seed all of them come from."""

    train: int
    validation: int
    test: int
    seed: int

    def size(self, split: str) -> int:
        sizes: dict[str, int] = {"train": self.train, "validation": self.validation, "test": self.test}
        return sizes[split]


@dataclass(frozen=True)
class TokenIO:
    """Tokens in, distributions over tokens out.

    vocab_size: V, the separator included.  separator: its token; it also begins every model's input and pads the right.
    max_length: the longest instance the task can make.  names: how each token is shown to people, V strings.
    """

    vocab_size: int
    separator: int
    max_length: int
    names: tuple[str, ...]


class Task(ABC):
    """A family of problem instances. A subclass is named by its file and made as `TheTask(parameters)`."""

    Parameters: ClassVar[type[Parameters]]
    version: ClassVar[int]
    """Raised whenever the same seed would give other bytes; part of every fingerprint and cache key."""
    main_score: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    @property
    @abstractmethod
    def io(self) -> TokenIO:
        """What goes in and out of a model."""

    @abstractmethod
    def generate(self, splits: Splits, split: str) -> Instances:
        """The instances of one split ("train", "validation", "test"): the same bytes for the same arguments, anywhere."""

    @abstractmethod
    def truth(self, instances: Instances) -> FloatArray:
        """(N, L, V) float64: the true next-token distributions; zero rows at positions that are not scored."""

    @abstractmethod
    def identities(self, instances: Instances) -> list[bytes]:
        """What each instance is an instance of (for `pfa` its automaton, canonical); no two splits share one."""

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Figures a person wants to know of a split, by name."""
        return {
            "instances": len(instances),
            "tokens": instances.n_tokens,
            "scored_tokens": int(instances.scored.sum()),
            "mean_length": float(np.mean(instances.lengths)),
            "max_length": int(instances.lengths.max()),
        }

    def show(self, instances: Instances, index: int) -> Any:
        """One instance and its truth as something rich can print."""
        raise NotImplementedError
