"""What a baseline that is not built in must satisfy before its scores may stand beside a model's.

It is asked on two test instances, each time its defaults are made: whether it returns predictions, and whether it looks ahead.
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
from regbench.utils.errors import UserError
from regbench.utils.registry import BASELINE

TOLERANCE = 1e-6
"""How far two predictions of one place may be apart: sums over other batches round in another way."""


@contextmanager
def blaming(baseline: Baseline) -> Iterator[None]:
    """Turns what the code of a baseline that is not built in raises into one line that names it.

    Raises:
        UserError: anything was raised inside.
    """
    if registry.is_built_in(BASELINE, type(baseline)):
        yield
        return
    name = getattr(baseline, "name", type(baseline).__name__)
    with registry.blaming(f"baseline '{name}' raises"):
        try:
            yield
        except UserError as error:
            raise UserError(f"baseline '{name}': {error}") from None


def check_said(said: Any, tokens: NDArray[Any], io: IO) -> FloatArray:
    """What a baseline said of tokens (B, L), if it is predictions.

    Raises:
        UserError: no array of floating-point numbers, another shape than (B, L, V), or rows that are no distributions; of
            vectors another shape than (B, L, D_out), or NaN or infinity.
    """
    if not isinstance(said, np.ndarray) or not np.issubdtype(said.dtype, np.floating):
        kind = f"an array of {said.dtype}" if isinstance(said, np.ndarray) else type(said).__name__
        raise UserError(f"predict must return an array of floating-point numbers, not {kind}")
    if isinstance(io, VectorIO):
        check_finite(said, (*tokens.shape[:2], io.d_out))
    else:
        check_distributions(said, (*tokens.shape[:2], io.vocab_size))
    return said


def examined(cls: type[Any], name: str, task: Task, instances: Instances) -> list[Baseline]:
    """The defaults of a class that is not built in, which is registered as `name`, each of its forms found in order.

    Raises:
        UserError: a fault, in one line.
    """
    with registry.blaming(f"baseline '{name}' raises"):
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
        with blaming(baseline):
            fault = _options_fault(baseline) or fault_of(baseline, task.io, instances)
        if fault:
            raise UserError(f"baseline '{shown}' cannot be scored: {fault}")
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
    """What is wrong with its predictions for two instances; one that is the truth itself may know an instance by its whole."""
    few = instances[:2]
    tokens = few.tokens.copy()
    said = check_said(baseline.predict(tokens), tokens, io)
    if not np.array_equal(tokens, few.tokens):
        return "it writes into the tokens that it is given"
    if not _same(said, check_said(baseline.predict(tokens.copy()), tokens, io)):
        return "it says something else when asked again: it is random, or keeps something from one call to the next"
    first = instances[:1].tokens
    alone = check_said(baseline.predict(first.copy()), first, io)
    if not _same(said[:1, : first.shape[1]], alone):
        return "what it says of an instance depends on the others in its batch, or on padding"
    return _sees_future(baseline, io, first, alone) if baseline.anchor != "end" else None


def _sees_future(baseline: Baseline, io: IO, tokens: NDArray[Any], whole: FloatArray) -> str | None:
    """Of one instance (1, L): whether predictions change where what comes is cut off, or the token that is predicted is another.

    whole: what it says of all of it.
    """
    length = tokens.shape[1]
    for last in sorted({length // 3, 2 * length // 3, length - 1}):
        start = tokens[:, : last + 1]
        said = check_said(baseline.predict(start.copy()), start, io)
        if not _same(said, whole[:, : last + 1]):
            place = _first(said, whole[:, : last + 1])
            return f"it looks ahead: what it says of token {place} is another where the text ends with token {last}"
        changed = start.copy()
        changed[:, last] = _another(tokens[0], last)
        other = check_said(baseline.predict(changed), changed, io)
        if not _same(said, other):
            return f"it looks ahead: changing token {last} changes what it says of token {_first(said, other)}"
    return None


def _another(row: NDArray[Any], place: int) -> NDArray[Any]:
    """A token or vector of the same instance that differs from the one at `place`; where there is none, the next number."""
    others = row[(row != row[place]).reshape(len(row), -1).any(1)]
    return others[0] if len(others) else np.asarray(np.where(row[place] > 0, row[place] - 1, row[place] + 1))


def _same(one: FloatArray, other: FloatArray) -> bool:
    return bool((np.abs(one - other) <= TOLERANCE * np.maximum(1.0, np.abs(other))).all())


def _first(one: FloatArray, other: FloatArray) -> int:
    return int((np.abs(one - other).max(axis=(0, 2)) > TOLERANCE).argmax())
