"""What the reach tasks share: an axis of sizes, trained on a mixture of them, and tested size by size, also beyond.

The main score is the *area*. A right prediction counts 1 and a wrong one 0, rescaled so that chance is 0 and the best possible is
1, and every size counts the same. Its curve is the accuracy by size; see `regbench.metrics.reach`. A subclass draws instances.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.tasks import base as task
from regbench.tasks.distinct import first_distinct
from regbench.utils.arrays import FloatArray, IntArray

Size = Annotated[int, pydantic.Field(ge=1, le=1 << 17)]
Sizes = Annotated[tuple[Size, ...], pydantic.Field(min_length=1)]


class ReachParameters(task.Parameters):
    """The parameters of every reach task.

    Attributes:
        sizes: The sizes of the training mixture, ascending.
        shares: The share of each size in training, as whole numbers. Empty: all are the same.
        beyond: Larger sizes, which only the test split has.
    """

    sizes: Sizes
    shares: tuple[Size, ...] = ()
    beyond: tuple[Size, ...] = ()

    @property
    def tested(self) -> tuple[int, ...]:
        """Every size, trained and beyond."""
        return self.sizes + self.beyond

    @pydantic.model_validator(mode="after")
    def _sizes_ascend(self) -> Self:
        if any(a >= b for a, b in pairwise(self.tested)):
            raise ValueError(f"sizes and then beyond must ascend: {', '.join(map(str, self.tested))}")
        if self.shares and len(self.shares) != len(self.sizes):
            raise ValueError(f"there are {len(self.sizes)} sizes and {len(self.shares)} shares")
        return self


class ReachTask(task.Task):
    """A task with an axis of sizes. `progress` gives the size that each scored position counts for, and `chance` the zero."""

    main_score = "area"
    test_is_harder = True  # sizes beyond training
    parameters: Any

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the test split has."""
        sizes: tuple[int, ...] = self.parameters.tested
        return sizes

    @property
    def trained(self) -> int:
        """The largest size in training."""
        return int(self.parameters.sizes[-1])

    @abstractmethod
    def chance(self, instances: Instances) -> FloatArray:
        """As every task's; a reach task always has it."""

    def best(self, instances: Instances) -> FloatArray:
        """The accuracy that is possible at each position, (N, L)."""
        return np.ones(instances.scored.shape)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds the share of tokens that are scored."""
        return super().statistics(instances) | {"scored_share": float(instances.scored.sum() / instances.n_tokens)}


class DrawnReachTask(ReachTask):
    """A reach task whose instances are of kinds, such as sizes, each with a stream of its own."""

    scores: ClassVar[tuple[str, ...]] = ("area", "token_accuracy", "nll")
    hides: ClassVar[bool] = False  # whether answers are not shown

    @abstractmethod
    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        """(n, 2, L): tokens, and 1 + the target where a position is scored, else 0. Row i is number start + i of a stream.

        `kind` is a size, or what else `_kinds` gives: each has a stream of its own.
        """

    def _kinds(self, split: str) -> list[tuple[int, int]]:
        """The kinds of instances of a split, here sizes, each with its share. The test split has every size equally often."""
        p = self.parameters
        if split == "test":
            return [(size, 1) for size in p.tested]
        return list(zip(p.sizes, p.shares or (1,) * len(p.sizes), strict=True))

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. Those of test and validation are distinct, and training has none of them."""
        counts = {name: _apportion(splits.size(name), self._kinds(name)) for name in ("test", "validation", "train")}
        parts, kinds = [], []
        for kind, count in counts[split].items():
            test, validation = counts["test"].get(kind, 0), counts["validation"].get(kind, 0)
            before = {"test": 0, "validation": test, "train": test + validation}[split]

            def draw(start: int, n: int, kind: int = kind) -> NDArray[Any]:
                return self._draw(kind, splits.seed, start, n)

            drawn, _ = first_distinct(draw, "instances", before + count, max(test + validation, 1))
            parts.append(drawn[before:])
            kinds.append(np.full(count, kind, np.int32))
        order = np.argsort(np.concatenate([np.arange(len(part)) for part in parts]), kind="stable")  # each kind in turn
        separator, longest = self.io.separator, max(part.shape[2] for part in parts)
        rows = np.zeros((len(order), 2, longest), parts[0].dtype)
        rows[:, 0] = separator
        first = 0
        for part in parts:
            rows[first : first + len(part), :, : part.shape[2]] = part
            first += len(part)
        rows = rows[order]
        tokens, scored = np.ascontiguousarray(rows[:, 0]), rows[:, 1] > 0
        lengths = (tokens != separator).sum(1).astype(np.int32)
        generator = f"{type(self).__module__.rpartition('.')[2]}/{self.version}"
        answers = np.where(scored, rows[:, 1] - 1, tokens).astype(tokens.dtype) if self.hides else None
        truth = {"kind": np.concatenate(kinds)[order]}
        return Instances(tokens, lengths, scored, generator, truth, answers=answers)

    def truth(self, instances: Instances) -> FloatArray:
        """(N, L, V): where something is scored, the answer has probability 1."""
        return task.certain(instances, self.io.vocab_size, instances.targets[instances.scored])

    def identities(self, instances: Instances) -> list[bytes]:
        """The tokens of each instance."""
        return instances.as_bytes()

    def progress(self, instances: Instances) -> IntArray:
        """The size at each scored position, -1 elsewhere."""
        return np.where(instances.scored, instances.truth["kind"][:, None], -1)

    def show(self, instances: Instances, index: int) -> str:
        """The tokens in one line. The answer that a blank stands for, or that is shown, is in brackets."""
        one, names = instances[index : index + 1], self.io.names
        return " ".join(
            f"{names[token] if self.hides else ''}[{names[target]}]" if scored else names[token]
            for token, target, scored in zip(one.tokens[0], one.targets[0], one.scored[0], strict=True)
        )


def _apportion(total: int, kinds: list[tuple[int, int]]) -> dict[int, int]:
    """How many of `total` instances each kind has, by its share: whole numbers whose sum is `total`."""
    ends = np.cumsum([share for _, share in kinds]) * total // sum(share for _, share in kinds)
    return dict(zip((kind for kind, _ in kinds), np.diff(ends, prepend=0).tolist(), strict=True))
