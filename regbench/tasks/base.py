"""What a task is: a generator family with typed parameters, deterministic splits, and a truth to score against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from rich.text import Text

from regbench.data.instances import Instances
from regbench.utils.arrays import FloatArray, IntArray


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
    kind: ClassVar[str] = "tokens"


@dataclass(frozen=True)
class VectorIO:
    """Vectors in, vectors out: a token is a vector (d_in,) of which the last d_out components are predicted.

    max_length: the longest instance the task can make, in vectors.  separator: every component of the vector that begins
    every model's input and pads the right.
    """

    d_in: int
    d_out: int
    max_length: int
    separator: ClassVar[float] = 0.0
    kind: ClassVar[str] = "vectors"


IO = TokenIO | VectorIO


class Task(ABC):
    """A family of problem instances. A subclass is named by its file and made as `TheTask(parameters)`."""

    Parameters: ClassVar[type[Parameters]]
    version: ClassVar[int]
    """Raised whenever the same seed would give other bytes; part of every fingerprint and cache key."""
    main_score: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    """Names of metrics (see `regbench.metrics.scores`), or of `group_scores`."""
    group_scores: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Scores of its own: each a metric over one of the task's `groups`, name -> (metric, group)."""
    progress_label: ClassVar[str] = ""
    """What `progress` counts, for the axis of a curve."""
    knows_truth: ClassVar[bool] = True
    """Whether there is a `truth`. Of text nobody knows it: then only "nll" and "token_accuracy" can be asked for, nobody calls
    `truth`, and of each prediction no more is kept than these two need."""

    portable: ClassVar[bool] = True
    """Whether instances follow from this code and the parameters alone. Where they are cut from text of the user's machine they
    do not: then `source_name` and `source_digest` say which it is, and a track cannot be frozen for everyone."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    def source_name(self) -> str | None:
        """What instances are made from besides this code, for people; None where that is nothing (`portable`)."""
        return None

    def source_digest(self) -> str | None:
        """SHA-256 of it as it is now, part of the cache's key: so what was made from other text is never taken for it."""
        return None

    @property
    def topic_names(self) -> tuple[str, ...]:
        """How the topics are called that `truth["topic"]` numbers; () where there are none."""
        return ()

    @property
    @abstractmethod
    def io(self) -> Any:
        """What goes in and out of a model: a `TokenIO` or a `VectorIO`."""

    @abstractmethod
    def generate(self, splits: Splits, split: str) -> Instances:
        """The instances of one split ("train", "validation", "test"): the same bytes for the same arguments, anywhere."""

    @abstractmethod
    def truth(self, instances: Instances) -> FloatArray:
        """(N, L, V) float64: the true next-token distributions; zero rows at positions that are not scored.

        Of a task of vectors (N, L, D_out): the mean of what is predicted, given what no predictor is told.

        Raises:
            UserError: the task does not know it (`knows_truth`).
        """

    @abstractmethod
    def identities(self, instances: Instances) -> list[bytes]:
        """What each instance is an instance of (for `pfa` its automaton, canonical); no two splits share one.

        As many for each, if it is made of several things, as two documents.
        """

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """Named groups of positions, each (N, L): what `group_scores` speak of. Only scored positions of them count."""
        return {}

    def progress(self, instances: Instances) -> IntArray | None:
        """(N, L), from 0: how far in the context a position is, for curves; None where that is its index in the sequence.

        A position whose progress is below 0 is in no curve.
        """
        return None

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
        """One instance and its truth as something rich can print.

        Unless a task has a better way: each token by its name, and behind it, where it is scored, its true probability; of
        vectors a line for each, and behind it the mean of what is predicted.
        """
        one = instances[index : index + 1]
        truth = self.truth(one)[0] if self.knows_truth else None
        text, tokens, io = Text(), one.tokens[0], self.io
        for t, scored in enumerate(one.scored[0]):
            vector = not isinstance(io, TokenIO)
            text.append(_numbers(tokens[t]) if vector else io.names[tokens[t]], "" if scored else "dim")
            if scored and truth is not None:
                text.append(f"  -> {_numbers(truth[t])}" if vector else f":{truth[t, tokens[t]]:.2f}", "italic")
            text.append("\n" if vector else "  ")
        return text


def _numbers(vector: FloatArray) -> str:
    return " ".join(f"{value:6.2f}" for value in vector)
