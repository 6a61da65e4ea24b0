"""What tasks share that draw their instances: the first distinct items of a stream, a certain truth, instances row by row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.tasks import base as task
from regbench.utils import threads
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError


class CertainTask(task.Task):
    """A task of tokens without chance: what came before, with the hidden values, decides each scored token."""

    def truth(self, instances: Instances) -> FloatArray:
        """(N, L, V): where something is scored, the answer has probability 1."""
        truth = np.zeros((*instances.scored.shape, self.io.vocab_size))
        truth[*np.nonzero(instances.scored), instances.targets[instances.scored]] = 1.0
        return truth


class DrawnTask(CertainTask):
    """A task whose instances are of kinds, such as sizes, each with a stream of its own."""

    hides: ClassVar[bool] = False  # whether answers are not shown
    _spare: ClassVar[int] = 0  # 1 where the type of the rows has room for one token more

    @abstractmethod
    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        """(n, 2, L): tokens, and 1 + the target where a position is scored, else 0. Row i is number start + i of a stream.

        `kind` is one of `_kinds`: each has a stream of its own.
        """

    def _filled(self, n: int, length: int, fill: Callable[..., None], *arguments: Any) -> NDArray[Any]:
        """(n, 2, length): rows that `fill(begin, end, *arguments, rows)` fills on all threads."""
        rows = np.zeros((n, 2, length), np.min_scalar_type(self.io.separator + self._spare))
        threads.share(fill, n, *arguments, rows)
        return rows

    def _kinds(self, split: str) -> list[tuple[int, int]]:
        """The kinds of instances of a split, each with its share. By default there is one."""
        return [(0, 1)]

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
        lengths = (rows[order, 0] != separator).sum(1).astype(np.int32)
        rows = rows[order, :, : int(lengths.max())]
        tokens, scored = np.ascontiguousarray(rows[:, 0]), rows[:, 1] > 0
        generator = f"{type(self).__module__.rpartition('.')[2]}/{self.version}"
        answers = np.where(scored, rows[:, 1] - 1, tokens).astype(tokens.dtype) if self.hides else None
        truth = {"kind": np.concatenate(kinds)[order]}
        return Instances(tokens, lengths, scored, generator, truth, answers=answers)

    def identities(self, instances: Instances) -> list[bytes]:
        """The tokens of each instance."""
        return instances.as_bytes()


def _apportion(total: int, kinds: list[tuple[int, int]]) -> dict[int, int]:
    """How many of `total` instances each kind has, by its share: whole numbers whose sum is `total`."""
    ends = np.cumsum([share for _, share in kinds]) * total // sum(share for _, share in kinds)
    return dict(zip((kind for kind, _ in kinds), np.diff(ends, prepend=0).tolist(), strict=True))


def first_distinct(
    draw: Callable[[int, int], NDArray[Any]], what: str, count: int, held_out: int | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The first `held_out` distinct items of a stream, such as automata, and after them the first that equal none of these.

    `draw(start, n)` gives the items (n, ...) from a place of the stream on; `what` they are is for the message. Of `count` in
    all, those behind the first `held_out` may repeat each other. None: all are distinct. Gives the items (count, ...) and
    their places in the stream (count,).
    """
    held_out = count if held_out is None else held_out
    seen: set[bytes] = set()  # asked for membership only, so its order decides nothing
    kept = [draw(0, 0)]
    places: list[int] = []
    start, block = 0, max(64, count + count // 16)
    while len(places) < count:
        if start > 100 * (held_out if len(places) < held_out else count) + 10_000:
            raise UserError(
                f"these parameters give too few distinct {what}: {len(places)} found where {count} are needed"
            )
        drawn, first = draw(start, block), len(places)
        for place, item in enumerate(drawn, start):
            key = item.tobytes()
            if key not in seen and len(places) < count:
                if len(places) < held_out:
                    seen.add(key)
                places.append(place)
        kept.append(drawn[np.array(places[first:], np.int64) - start])
        start, block = start + block, max(64, count // 16)
    return np.concatenate(kept), np.array(places, np.int64)
