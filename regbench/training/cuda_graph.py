"""Gradients by CUDA graphs: the kernels of a step are recorded once for a shape of batch, and started together from then on.

A step of a small model has a thousand short kernels, and Python takes longer to start them than the GPU to run them.
A recording does not run the model's Python code again. So it is made only of a model whose steps leave nothing behind in Python
and do not wait for the GPU.
"""

from __future__ import annotations

import pickle
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regbench.models.model import Model
from regbench.training.options import TrainingOptions
from regbench.training.step import gradients

MOST = 32
"""So many shapes are recorded at most, as each keeps its gradients."""
_SLOWER = "steps are not recorded as CUDA graphs, which are faster"
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Where PyTorch keeps parameters, buffers, parts and hooks."""


class _Recording(NamedTuple):
    """A step of one shape of batch: the graph, and the tensors that it reads and writes at each replay."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    terms: dict[str, Tensor]
    grads: list[Tensor | None]


class GraphedGradients:
    """`gradients` of one model, recorded at the third batch of a shape and replayed from then on.

    The second batch is watched. A model that then waits for the GPU, or changes something that Python keeps, is not recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self.refused = ""  # why steps are not recorded
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._seen: Counter[object] = Counter()
        self._recordings: dict[object, _Recording] = {}

    def __call__(self, model: Model, batch: tuple[Tensor, ...], options: TrainingOptions) -> dict[str, Tensor]:
        shape = tuple(part.shape for part in batch)
        self._seen[shape] += 1
        recording = self._recordings.get(shape)
        if recording is None and not self.refused and self._seen[shape] > 2 and len(self._recordings) < MOST:
            recording = self._record(model, batch, options)
            if recording is not None:
                self._recordings[shape] = recording
        if recording is not None:
            for place, part in zip(recording.inputs, batch, strict=True):
                place.copy_(part)
            recording.graph.replay()
            for parameter, grad in zip(model.parameters(), recording.grads, strict=True):
                parameter.grad = grad
            return {name: term.clone() for name, term in recording.terms.items()}  # the next replay writes over them
        with self._aside():
            if self.refused or self._seen[shape] != 2:
                return gradients(model, batch, options)
            before = kept_by_python(model)
            with _waiting() as waited:
                terms = gradients(model, batch, options)
        if waited:
            self.refused = f"{_SLOWER}: the model waits for the GPU within a step"
        elif kept_by_python(model) != before:
            self.refused = f"{_SLOWER}: a step changes what the model keeps in Python"
        return terms

    def _record(self, model: Model, batch: tuple[Tensor, ...], options: TrainingOptions) -> _Recording | None:
        """Records a step. None: that failed, and `refused` says why."""
        inputs = tuple(part.clone() for part in batch)
        generator = torch.cuda.get_rng_state(self._stream.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, self._pool, self._stream):
                terms = gradients(model, inputs, options)
        except RuntimeError as error:
            torch.cuda.set_rng_state(generator, self._stream.device)
            self.refused = f"{_SLOWER}: recording it fails: {str(error).splitlines()[0]}"
            return None
        return _Recording(graph, inputs, terms, [parameter.grad for parameter in model.parameters()])

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On the stream that records: autograd remembers the stream of a parameter's first use."""
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            yield
        here.wait_stream(self._stream)


@contextmanager
def _waiting() -> Iterator[list[str]]:
    """The operations within that wait for the GPU, which PyTorch warns of; known at the end."""
    found: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        if "synchronizing CUDA operation" in str(warning.message):
            found.append(str(warning.message))
        elif "debug mode is a prototype" not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def kept_by_python(model: nn.Module) -> list[Any]:
    """What a step could change that a replay would not: attributes, tensors that take another's place, generators of the CPU.

    A tensor stands here itself and is compared by identity: a replay changes it where it lies.
    """
    of_numpy = pickle.dumps(np.random.get_state())  # noqa: NPY002
    kept: list[Any] = [random.getstate(), of_numpy, torch.get_rng_state().tolist()]
    for part in model.modules():
        for name, value in {**part._buffers, **vars(part)}.items():
            if isinstance(value, Tensor):
                kept.append((name, _Itself(value)))
            elif name not in _OF_EVERY_MODULE:
                try:
                    kept.append((name, pickle.dumps(value)))
                except Exception:  # what cannot be pickled cannot be compared
                    kept.append((name, None))
    return kept


class _Itself:
    """Equal to what holds the same object."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]
