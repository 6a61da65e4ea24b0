"""Gradients in parts are those of the whole batch, and what cannot be divided is not."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from regbench.models.model import Model
from regbench.training import parts
from regbench.training.options import TrainingOptions
from regbench.training.parts import PartedGradients, gradients_on
from regbench.training.step import Gradients, gradients, make_optimizer, train_step
from regbench.utils import registry
from tests.helpers.documents import ROOT
from tests.helpers.processes import wait_until
from tests.training.conftest import Recency
from tests.training.test_cuda_graph import CPU, TOKENS, VECTORS, Chance, Counts, Rebinds, batch, made

OPTIONS = TrainingOptions(optimizer="sgd", learning_rate=0.1)
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
    pytest.mark.skipif(
        torch.backends.cuda.is_built(), reason="with CUDA, autograd runs in no fork of a process that used it"
    ),
]


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


@pytest.fixture
def parted() -> Iterator[PartedGradients]:
    by = PartedGradients()
    yield by
    by.close()
    assert children() == []


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def trained(model: Model, batches: list[tuple[Tensor, ...]], by: Gradients) -> list[Tensor]:
    """The parameters after a step on each batch."""
    optimizer = make_optimizer(model, OPTIONS)
    for each in batches:
        train_step(model, optimizer, each, OPTIONS, by)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["transformer", "deltanet", "mamba", "lstm", "s4", None])
def test_parts_are_the_whole(name: str | None) -> None:
    """Of batches that three do not divide, with fewer rows than parts, and with a part in which nothing is scored."""
    io = TOKENS if name else VECTORS
    cls = registry.load(registry.ARCHITECTURE, name) if name else Recency
    batches = [batch(io, size, 24, CPU) for size in (7, 2, 9)]
    batches[2][1][:3] = False
    found = []
    for _ in range(2):
        with gradients_on(CPU) as by:
            found.append(trained(made(cls, io), batches, by))
            assert len(children()) == 2
        assert children() == []
    assert all(map(torch.equal, *found)), "the same bits again"
    torch.testing.assert_close(found[0], trained(made(cls, io), batches, gradients), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: made(Counts), "changes what the model keeps"),
        (lambda: made(Chance), "changes what the model keeps, or draws numbers"),
        (lambda: made(Rebinds), "changes what the model keeps"),
        (lambda: made(Recency, dropout=0.5), "draws numbers"),
        (lambda: made(registry.load(registry.ARCHITECTURE, "fast_slow"), n_layers=2), "the model's loss is no mean"),
    ],
)
def test_what_cannot_be_divided_is_not(model: Callable[[], Model], why: str, parted: PartedGradients) -> None:
    parted(model(), batch(TOKENS, 6, 24, CPU), OPTIONS)
    assert why in parted.refused
    assert children() == []


def test_one_that_hangs_is_not_waited_for(parted: PartedGradients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PATIENCE", 0.1)
    monkeypatch.setattr(parts, "_why_not", lambda *_: time.sleep(600))
    model, inputs = made(Recency), batch(TOKENS, 6, 24, CPU)
    torch.testing.assert_close(parted(model, inputs, OPTIONS), gradients(copy.deepcopy(model), inputs, OPTIONS))
    assert "does not answer" in parted.refused


def test_one_thread_divides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with gradients_on(CPU) as by:
        assert by is gradients


def test_where_a_process_ends_this_one_goes_on(parted: PartedGradients) -> None:
    model, inputs = made(Recency), batch(TOKENS, 6, 24, CPU)
    parted(model, inputs, OPTIONS)
    os.kill(parted._workers[1].pid, signal.SIGKILL)
    torch.testing.assert_close(parted(model, inputs, OPTIONS), gradients(copy.deepcopy(model), inputs, OPTIONS))
    assert "one of the processes failed" in parted.refused


def test_what_fails_is_told_by_this_process(parted: PartedGradients) -> None:
    model, inputs = made(Recency), batch(TOKENS, 6, 24, CPU)
    parted(model, inputs, OPTIONS)
    with pytest.raises(IndexError):
        parted(model, (inputs[0] + 99, inputs[1]), OPTIONS)


READS = """
import sys, threading
from tests.training.test_parts import CPU, OPTIONS, TOKENS, PartedGradients, Recency, batch, made, torch
threading.Thread(target=sys.stdin.read, daemon=True).start()
torch.set_num_threads(2)
by = PartedGradients()
by(made(Recency), batch(TOKENS, 6, 24, CPU), OPTIONS)
assert not by.refused, by.refused
by.close()
"""


def test_a_thread_may_read_the_input() -> None:
    """As in a process of a sweep."""
    process = subprocess.Popen([sys.executable, "-c", READS], cwd=ROOT, stdin=subprocess.PIPE)
    assert process.wait(60) == 0
    assert process.stdin is not None
    process.stdin.close()


WAITS = """
import time, torch
from regbench.training.parts import PartedGradients
from tests.training.test_parts import CPU, OPTIONS, TOKENS, Recency, batch, made
by = PartedGradients()
torch.set_num_threads(3)
by(made(Recency), batch(TOKENS, 6, 24, CPU), OPTIONS)
print(*(worker.pid for worker in by._workers), flush=True)
time.sleep(240)
"""


def test_the_processes_of_one_that_is_killed_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITS], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = process.stdout.readline().split()
    assert len(pids) == 2
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_alive, pids)))


def is_alive(pid: str) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
