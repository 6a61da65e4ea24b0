"""The contract of tasks. Each check is a function that returns what is wrong, or None.

A task that is not built in is checked before anything is scored on its track. `regbench data` checks any track, and the tests
check every built-in task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from regbench.checks.contract import Check, refuse
from regbench.data.instances import Instances
from regbench.metrics.metric import position_metrics
from regbench.metrics.scores import by_problem, counted_positions
from regbench.tasks.base import Splits, Task, TokenIO, VectorIO
from regbench.tracks import SPLITS, Track
from regbench.tracks.form import arrays_of, ill_formed
from regbench.utils.errors import nearest

SUM_TOLERANCE = 1e-6
"""The largest distance from 1 that the sum of a true distribution may have."""

PART_TOLERANCE = 1e-9
"""The largest difference between the truth of an instance alone and in a batch: matrix products sum in another order."""

SURELY = 21.0
"""A deviation counts as a fault where chance has a probability of at most 2 exp(-21) for it, one in 650 million."""

FEW = 8
"""So many test instances are compared with themselves in a batch."""

BATCH_BYTES = 32 << 20
"""The most memory that the truth of one batch may take, in bytes."""


@dataclass(frozen=True)
class TaskSubject:
    """What the checks take: a task and its instances, which may come from the cache."""

    task: Task
    splits: Splits
    """How many instances each split has."""
    made: Mapping[str, Instances]

    def fresh(self) -> Task:
        """A new task with the same parameters. It has generated nothing yet, as in another process."""
        return type(self.task)(self.task.parameters)

    @property
    def test(self) -> Instances:
        return self.made["test"]


def forms(subject: TaskSubject) -> str | None:
    """`io` is a TokenIO or a VectorIO. The arrays of every split have its types and shapes."""
    for split, instances in subject.made.items():
        fault = ill_formed(subject.task, instances, subject.splits.size(split), split)
        if fault:
            return fault
    return None


def metrics(subject: TaskSubject) -> str | None:
    """Every score is over a metric that fits its tokens or vectors, and its truth. The main score is one of them."""
    task = subject.task
    main = getattr(task, "main_score", None)
    if main not in task.scores:
        return f"its main_score {main!r} is none of its scores{nearest(str(main), task.scores)}"
    vectors = isinstance(task.io, VectorIO)
    here = [m for m in position_metrics(task).values() if m.kind == task.io.kind]
    fit = [m.name for m in here if task.knows_truth or not m.needs_truth]
    for name in task.scores:
        metric, _ = task.metric_and_group(name)
        if metric not in fit:
            kind = "vectors" if vectors else "tokens" if task.knows_truth else "tokens without a truth"
            over = f"over '{metric}', which is " if metric != name else ""
            return f"the score '{name}' is {over}no metric of {kind}{nearest(metric, fit)}"
        if metric == "area" and (task.chance(subject.test) is None or not task.sizes):
            return f"the score '{name}' is by size, between chance and the best: it needs sizes, progress and chance"
    return None


def values(subject: TaskSubject) -> str | None:
    """Tokens are in the vocabulary, vectors are finite. After the end of an instance stand separators that are not scored."""
    io = subject.task.io
    for split, instances in subject.made.items():
        tokens = instances.tokens
        if isinstance(io, TokenIO) and (tokens.min() < 0 or tokens.max() >= io.vocab_size):
            bad = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
            return f"token {bad} in the {split} split is outside the vocabulary [0, {io.vocab_size})"
        if isinstance(io, VectorIO) and not np.isfinite(tokens).all():
            return f"the vectors of the {split} split hold NaN or infinity"
        behind = np.arange(tokens.shape[1]) >= instances.lengths[:, None]
        if (tokens[behind] != io.separator).any():
            return f"in the {split} split something other than the separator {io.separator} stands behind an instance's end"
        if (instances.scored & behind).any():
            return f"in the {split} split places behind an instance's end are scored"
    return None


def scored(subject: TaskSubject) -> str | None:
    """Each split scores something. Each group is (N, L) bool. What is scored on the test split is of two problems or more."""
    for split, instances in subject.made.items():
        if not instances.scored.any():
            return f"nothing is scored in the {split} split"
        if split == "test" and _problems(instances, instances.scored) == 1:
            return (
                "all that is scored on the test split is of one instance or problem, and an error needs two: take more"
            )
    if "test" not in subject.made:
        return None
    task, test = subject.fresh(), subject.test
    groups = task.groups(test)
    for name in task.scores:
        _, group = task.metric_and_group(name)
        if group is None:
            continue
        if group not in groups:
            return f"the score '{name}' is over the group '{group}', which groups does not give{nearest(group, groups)}"
        mask = groups[group]
        if not isinstance(mask, np.ndarray) or mask.shape != test.scored.shape or mask.dtype != bool:
            return f"the group '{group}' must be {test.scored.shape} of bool, not {_described(mask)}"
        if not (mask & test.scored).any():
            return f"nothing in the group '{group}' is scored on the test split"
        if _problems(test, mask & test.scored) == 1:
            return (
                f"all that is scored in the group '{group}' of the test split is of one instance or problem, and an error needs "
                "two: take more"
            )
    return None


def _problems(instances: Instances, scored: NDArray[np.bool_]) -> int:
    """Over how many problems, or else instances, a mean of these positions is."""
    return int(np.count_nonzero(by_problem(scored.sum(1), instances.problem)))


def progress(subject: TaskSubject) -> str | None:
    """`progress` is None, or (N, L) integers up to the longest length, with a label. Every score has a position with a step."""
    task, shape = subject.fresh(), subject.test.scored.shape
    steps = task.progress(subject.test)
    if steps is None:
        return None
    if not isinstance(steps, np.ndarray) or steps.shape != shape or not np.issubdtype(steps.dtype, np.integer):
        return f"progress must give {shape} integers or None, not {_described(steps)}"
    if steps.max(initial=0) > subject.task.io.max_length:
        return f"progress comes to {int(steps.max())}, beyond io.max_length, {subject.task.io.max_length}"
    for name, counted in counted_positions(task, subject.test).items():
        if not (counted & (steps >= 0)).any():
            return f"progress is negative wherever '{name}' is scored on the test split: its curve would be empty"
    return None if task.progress_label else "it tells progress, and no progress_label says of what"


def true_distributions(subject: TaskSubject) -> str | None:
    """On the test split, truth rows are distributions where scored and zero elsewhere. The tokens are drawn from them.

    The probability p(x) of a drawn token is on average the sum of p^2. The differences sum to s, with variance v. Chance reaches
    s with a probability of at most 2 exp(-s^2 / (2 v + 2 s / 3)), whatever the truth depends on in the past (Freedman 1975, "On
    tail probabilities for martingales"). A truth that is shifted by one position deviates by far more. The same holds for how
    often each token is drawn, which on average is the sum of its probabilities.
    """
    if not subject.task.knows_truth:
        return None
    sums = np.zeros(3)  # of p(x), of its expectation, of the variance
    drawn, due, variance = np.zeros((3, subject.task.io.width))  # by token
    for start, part, truth in _truths(subject):
        fault = _no_truth(subject.task.io, part, truth, start)
        if fault:
            return fault
        if isinstance(subject.task.io, TokenIO):
            rows = truth[part.scored]
            given = rows[np.arange(len(rows)), part.targets[part.scored].astype(np.int64)]
            square = (rows**2).sum(-1)
            sums += given.sum(), square.sum(), ((rows**3).sum(-1) - square**2).sum()
            drawn += np.bincount(part.targets[part.scored].astype(np.int64), minlength=len(drawn))
            due += rows.sum(0)
            variance += (rows * (1 - rows)).sum(0)
    count = int(subject.test.scored.sum())
    if _strays(abs(sums[0] - sums[1]), sums[2]):
        given, expected = sums[:2] / count
        return (
            f"the tokens were not drawn from the truth: it gives them a probability of {given:.3f} on average over {count:,} "
            f"positions, where its own draws would have {expected:.3f}"
        )
    for token in np.argsort(-abs(drawn - due)):
        if _strays(abs(drawn[token] - due[token]), variance[token], kinds=len(drawn)):
            return (
                f"the tokens were not drawn from the truth: token {token} stands at {int(drawn[token]):,} of {count:,} "
                f"positions, where the truth expects {due[token]:,.0f}"
            )
    return None


def _strays(by: float, variance: float, kinds: int = 1) -> bool:
    """Whether a sum is so far from its mean that chance cannot be the cause, for any of so many sums."""
    return bool(by**2 > (SURELY + math.log(kinds)) * 2 * (max(variance, 0.0) + by / 3))


def _truths(subject: TaskSubject) -> Iterator[tuple[int, Instances, Any]]:
    """Yields the test split in batches: the index of the first instance, the instances, their truth."""
    task, test = subject.fresh(), subject.test
    rows = max(1, BATCH_BYTES // (8 * test.tokens.shape[1] * task.io.width))
    for start in range(0, len(test), rows):
        part = test[start : start + rows]
        yield start, part, task.truth(part)


def _no_truth(io: TokenIO | VectorIO, part: Instances, truth: Any, start: int) -> str | None:
    shape = (*part.scored.shape, io.width)
    if not isinstance(truth, np.ndarray) or truth.shape != shape or not np.issubdtype(truth.dtype, np.floating):
        return f"truth must give {shape} floating-point numbers, not {_described(truth)}"

    faults = [
        (~np.isfinite(truth).all(-1), "is NaN or infinite {where}"),
        (~part.scored & (truth != 0).any(-1), "is not zero {where}, which is not scored"),
    ]
    if isinstance(io, TokenIO):
        given = np.take_along_axis(truth, part.targets.astype(np.int64)[..., None], -1)[..., 0]
        faults += [
            ((truth < 0).any(-1), "is negative {where}"),
            (part.scored & (np.abs(truth.sum(-1) - 1) > SUM_TOLERANCE), "sums to {sum:.6g}, not 1, {where}"),
            (part.scored & (given == 0), "gives probability 0 to the token that stands {where}"),
        ]
    for wrong, said in faults:
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            where = f"at position {place} of test instance {start + row}"
            return f"the truth {said.format(where=where, sum=truth[row, place].sum())}"
    return None


def each_alone(subject: TaskSubject) -> str | None:
    """Truth, groups and progress of an instance depend on this instance alone, and need no call of `generate` before.

    Instances are scored in batches, and they come from the cache.
    """
    task, few = subject.fresh(), subject.test[:FEW]
    for name in ("truth", "groups", "progress") if subject.task.knows_truth else ("groups", "progress"):
        together = _by_name(getattr(task, name)(few))
        for row in (len(few) - 1, 0):
            one = few[row : row + 1]
            alone = _by_name(getattr(task, name)(one))
            for key, array in together.items():
                same = np.asarray(array)[row : row + 1, : one.scored.shape[1]]
                if key not in alone or not np.allclose(alone[key], same, rtol=0, atol=PART_TOLERANCE):
                    return (
                        f"{name} of test instance {row} differs alone and in a batch: it must follow from the "
                        "instance alone, not from the number of its row, earlier calls or chance"
                    )
    return None


def _by_name(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {} if value is None else {"": value}


def same_twice(subject: TaskSubject) -> str | None:
    """The test split is the same to the last byte when it is generated again, with the arrays of the truth."""
    again = subject.fresh().generate(subject.splits, "test")
    then, now = arrays_of(subject.test), arrays_of(again)
    if then.keys() != now.keys() or subject.test.generator != again.generator:
        return "generate gives Instances with other names the second time"
    for name, array in then.items():
        if array.dtype != now[name].dtype or not np.array_equal(array, now[name], equal_nan=array.dtype.kind in "fc"):
            return (
                f"generate gives other {name} the second time: they must follow from parameters, sizes and seed alone, "
                "not from time, global random state, the order of sets or hash()"
            )
    return None


def disjoint(subject: TaskSubject) -> str | None:
    """`identities` gives bytes, the same number for each instance, and no two splits share one.

    An instance has the same identities when it is alone. At most half of the test split occurs in training token for token.
    """
    task, found = subject.fresh(), {}
    for split, instances in subject.made.items():
        names = task.identities(instances)
        if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
            return "identities must give a list of bytes"
        each, rest = divmod(len(names), len(instances))
        if rest or not each:
            return f"identities gives {len(names)} for the {len(instances)} instances of the {split} split"
        shortest = int(instances.lengths.argmin())
        if task.identities(instances[shortest : shortest + 1]) != names[shortest * each :][:each]:
            return f"the identity of {split} instance {shortest} differs when it is alone, without padding"
        found[split] = set(names)
    for one, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
        shared = len(found[one] & found[other])
        if shared:
            return f"{one} and {other} share {shared} of their identities: what is scored would have been trained on"
    test, train = subject.test.as_bytes(), set(subject.made["train"].as_bytes())
    known = sum(word in train for word in test)
    if 2 * known > len(test):
        return f"{known} of the {len(test)} test instances stand in the training split token for token"
    return None


def statistics(subject: TaskSubject) -> str | None:
    """`statistics` gives finite numbers by name, of every split."""
    task = subject.fresh()
    for instances in subject.made.values():
        for name, value in task.statistics(instances).items():
            if not isinstance(value, int | float | np.number) or not np.isfinite(value):
                return f"statistics gives {value!r} for '{name}', not a finite number"
    return None


def _described(value: Any) -> str:
    return f"{value.shape} of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


CONTRACT: tuple[Check, ...] = (
    forms,
    metrics,
    values,
    scored,
    progress,
    true_distributions,
    each_alone,
    same_twice,
    disjoint,
    statistics,
)
"""Every check, in this order. A check may rely on those before it."""


_EXAMINED: WeakSet[Track] = WeakSet()
"""The tracks whose task was examined in this process."""


def examine_task(track: Track) -> None:
    """Runs every check of the contract on the task of a track."""
    made = {split: track.instances(split) for split in SPLITS}
    refuse(TaskSubject(track.task, track.definition.splits, made), CONTRACT, f"task '{track.task_name}'")
    _EXAMINED.add(track)


def require_scored(track: Track, *splits: str) -> None:
    """Runs the check `scored` on these splits of a track of a built-in task that is not frozen; the others were examined."""
    if track.task_code is None and track.frozen is None:
        made = {split: track.instances(split) for split in splits}
        refuse(TaskSubject(track.task, track.definition.splits, made), (scored,), track.name)


def examine_task_once(track: Track) -> None:
    """Runs `examine_task` on a task that is not built in, unless that was done. Built-in tasks are examined by tests."""
    if track.task_code is not None and track not in _EXAMINED:
        examine_task(track)
