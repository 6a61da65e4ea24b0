"""The contract of baselines that are not built in. It is checked on two test instances, before their scores stand in a table.

A baseline must return distributions, be deterministic, and not look ahead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-6
"""The largest difference between two predictions of one position: sums over other batches round in another way."""


@contextmanager
def blaming_baseline(baseline: Baseline) -> Iterator[None]:
    """Turns an error from the code of a baseline that is not built in into one line that names it."""
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
    """Returns what a baseline predicted, if it has the right form."""
    if not isinstance(predicted, np.ndarray) or not np.issubdtype(predicted.dtype, np.floating):
        kind = f"an array of {predicted.dtype}" if isinstance(predicted, np.ndarray) else type(predicted).__name__
        raise UserError(f"predict must return an array of floating-point numbers, not {kind}")
    check = check_finite if isinstance(io, VectorIO) else check_distributions
    check(predicted, (*tokens.shape[:2], io.width))
    return predicted


def examined(cls: type[Any], name: str, task: Task, instances: Instances) -> list[Baseline]:
    """Makes the baselines of a class that is not built in, and checks each."""
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
    import torch  # it loads slowly, and baselines that are built in are not checked

    from regbench.checks.subject import depends_on_length, differ, sees_future

    few = instances[:2]

    def predict(given: Tensor) -> Tensor:
        tokens = given.numpy().astype(few.tokens.dtype)
        return torch.tensor(check_predictions(baseline.predict(tokens), tokens, io))  # a copy: it may be read-only

    tokens = few.tokens.copy()
    predicted = torch.tensor(check_predictions(baseline.predict(tokens), tokens, io))
    if not np.array_equal(tokens, few.tokens):
        return "it writes into the tokens that it is given"
    whole = torch.from_numpy(tokens.astype(np.float32 if isinstance(io, VectorIO) else np.int64))
    if differ(predicted, predict(whole), TOLERANCE):
        return (
            "it predicts something else when called again: it is random, or keeps something from one call to the next"
        )
    length = instances[:1].tokens.shape[1]
    first, last = whole[:1, :length], whole[-1:]  # the last with the padding that it has in the batch
    if differ(predicted[:1, :length], predict(first), TOLERANCE) or differ(predicted[-1:], predict(last), TOLERANCE):
        return "its prediction of an instance depends on the others in its batch, or on padding"
    for place in () if baseline.anchor == "end" else sorted({length // 3, 2 * length // 3, length - 1}):
        # Behind the changed token nothing stands: a baseline need not take a text that cannot be.
        cut = first[:, : place + 1]
        leak = depends_on_length(predict, first, place + 1, TOLERANCE) or sees_future(
            predict, cut, io, TOLERANCE, [place]
        )
        if leak:
            return f"it sees the future: {leak}"
    return None
