"""The contract of a task: a generator family with typed parameters, deterministic splits and a truth to score against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError
from regbench.utils.settings import Settings

Parameters = Settings
"""The base of a task's parameters."""


@dataclass(frozen=True)
class Splits:
    """The sizes of the splits, in instances, and the seed from which every instance comes.

    The limits hold for the files of tracks. An error needs two instances.
    """

    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    train: Annotated[int, pydantic.Field(ge=1, le=10**9, strict=True)]
    validation: Annotated[int, pydantic.Field(ge=2, le=10**9, strict=True)]
    test: Annotated[int, pydantic.Field(ge=2, le=10**9, strict=True)]
    seed: Annotated[int, pydantic.Field(ge=0, lt=2**63, strict=True)]

    def size(self, split: str) -> int:
        """The number of instances of "train", "validation" or "test"."""
        sizes: dict[str, int] = {"train": self.train, "validation": self.validation, "test": self.test}
        return sizes[split]

    def first(self, split: str) -> int:
        """The place of a split's first instance in the seed's stream.

        The test split comes first, then validation, then training. So a larger training split changes neither of the others.
        """
        order = ("test", "validation", "train")
        return sum(self.size(name) for name in order[: order.index(split)])


@dataclass(frozen=True)
class TokenIO:
    """Tokens in, distributions over tokens out."""

    vocab_size: int  # V, the number of tokens. The separator is one of them.
    separator: int  # the token that begins every model's input and pads instances on the right
    max_length: int  # the length of the longest instance that the task can make
    names: tuple[str, ...]  # how each token is shown to people, V strings
    # a token after which a model sees one vector alone: its own output where it reads this token. All later tokens are
    # predicted from this vector and from their distance to it. None: there is no such token.
    bottleneck: int | None = None
    kind: ClassVar[str] = "tokens"

    @classmethod
    def of(cls, names: Iterable[str], max_length: int, bottleneck: int | None = None) -> Self:
        """Tokens of these names, of which the last is the separator."""
        names = tuple(names)
        return cls(len(names), len(names) - 1, max_length, names, bottleneck)

    @property
    def width(self) -> int:
        """How many numbers a prediction has: V."""
        return self.vocab_size


@dataclass(frozen=True)
class VectorIO:
    """Vectors in, vectors out. A token is a vector `(d_in,)`. Its last `d_out` components are predicted."""

    d_in: int  # components of a vector
    d_out: int  # components that are predicted
    max_length: int  # the length of the longest instance that the task can make, in vectors
    # the value of every component of the vector that begins every model's input and pads on the right
    separator: ClassVar[float] = 0.0
    bottleneck: ClassVar[None] = None  # only tasks of tokens have one
    kind: ClassVar[str] = "vectors"

    @property
    def width(self) -> int:
        """How many numbers a prediction has: D_out."""
        return self.d_out


IO = TokenIO | VectorIO


class Task(ABC):
    """A family of problem instances. A subclass is named by its file, and made as `TheTask(parameters)`."""

    Parameters: ClassVar[type[Parameters]]  # the class of the task's parameters
    # a whole number. Raise it when the same seed gives other bytes, or another truth, other groups or progress. It is
    # part of every fingerprint and cache key.
    version: ClassVar[int]
    main_score: ClassVar[str]  # the score that ranks, one of `scores`
    # names of metrics (see `regbench.metrics.metric`), of `metrics`, or of `group_scores`
    scores: ClassVar[tuple[str, ...]]
    # metrics of the task's own, beside the built-in ones
    metrics: ClassVar[tuple[Any, ...]] = ()  # of `Metric`, whose room is above this one
    # scores of the task's own: name -> (metric, group). Each is a metric over one of the task's `groups`. A label and a
    # sentence of what it is may follow, for tables and pages.
    group_scores: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    progress_label: ClassVar[str] = ""  # what `progress` counts: the label of a curve's axis
    # whether the task has a `truth`. If not, only "nll" and "token_accuracy" can be asked for, `truth` is never called,
    # and of each prediction no more is kept than these two need.
    knows_truth: ClassVar[bool] = True
    # whether instances follow from the code and the parameters alone. Instances that are cut from text of the user's
    # machine do not. Then `source_name` and `source_digest` tell which text it is, and a track cannot be frozen.
    portable: ClassVar[bool] = True
    # whether the test split is harder by design, such as by longer instances. An entry's test loss may then be far
    # above its validation loss.
    test_is_harder: ClassVar[bool] = False

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    def source_name(self) -> str | None:
        """The name, for people, of the text that instances are cut from. None for a portable task."""
        return None

    def source_digest(self) -> str | None:
        """SHA-256 of that text as it is now. None for a portable task.

        It is part of the cache's key, so instances of another text are never taken from the cache.
        """
        return None

    def extent(self) -> tuple[int, str]:
        """The length of the longest instance, and for people the size of the vocabulary, or of vectors, such as "3-d"."""
        io = self.io
        return io.max_length, f"{io.d_in}-d" if isinstance(io, VectorIO) else f"{io.vocab_size:,}"

    def metric_and_group(self, score: str) -> tuple[str, str | None]:
        """The metric of one of `scores`, and the group that it is over. None: it is over all scored positions."""
        over, group, *_ = self.group_scores.get(score, (score, None))
        return over, group

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The names of the topics that `truth["topic"]` numbers. Empty if the task has no topics."""
        return ()

    @property
    @abstractmethod
    def io(self) -> Any:
        """What goes into a model and what comes out: a `TokenIO` or a `VectorIO`."""

    @abstractmethod
    def generate(self, splits: Splits, split: str) -> Instances:
        """Makes the instances of "train", "validation" or "test". The same arguments give the same bytes on any machine."""

    def fresh(self, splits: Splits, count: int, seed: int) -> Instances:
        """`count` instances from a seed of their own: `regbench challenge` asks a model that was trained on `splits` about them.

        Where all instances share something that follows from the seed of the splits, e.g. one map, a task overrides this. It
        keeps what they share, as that is what the model has learned.
        """
        return self.generate(Splits(train=0, validation=0, test=count, seed=seed), "test")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the test split has, of a task with an axis of sizes. Empty: it has none."""
        return ()

    @property
    def trained(self) -> int | None:
        """The largest size in training, of such a task."""
        return None

    def truth(self, instances: Instances) -> FloatArray:
        """The true next-token distributions of instances, (N, L, V) float64, with zero rows at positions that are not scored.

        For a task of vectors (N, L, d_out): the mean of the vector that is predicted, given the hidden values that no predictor
        is told. A UserError if the task has no known truth (`knows_truth`).
        """
        raise UserError(f"{type(self).__module__.rpartition('.')[2]}: the true distributions are unknown")

    def chance(self, instances: Instances) -> FloatArray | None:
        """The probability of each target under the best predictor that has not read what it must remember, (N, L).

        It is the zero of the normalized score, and of the area. Only scored positions count. None: the unigram model is chance.
        """
        return None

    def best(self, instances: Instances) -> FloatArray:
        """The accuracy that is possible at each position, (N, L). It is the one of the area, as `chance` is its zero."""
        return np.ones(instances.scored.shape)

    @abstractmethod
    def identities(self, instances: Instances) -> list[bytes]:
        """What each instance is an instance of, e.g. its automaton in canonical form for `pfa`. No two splits share one.

        An instance that is made of several things, e.g. of two documents, has as many identities.
        """

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """Named groups of positions for `group_scores`, each (N, L) bool. Only their scored positions count."""
        return {}

    def progress(self, instances: Instances) -> IntArray | None:
        """How far in the context each position is, for curves: (N, L) integers from 0.

        A position with a negative number is in no curve. None: the position's index counts.
        """
        return None

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Numbers that describe a split, by name."""
        return {
            "instances": len(instances),
            "tokens": instances.n_tokens,
            "scored_tokens": int(instances.scored.sum()),
            "mean_length": float(np.mean(instances.lengths)),
            "max_length": int(instances.lengths.max()),
        }

    def show(self, instances: Instances, index: int) -> str:
        """One instance and its truth, for people.

        By default a token is its name, followed, if it is scored, by its true probability. A vector is a line, followed, if it
        is scored, by the mean of what is predicted.
        """
        one = instances[index : index + 1]
        truth = self.truth(one)[0] if self.knows_truth else None
        parts, io = [], self.io
        for t, token in enumerate(one.tokens[0]):
            known = truth[t] if truth is not None and one.scored[0, t] else None
            if isinstance(io, TokenIO):
                parts.append(io.names[token] + ("" if known is None else f":{known[token]:.2f}"))
            else:
                parts.append(_vector(token) + ("" if known is None else f"  -> {_vector(known)}"))
        return ("  " if isinstance(io, TokenIO) else "\n").join(parts)


def _vector(vector: FloatArray) -> str:
    """The numbers of a vector (D,) with two decimals, in columns."""
    return " ".join(f"{value:6.2f}" for value in vector)


def unfinished(cls: type[Any]) -> str | None:
    """What a class lacks to be a task, or None. Ask it before you make a task of the class.

    It is the end of an error message: "it lacks ...".
    """
    lacking = set(getattr(cls, "__abstractmethods__", ()))
    if cls.knows_truth and cls.truth is Task.truth:
        lacking.add("truth")
    if lacking:
        return f"it lacks {', '.join(sorted(lacking))}"
    parameters, version = getattr(cls, "Parameters", None), getattr(cls, "version", None)
    if not (isinstance(parameters, type) and issubclass(parameters, Parameters)):
        return "it needs a class Parameters that subclasses regbench.Parameters"
    if type(version) is not int:
        return f"its version must be a whole number, not {version!r}"
    scores, groups = getattr(cls, "scores", None), cls.group_scores
    if not isinstance(scores, tuple) or not scores or not all(isinstance(score, str) for score in scores):
        return f"its scores must be a tuple of names, not {scores!r}"
    if not isinstance(groups, Mapping) or not all(_names_a_group(one) for one in groups.values()):
        return (
            "its group_scores must be a dictionary from a name to a metric and a group, both names, or to these, a label and a "
            "sentence"
        )
    return None


def _names_a_group(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) in (2, 4) and all(isinstance(text, str) for text in value)
