"""Gradients by several processes on the CPU: each has a part of the batch and one thread, and the parts are added in order.

A step of a small model is made of short operations. Threads within an operation gain little there, and threads beside each other
wait for Python. The time of a step is proportional to the rows of its batch, so with a process for each core it is divided.
The processes are forked: they have the model as it is, read its parameters from memory that all share, and write gradients there.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

import torch
from torch import Tensor

from regbench.models.model import Model
from regbench.training.cuda_graph import GraphedGradients, kept_by_python
from regbench.training.options import TrainingOptions
from regbench.training.step import Gradients, gradients, one_thread

MOST = 8
"""So many processes at most: of a batch of 16 each then has two instances."""

PATIENCE = 120.0
"""Seconds to wait for a process. A fork copies locks that other threads hold, and could wait for one for ever."""


@contextmanager
def gradients_on(device: torch.device) -> Iterator[Gradients]:
    """What computes gradients on a device: in parts on the CPU; on a GPU recorded, unless REGBENCH_CUDA_GRAPHS is 0."""
    if device.type == "cuda":
        yield gradients if os.environ.get("REGBENCH_CUDA_GRAPHS") == "0" else GraphedGradients(device)
        return
    if torch.get_num_threads() == 1 or sys.platform != "linux":
        yield gradients  # there is one core, or no process can be forked
        return
    parted = PartedGradients()
    try:
        yield parted
    finally:
        parted.close()


class PartedGradients:
    """`gradients` of one model, to rounding. With the first batch there are as many processes as PyTorch has threads.

    Attributes:
        refused: why one process computes them instead, with all threads; "" while several do.
    """

    def __init__(self) -> None:
        self.refused = ""
        self._workers: list[_Worker] = []

    def __call__(self, model: Model, batch: tuple[Tensor, ...], options: TrainingOptions) -> dict[str, Tensor]:
        if not (self._workers or self.refused):
            self._start(model, batch, options)
        if self._workers:
            try:
                return self._add(model, batch, options)
            except (OSError, EOFError) as error:  # a process has ended, or failed: what fails there is told by this one
                self._refuse(f"one of the processes failed: {error}")
        return gradients(model, batch, options)

    def close(self) -> None:
        """Ends the processes. They hold nothing that is not here, and one that hangs would not hear a word."""
        for worker in self._workers:
            worker.end.close()
            with suppress(OSError):  # where children are not waited for it may be gone
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        self._workers = []

    def _refuse(self, why: str) -> None:
        self.refused = f"steps are not divided among the cores, which is faster: {why}"
        self.close()

    def _start(self, model: Model, batch: tuple[Tensor, ...], options: TrainingOptions) -> None:
        if type(model).losses is not Model.losses:
            return self._refuse("the model's loss is no mean over scored positions")
        for parameter in model.parameters():
            parameter.data = _shared(parameter.data)
        try:
            for _ in range(min(torch.get_num_threads(), MOST) - 1):
                self._workers.append(_Worker(model, batch, options, [worker.end for worker in self._workers]))
            for worker in self._workers:
                if why := worker.answer():
                    return self._refuse(why)
        except (OSError, EOFError) as error:
            self._refuse(f"no process can be started: {error}")

    def _add(self, model: Model, batch: tuple[Tensor, ...], options: TrainingOptions) -> dict[str, Tensor]:
        """Hands out the parts of a batch but one, and adds what comes back: a part counts by its share of scored positions."""
        total, asked = int(batch[1].sum()), []
        mine, *others = zip(*(tensor.tensor_split(len(self._workers) + 1) for tensor in batch), strict=True)
        for worker, (tokens, scored, *rest) in zip(self._workers, others, strict=True):
            if scored.any():
                part = tokens.numpy(), scored.numpy(), *(tensor.numpy() for tensor in rest)
                worker.end.send((part, int(scored.sum()) / total))
                asked.append(worker)
        terms: dict[str, float] = {}
        model.zero_grad(set_to_none=True)
        if mine[1].any():
            with one_thread():
                terms = _weighted(model, mine, int(mine[1].sum()) / total, options)
        for worker in asked:
            answer = worker.answer()
            if isinstance(answer, str):
                raise OSError(answer)
            theirs, used = answer
            terms = {name: terms.get(name, 0.0) + value for name, value in theirs.items()}
            for parameter, grad, has in zip(model.parameters(), worker.grads, used, strict=True):
                if has:
                    parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
        return {name: torch.tensor(value) for name, value in terms.items()}


class _Worker:
    """A process that computes the gradients of parts, and what it shares with this one.

    The system alone forks it: a `multiprocessing.Process` first closes its input, and waits for ever where a thread reads it.
    """

    def __init__(
        self, model: Model, batch: tuple[Tensor, ...], options: TrainingOptions, others: Sequence[Connection]
    ) -> None:
        self.grads = [_shared(parameter.data) for parameter in model.parameters()]
        self.end, there = Pipe()
        with warnings.catch_warnings():  # of threads, which it does not use
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            # It closes the ends that it inherits: else it would wait for ever for what a killed parent sends.
            _work(there, [*others, self.end], model, batch, options, self.grads)
        there.close()

    def answer(self) -> Any:
        """What the process sends next; an `OSError` where it does not."""
        if not self.end.poll(PATIENCE):
            raise OSError("it does not answer")
        return self.end.recv()


def _work(
    end: Connection,
    closed: Sequence[Connection],
    model: Model,
    batch: tuple[Tensor, ...],
    options: TrainingOptions,
    grads: list[Tensor],
) -> NoReturn:
    """What a process does until nobody asks any more. At first it says why it cannot, or ""."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends this process
        for other in closed:
            other.close()
        torch.set_num_threads(1)
        parameters = list(model.parameters())
        with suppress(EOFError, BrokenPipeError):
            end.send(_why_not(model, batch, options))
            while True:
                part, share = end.recv()
                try:
                    terms = _weighted(model, tuple(map(torch.from_numpy, part)), share, options)
                    for parameter, grad in zip(parameters, grads, strict=True):
                        if parameter.grad is not None:
                            grad.copy_(parameter.grad)
                    answer: Any = terms, [parameter.grad is not None for parameter in parameters]
                except Exception as error:
                    answer = f"{type(error).__name__}: {error}"
                end.send(answer)
    finally:
        os._exit(0)  # nothing of the parent is written or tidied up here


def _weighted(model: Model, part: tuple[Tensor, ...], share: float, options: TrainingOptions) -> dict[str, float]:
    """`gradients` of a part, and the terms of its loss, both times its share of the batch."""
    terms = gradients(model, part, options)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= share
    return {name: share * float(term) for name, term in terms.items()}


def _why_not(model: Model, batch: tuple[Tensor, ...], options: TrainingOptions) -> str:
    """Why a batch cannot be divided: a step fails, or leaves something that the next step or another process would miss."""
    try:
        gradients(model, batch, options)  # the first one may keep what it makes, such as positions
        before = kept_by_python(model), [buffer._version for buffer in model.buffers()]
        gradients(model, batch, options)
        changed = (kept_by_python(model), [buffer._version for buffer in model.buffers()]) != before
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "a step changes what the model keeps, or draws numbers" if changed else ""


def _shared(tensor: Tensor) -> Tensor:
    """A copy in memory that forked processes share. The folder /dev/shm, which may be small, is not asked for it."""
    count = max(1, tensor.numel())
    copy = torch.frombuffer(mmap.mmap(-1, count * tensor.element_size()), dtype=tensor.dtype, count=count)
    return copy[: tensor.numel()].view(tensor.shape).copy_(tensor)
