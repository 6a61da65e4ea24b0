"""The contract of baselines that are not built in. It is checked on two test instances, before their scores stand in a table.

A baseline must return distributions, be deterministic, and not look ahead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.metrics.scores import check_distributions, check_finite
from regbench.models.predictor import Baseline
from regbench.tasks.base import IO, Task, VectorIO
from regbench.utils import registry
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, blaming
from regbench.utils.registry import BASELINE

TOLERANCE = 1e-6
"""The largest difference between two predictions of one position: sums over other batches round in another way."""


@contextmanager
def blaming_baseline(baseline: Baseline) -> Iterator[None]:
    """Turns an error from the code of a baseline that is not built in into one line that names it.

    Raises:
        UserError: anything was raised inside.
    """
    if registry.is_built_in(BASELINE, type(baseline)):
        yield
        return
    name = getattr(baseline, "name", type(baseline).__name__)
    with blaming(f"baseline '{name}' raises"):
        try:
            yield
        except UserError as error:
            raise UserError(f"baseline '{name}': {error}") from None


def check_predictions(predicted: Any, tokens: NDArray[Any], io: IO) -> FloatArray:
    """Returns what a baseline predicted, if it has the right form.

    Args:
        predicted: what `predict` returned.
        tokens: (B, L), or vectors (B, L, D_in).
        io: of the task.

    Raises:
        UserError: it is no array of floating-point numbers of the shape (B, L, V) whose rows are distributions; for vectors,
            no finite array (B, L, D_out).
    """
    if not isinstance(predicted, np.ndarray) or not np.issubdtype(predicted.dtype, np.floating):
        kind = f"an array of {predicted.dtype}" if isinstance(predicted, np.ndarray) else type(predicted).__name__
        raise UserError(f"predict must return an array of floating-point numbers, not {kind}")
    check = check_finite if isinstance(io, VectorIO) else check_distributions
    check(predicted, (*tokens.shape[:2], io.width))
    return predicted


def examined(cls: type[Any], name: str, task: Task, instances: Instances) -> list[Baseline]:
    """Makes the baselines of a class that is not built in, and checks each.

    Args:
        cls: the class.
        name: under which it is registered.
        task: what it will predict.
        instances: the test split.

    Raises:
        UserError: a fault, in one line.
    """
    with blaming(f"baseline '{name}' raises"):
        try:
            found = cls.defaults(task, instances)
        except NotImplementedError:
            raise UserError(f"baseline '{name}' has no class method defaults(task, instances)") from None
    if not isinstance(found, list) or not all(isinstance(baseline, cls) for baseline in found):
        raise UserError(f"defaults() of baseline '{name}' must return a list of {cls.__name__}, [] for none")
    for baseline in found:
        shown = getattr(baseline, "name", None)
        if not isinstance(shown, str) or not shown.strip() or not shown.isprintable():
            raise UserError(f"baseline '{name}' needs a name for its row in tables, not {shown!r}")
        with blaming_baseline(baseline):
            fault = _options_fault(baseline) or fault_of(baseline, task.io, instances)
        if fault:
            raise UserError(f"baseline '{shown}' cannot be scored: {fault}")
    for number, one in enumerate(found):
        twin = next((other for other in found[:number] if other.options == one.options), None)
        if twin is not None:  # the cache would give both the same scores
            raise UserError(
                f"baselines '{twin.name}' and '{one.name}' have the same options: what tells them apart must be a field of the "
                "dataclass, or in options"
            )
    return found


def _options_fault(baseline: Baseline) -> str | None:
    try:
        options: Any = baseline.options
    except NotImplementedError:
        return "it has no options: a dictionary of what tells its forms apart, {} for one form"
    if not isinstance(options, dict):
        return f"its options are {type(options).__name__}, not a dictionary"
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"its options cannot be written as JSON: {str(error).partition(chr(10))[0]}"
    return None


def fault_of(baseline: Baseline, io: IO, instances: Instances) -> str | None:
    """What is wrong with its predictions for two instances. The oracle may look at the whole instance."""
    few = instances[:2]
    tokens = few.tokens.copy()
    predicted = check_predictions(baseline.predict(tokens), tokens, io)
    if not np.array_equal(tokens, few.tokens):
        return "it writes into the tokens that it is given"
    if not _same(predicted, check_predictions(baseline.predict(tokens.copy()), tokens, io)):
        return (
            "it predicts something else when called again: it is random, or keeps something from one call to the next"
        )
    first, last = instances[:1].tokens, few.tokens[-1:]  # the last with the padding that it has in the batch
    alone = check_predictions(baseline.predict(first.copy()), first, io)
    behind = check_predictions(baseline.predict(last.copy()), last, io)
    if not _same(predicted[:1, : first.shape[1]], alone) or not _same(predicted[-1:], behind):
        return "its prediction of an instance depends on the others in its batch, or on padding"
    return _sees_future(baseline, io, first, alone) if baseline.anchor != "end" else None


def _sees_future(baseline: Baseline, io: IO, tokens: NDArray[Any], whole: FloatArray) -> str | None:
    """Whether a prediction changes when later tokens are cut off, or when the predicted token is replaced.

    Args:
        baseline: the predictor.
        io: of the task.
        tokens: one instance, (1, L).
        whole: its predictions for the whole instance, (1, L, V).
    """
    length = tokens.shape[1]
    for last in sorted({length // 3, 2 * length // 3, length - 1}):
        start = tokens[:, : last + 1]
        predicted = check_predictions(baseline.predict(start.copy()), start, io)
        if not _same(predicted, whole[:, : last + 1]):
            place = _first(predicted, whole[:, : last + 1])
            return f"it looks ahead: its prediction of token {place} changes when the text ends with token {last}"
        changed = start.copy()
        changed[:, last] = _another(tokens[0], last)
        other = check_predictions(baseline.predict(changed), changed, io)
        if not _same(predicted, other):
            return f"it looks ahead: changing token {last} changes its prediction of token {_first(predicted, other)}"
    return None


def _another(row: NDArray[Any], place: int) -> NDArray[Any]:
    """A token or vector of the same instance that differs from the one at `place`; where there is none, the next number."""
    others = row[(row != row[place]).reshape(len(row), -1).any(1)]
    return others[0] if len(others) else np.asarray(np.where(row[place] > 0, row[place] - 1, row[place] + 1))


def _same(one: FloatArray, other: FloatArray) -> bool:
    return bool((np.abs(one - other) <= TOLERANCE * np.maximum(1.0, np.abs(other))).all())


def _first(one: FloatArray, other: FloatArray) -> int:
    return int((np.abs(one - other).max(axis=(0, 2)) > TOLERANCE).argmax())
