"""How many times faster a training step is than by naive implementations: `python -m tests.benchmarks.step_speed NAME`.

In a process of its own, as a training is: what the steps of other models leave in the allocator changes a step's time by up to
half. Prints one JSON object.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pkgutil import resolve_name
from time import process_time
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from regbench.models.mixer import Mixer
from regbench.models.model import Model
from regbench.ops.backend import Op, use_backend
from tests.benchmarks.peak_memory import SIZES, model_of, step, tokens_of

BATCH, LENGTH = SIZES[-1]
CACHED = (
    "transformer",
    "hyena",
    "forgetting_transformer",
    "path_attention",
    "differential_transformer",
    "sparse_attention",
)
"""Those without a recurrence: they stream by a cache of what they have read."""


def least_seconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least of each call's times on its core, taken in turns: whatever else runs on the machine only adds to a time."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = process_time()
            call()
            least[name] = min(least[name], process_time() - start)
    return least


def stepping(name: str, backend: str = "auto", recurrent: bool = False) -> Callable[[], None]:
    """A training step, once warm. recurrent: the mixers go position by position, as the papers write them."""
    model, tokens = model_of(name), tokens_of(BATCH, LENGTH)
    if recurrent:
        for block in model.blocks:  # type: ignore[union-attr]
            block.mixer.forward = by_steps(block.mixer)  # type: ignore[union-attr, arg-type]

    def call() -> None:
        with use_backend(backend):
            step(model, tokens)

    with use_backend(backend):
        step(model, tokens[:1])
    return call


def by_steps(mixer: Mixer) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        state, outputs = mixer.init_state(x.shape[0], x.device, x.dtype), []
        for x_t in x.unbind(1):
            y, state = mixer.step(x_t, state)
            outputs.append(y)
        return torch.stack(outputs, 1)

    return forward


def op_calls(model: Model) -> list[tuple[Op, str, tuple[Any, ...]]]:
    """Every call of an op in the first block: the op, the backend that served it, and what it was given."""
    calls: list[tuple[Op, str, tuple[Any, ...]]] = []
    choose = Op.choose

    def noting(op: Op, *asked: Any, **exact: bool) -> Callable[..., Any]:
        implementation = choose(op, *asked, **exact)

        def noted(*given: Any) -> Any:
            calls.append((op, record[op.name], given))
            return implementation(*given)

        return noted

    with use_backend("auto") as record, mock.patch.object(Op, "choose", noting), torch.no_grad():
        model(tokens_of(BATCH, LENGTH))
    return calls[: len(calls) // len(model.blocks)]  # type: ignore[arg-type]


def there_and_back(calls: list[tuple[Op, str, tuple[Any, ...]]], naive: bool) -> Callable[[], None]:
    """The ops alone, on copies of what they were given: forward, and the gradient of the first output's sum."""
    called = [
        (resolve_name(op.implementations["naive" if naive else backend].target), [_leaf(x) for x in given])
        for op, backend, given in calls
    ]

    def call() -> None:
        for implementation, given in called:
            out = implementation(*given)
            out = out if isinstance(out, Tensor) else out[0]
            torch.autograd.grad(out.sum(), [x for x in given if isinstance(x, Tensor)], allow_unused=True)

    return call


def _leaf(x: Any) -> Any:
    return x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x


@dataclass(frozen=True)
class Faster:
    """How many times faster a training step is than the same with naive ops and than its recurrent form, and the ops alone.

    Nan where there is no such form: the LSTM has no op of its own, attention and Hyena have only a cache.
    """

    with_ops: float
    than_recurrent: float
    ops: float

    @property
    def than_own_naive(self) -> float:
        """Than position by position, where it has a recurrence; else than with naive ops."""
        return self.with_ops if math.isnan(self.than_recurrent) else self.than_recurrent


def times_faster(name: str) -> Faster:
    """In a new process, with one thread."""
    command = [sys.executable, "-m", "tests.benchmarks.step_speed", name]
    return Faster(**json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def _times_faster(name: str) -> Faster:
    model = model_of(name)
    calls, has_recurrence = op_calls(model), name not in CACHED
    steps = {"auto": stepping(name)}
    if calls:
        steps["naive"] = stepping(name, "naive")
    if has_recurrence:
        steps["recurrent"] = stepping(name, recurrent=True)
    seconds = defaultdict(lambda: math.nan, least_seconds(steps, rounds=3))
    ops = math.nan
    if calls:
        each = least_seconds({"auto": there_and_back(calls, False), "naive": there_and_back(calls, True)}, rounds=3)
        ops = each["naive"] / each["auto"]
    return Faster(seconds["naive"] / seconds["auto"], seconds["recurrent"] / seconds["auto"], ops)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(asdict(_times_faster(sys.argv[1]))))
