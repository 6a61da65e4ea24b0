"""One training step of every architecture in one run: speed beside the transformer's and its own naive form's, and memory.

Run with `pytest tests/benchmarks/test_bench_training_step.py --benchmark-only`; some minutes of one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time
from typing import Any
from unittest import mock

import pytest
import torch
from tabulate import tabulate
from torch import Tensor

from regbench import registry
from regbench.models.mixer import Mixer
from regbench.models.model import Model
from regbench.ops.backend import Op, use_backend
from tests.benchmarks.peak_memory import SIZES, measure, model_of, step, tokens_of

BATCH, LENGTH = SIZES[-1]
NAMES = [
    n for n in registry.entries(registry.ARCHITECTURE) if issubclass(registry.load(registry.ARCHITECTURE, n), Mixer)
]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So that the time of the process is that of the call, however busy the machine is."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def least_seconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least of each call's times on its core, taken in turns: whatever else runs on the machine only adds to a time."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = process_time()
            call()
            least[name] = min(least[name], process_time() - start)
    return least


def stepping(name: str, backend: str = "auto") -> Callable[[], None]:
    """A training step, once warm. The LSTM has no op of its own: its naive form goes position by position."""
    model, tokens = model_of(name), tokens_of(BATCH, LENGTH)
    if (name, backend) == ("lstm", "naive"):
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
    """Every call of an op in the first block: the op, the form that served it, and what it was given."""
    calls: list[tuple[Op, str, tuple[Any, ...]]] = []
    choose = Op.choose

    def noting(op: Op, *asked: Any) -> Callable[..., Any]:
        form = choose(op, *asked)

        def noted(*given: Any) -> Any:
            calls.append((op, record[op.name], given))
            return form(*given)

        return noted

    with use_backend("auto") as record, mock.patch.object(Op, "choose", noting), torch.no_grad():
        model(tokens_of(BATCH, LENGTH))
    return calls[: len(calls) // len(model.blocks)]  # type: ignore[arg-type]


def there_and_back(calls: list[tuple[Op, str, tuple[Any, ...]]], naive: bool) -> Callable[[], None]:
    """The ops alone, on copies of what they were given: forward, and the gradient of the first output's sum."""
    forms = [(op.forms["naive" if naive else form].load(), [_leaf(x) for x in given]) for op, form, given in calls]

    def call() -> None:
        for form, given in forms:
            out = form(*given)
            out = out if isinstance(out, Tensor) else out[0]
            torch.autograd.grad(out.sum(), [x for x in given if isinstance(x, Tensor)], allow_unused=True)

    return call


def _leaf(x: Any) -> Any:
    return x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x


def times_naive(name: str) -> tuple[float, float]:
    """How many times faster than its naive form a training step is, and its ops alone; of the LSTM, the same twice."""
    steps = least_seconds({form: stepping(name, form) for form in ("auto", "naive")}, rounds=1)
    of_step = steps["naive"] / steps["auto"]
    calls = op_calls(model_of(name))
    if not calls:
        return of_step, of_step
    ops = least_seconds({"auto": there_and_back(calls, False), "naive": there_and_back(calls, True)}, rounds=2)
    return of_step, ops["naive"] / ops["auto"]


@pytest.mark.usefixtures("one_thread")
def test_training_step(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Forward and backward of two layers at width 128, batch 32, length 400, in float32, on one thread."""
    seconds = least_seconds({name: stepping(name) for name in NAMES}, rounds=5)
    table, faster, exponents = [], {}, {}
    for name in sorted(NAMES, key=seconds.__getitem__):
        of_step, faster[name] = times_naive(name)
        peaks = measure(name)
        exponents[name] = peaks.exponent
        row = (name, round(BATCH * LENGTH / seconds[name]), seconds["transformer"] / seconds[name], of_step)
        table.append((*row, faster[name], round(peaks.bytes[BATCH, LENGTH] / 2**20), exponents[name]))
    headers = ("", "tokens/s", "of the transformer's", "times naive", "ops alone", "peak, MiB", "memory ~ L^")
    square = measure("transformer", "naive").exponent
    with capsys.disabled():
        print("\n" + tabulate(table, headers, tablefmt="github", floatfmt=".2f", intfmt=","))
        print(f"naive attention, for comparison: memory ~ L^{square:.2f}")
    benchmark.pedantic(stepping("transformer"), rounds=1)
    assert square > 1.5, "the measure can tell"
    assert {name: round(p, 2) for name, p in exponents.items() if p > 1.15} == {}
    assert {name: round(times, 1) for name, times in faster.items() if times < 2} == {}
