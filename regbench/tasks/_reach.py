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

from regbench.data.instances import Instances
from regbench.tasks import base as task
from regbench.tasks._drawn import DrawnTask
from regbench.utils.arrays import FloatArray, IntArray

Size = Annotated[int, pydantic.Field(ge=1, le=1 << 17)]
Sizes = Annotated[tuple[Size, ...], pydantic.Field(min_length=1)]


class ReachParameters(task.Parameters):
    """The parameters of every reach task."""

    sizes: Sizes  # the sizes of the training mixture, ascending
    shares: tuple[Size, ...] = ()  # the share of each size in training, as whole numbers. Empty: all are the same.
    beyond: tuple[Size, ...] = ()  # larger sizes, which only the test split has

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

    def _smallest_size(self, counts: IntArray, instances: Instances) -> IntArray:
        """The smallest size that is not below each count; -1 where nothing is scored."""
        tested = np.array(self.sizes)
        return np.where(instances.scored, tested[np.searchsorted(tested, counts)], -1)

    @abstractmethod
    def chance(self, instances: Instances) -> FloatArray:
        """As every task's; a reach task always has it."""

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds the share of tokens that are scored."""
        return super().statistics(instances) | {"scored_share": float(instances.scored.sum() / instances.n_tokens)}


class DrawnReachTask(DrawnTask, ReachTask):
    """A reach task whose instances are drawn row by row."""

    scores: ClassVar[tuple[str, ...]] = ("area", "token_accuracy", "nll")
    _spare = 1

    def _kinds(self, split: str) -> list[tuple[int, int]]:
        """Sizes, each with its share. The test split has every size equally often."""
        p = self.parameters
        if split == "test":
            return [(size, 1) for size in p.tested]
        return list(zip(p.sizes, p.shares or (1,) * len(p.sizes), strict=True))

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
