"""Chooses the implementation of an op. The choice is explicit and recorded; nothing falls back in silence.

Every op has an implementation `naive`, which is clearly right, and faster ones, which are tested against it. A *backend* is the
name of an implementation. A caller names one (`backend="naive"`) or leaves it at "auto". Then the enclosing `use_backend`
decides. Without one, it is the first implementation in the op's list that is installed, runs on the tensors' device, and is
exact for their type.

`use_backend` and `regbench run --backend` take one backend for all ops, which every op that runs must then have. They also
take a list with a backend for some ops, `attention=flash-attn,ngram_head=triton`; the other ops are left to "auto".
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from regbench.utils.errors import UserError, nearest

AUTO = "auto"
ALL = "*"
"""Stands for every op that is not named."""

_ops: dict[str, Op] = {}
_requested: ContextVar[Mapping[str, str]] = ContextVar("regbench_backend", default=MappingProxyType({ALL: AUTO}))
_ran: ContextVar[dict[str, str] | None] = ContextVar("regbench_backends_that_ran", default=None)


@dataclass(frozen=True)
class Implementation:
    """One implementation of an op, imported when it is first used."""

    target: str  # where its function is, "package.module:function"
    devices: tuple[str, ...]  # the types of device it runs on, such as ("cpu", "cuda")
    requires: str | None = None  # the module it needs beside PyTorch and Numba, if any
    install: str | None = None
    dtypes: tuple[torch.dtype, ...] | None = None  # the types it takes; None for all
    exact: tuple[torch.dtype, ...] | None = None
    """The types in which it rounds products no more than the inputs are rounded already. "auto" takes it for these alone. None
    for all that it takes.
    """

    def fault(self, device: torch.device, dtype: torch.dtype | None) -> str | None:
        """Why it does not serve tensors of this type on this device, or None. No type asks nothing."""
        if device.type not in self.devices:
            return f"does not run on {device.type}"
        if self.requires is not None and not installed(self.requires):
            return f"needs {self.requires}: {self.install}"
        if dtype is None or self.dtypes is None or dtype in self.dtypes:
            return None
        return f"takes {', '.join(map(_name, self.dtypes))}, not {_name(dtype)}"

    def rounds(self, dtype: torch.dtype | None) -> bool:
        """Whether it rounds products of this type more than the inputs are rounded."""
        return dtype is not None and self.exact is not None and dtype not in self.exact


def _name(dtype: torch.dtype | None) -> str:
    """A type, for people."""
    return str(dtype).removeprefix("torch.")


@lru_cache
def installed(module: str) -> bool:
    """Whether it can be imported. Kept: a search on disk at every call of an op takes longer than a small op."""
    return importlib.util.find_spec(module) is not None


@dataclass(frozen=True)
class Op:
    """An op, known by its name from when it is made."""

    name: str  # the name that users type, such as "attention"
    implementations: Mapping[str, Implementation]

    def __post_init__(self) -> None:
        _ops[self.name] = self

    def choose(
        self, backend: str, device: torch.device, dtype: torch.dtype | None = None, *, exact: bool = False
    ) -> Callable[..., Any]:
        """The function that serves `backend`, "auto" or the name of an implementation. The choice is noted for the result.

        The type of the tensors is needed where an implementation does not take all types. With `exact`, an implementation is
        refused that does not take this type as exact.
        """
        requested = _requested.get()
        name = requested.get(self.name, requested[ALL]) if backend == AUTO else backend
        if name == AUTO:
            suited = (
                n
                for n, one in self.implementations.items()
                if one.fault(device, dtype) is None and not one.rounds(dtype)
            )
            name = next(suited, "naive")
        chosen = self.named(name)
        fault = chosen.fault(device, dtype)
        if fault is not None:
            there = ", ".join(n for n, i in self.implementations.items() if device.type in i.devices)
            hint = f"; there: {there}" if device.type not in chosen.devices else ""
            raise UserError(f"backend '{name}' of {self.name} {fault}{hint}")
        if exact and chosen.rounds(dtype):
            raise UserError(
                f"backend '{name}' of {self.name} rounds {_name(dtype)}, which is too coarse for this model"
            )
        ran = _ran.get()
        if ran is not None:
            ran[self.name] = name
        function: Callable[..., Any] = pkgutil.resolve_name(chosen.target)
        return function

    def named(self, backend: str) -> Implementation:
        if backend in self.implementations:
            return self.implementations[backend]
        served = [f"{op}={name}" for op, name in (_ran.get() or {}).items() if name == backend]
        hint = f"; for one op alone write {', '.join(served)}" if served else nearest(backend, self.implementations)
        raise UserError(f"{self.name} has no backend '{backend}'{hint}")


def _read(backend: str) -> dict[str, str]:
    """What a string asks for, {op: backend}: one backend for `ALL` ops, or a list of OP=BACKEND and "auto" for the others."""
    if "=" not in backend:
        if backend != AUTO:
            names = {name for op in known_ops().values() for name in op.implementations}
            if backend not in names:
                raise UserError(f"no op has a backend '{backend}'{nearest(backend, names)}")
        return {ALL: backend}
    requested, ops = {ALL: AUTO}, known_ops()
    for part in backend.split(","):
        op, equals, name = (text.strip() for text in part.partition("="))
        if not equals:
            raise UserError(
                f"backend '{part.strip()}' is without its op: in a list each needs one, as in attention=torch"
            )
        if op in requested:
            raise UserError(f"backend names {op} twice: {backend}")
        if op not in ops:
            raise UserError(f"no op is called '{op}'{nearest(op, ops)}")
        if name != AUTO:
            ops[op].named(name)
        requested[op] = name
    return requested


def known_ops() -> Mapping[str, Op]:
    """The ops of regbench and those made elsewhere, by name."""
    package = importlib.import_module("regbench.ops")
    for module in pkgutil.iter_modules(package.__path__, "regbench.ops."):
        if module.ispkg:
            importlib.import_module(module.name)
    return _ops


@contextlib.contextmanager
def use_backend(backend: str) -> Iterator[dict[str, str]]:
    """Makes `backend` the meaning of "auto" within the block.

    It is one for all ops, or a list with one for some: "attention=naive,ngram_head=cpu". Yields the record of what ran, {op:
    backend}, which is filled as ops run.
    """
    record: dict[str, str] = {}
    requested, ran = _requested.set(_read(backend)), _ran.set(record)
    try:
        yield record
    finally:
        _requested.reset(requested)
        _ran.reset(ran)


def require_use(backend: str, record: Mapping[str, str]) -> None:
    """Refuses a backend that was asked for by name and did not run."""
    requested = _read(backend)
    idle = sorted(requested.keys() - record.keys() - {ALL})
    if idle:
        used = f"; it uses {', '.join(sorted(record))}" if record else ""
        raise UserError(f"backend '{backend}' names {', '.join(idle)}, which this model does not use{used}")
    if requested[ALL] != AUTO and not record:
        raise UserError(f"backend '{backend}' has no effect: this model uses no op with several implementations")


def check_shapes(op: str, expected: Iterable[tuple[str, Tensor | None, tuple[int, ...] | str]]) -> None:
    """Refuses the first tensor whose shape is not the expected one. The name of the op is for the message.

    `expected` are the name of each argument, the argument (None where it is left out), and its shape: its sizes, or, where they
    are free, the names of its dimensions, such as "(B, L, D)".
    """
    for name, tensor, shape in expected:
        if tensor is None:
            continue
        fits = len(shape.split(", ")) == tensor.dim() if isinstance(shape, str) else shape == tensor.shape
        if not fits:
            raise UserError(f"{op}: {name} should have shape {shape}, but has {tuple(tensor.shape)}")


def common_type(*tensors: Tensor | None, least: torch.dtype | None = None) -> torch.dtype:
    """The type that holds the types of all tensors. Under autocast an op may be given several types."""
    types = [tensor.dtype for tensor in tensors if tensor is not None]
    return reduce(torch.promote_types, types if least is None else [*types, least])
