"""Which form of an op runs. The choice is explicit and recorded; there is no silent fallback.

Every op has a `naive` form that is obviously right, and fast forms tested against it. A caller names one
(`backend="triton"`), or says `"auto"` and gets the one asked for by the enclosing `use_backend`, or else the
first form in the op's list that runs on the tensors' device, is installed, and is exact for their type.

`use_backend`, and `regbench run --backend`, take the name of a form, which every op that runs must then have, or a form
for each of some ops, the others being left to `auto`: `attention=flash-attn,ngram_head=triton`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from regbench.utils.errors import UserError, nearest

AUTO = "auto"

_ops: dict[str, Op] = {}
_asked: ContextVar[_Asked | None] = ContextVar("regbench_backend", default=None)
_ran: ContextVar[dict[str, str] | None] = ContextVar("regbench_backends_that_ran", default=None)


@dataclass(frozen=True)
class Form:
    """One implementation of an op, imported when first used.

    target: "package.module:function".
    devices: the device types it runs on, e.g. ("cpu",).
    requires: the module it needs beyond PyTorch and Numba, and `install`, how to get it.
    dtypes: the types it takes; None for all.
    exact: those of them in which its products are rounded no more than the inputs already are: `auto` takes it for these
        alone. None for all that it takes.
    """

    target: str
    devices: tuple[str, ...]
    requires: str | None = None
    install: str | None = None
    dtypes: tuple[torch.dtype, ...] | None = None
    exact: tuple[torch.dtype, ...] | None = None

    @property
    def missing(self) -> str | None:
        """The module that would have to be installed first, if any."""
        if self.requires is not None and importlib.util.find_spec(self.requires) is None:
            return self.requires
        return None

    def takes(self, dtype: torch.dtype | None) -> bool:
        return dtype is None or self.dtypes is None or dtype in self.dtypes

    def suits(self, device: torch.device, dtype: torch.dtype | None) -> bool:
        """Whether `auto` may take it."""
        exact = dtype is None or self.exact is None or dtype in self.exact
        return device.type in self.devices and self.takes(dtype) and exact and self.missing is None

    def load(self) -> Callable[..., Any]:
        module, _, name = self.target.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


@dataclass(frozen=True)
class Op:
    """An op and its forms, fastest first."""

    name: str
    forms: Mapping[str, Form]

    def __post_init__(self) -> None:
        _ops[self.name] = self

    def choose(self, backend: str, device: torch.device, dtype: torch.dtype | None = None) -> Callable[..., Any]:
        """The function that serves `backend` for tensors on `device`; notes the choice for the result.

        dtype: of the tensors, where a form of this op does not take all.

        Raises:
            UserError: the op has no such form, it does not run on that device or in that type, or its package is missing.
        """
        enclosing = _asked.get()
        asked = enclosing.of(self.name) if backend == AUTO and enclosing is not None else backend
        if asked == AUTO:
            asked = next((name for name, form in self.forms.items() if form.suits(device, dtype)), "naive")
        form = self._named(asked)
        if form.missing is not None:
            raise UserError(f"backend '{asked}' of {self.name} needs {form.missing}: {form.install}")
        if device.type not in form.devices:
            fits = ", ".join(n for n, f in self.forms.items() if device.type in f.devices)
            raise UserError(f"backend '{asked}' of {self.name} does not run on {device.type}; there: {fits}")
        if not form.takes(dtype):
            fits = ", ".join(str(d).removeprefix("torch.") for d in form.dtypes or ())
            raise UserError(f"backend '{asked}' of {self.name} takes {fits}, not {str(dtype).removeprefix('torch.')}")
        ran = _ran.get()
        if ran is not None:
            ran[self.name] = asked
        return form.load()

    def _named(self, backend: str) -> Form:
        form = self.forms.get(backend)
        if form is None:
            # A library of one op, asked for in a model of several.
            served = [f"{op}={name}" for op, name in (_ran.get() or {}).items() if name == backend]
            alone = f"; of one op alone: {', '.join(served)}" if served else nearest(backend, self.forms)
            raise UserError(f"{self.name} has no backend '{backend}'{alone}")
        return form


@dataclass(frozen=True)
class _Asked:
    """What an enclosing `use_backend` asks for: of all ops, or of some."""

    everywhere: str
    alone: Mapping[str, str]

    def of(self, op: str) -> str:
        return self.alone.get(op, self.everywhere)


def _read(backend: str) -> _Asked:
    if "=" not in backend:
        return _Asked(backend, {})
    alone: dict[str, str] = {}
    ops = known_ops()
    for part in backend.split(","):
        op, equals, form = (text.strip() for text in part.partition("="))
        if not equals:
            raise UserError(
                f"backend '{part.strip()}' of which op? Among several each needs its own, as in attention=torch"
            )
        if op not in ops:
            raise UserError(f"no op is called '{op}'{nearest(op, ops)}")
        if form != AUTO:
            ops[op]._named(form)
        alone[op] = form
    return _Asked(AUTO, alone)


def known_ops() -> Mapping[str, Op]:
    """The ops of regbench by name, and those that others have made."""
    package = importlib.import_module("regbench.ops")
    for module in pkgutil.iter_modules(package.__path__, "regbench.ops."):
        if module.ispkg:
            importlib.import_module(module.name)
    return _ops


@contextlib.contextmanager
def use_backend(backend: str) -> Iterator[dict[str, str]]:
    """Within the block `backend="auto"` means `backend`; yields the record {op: form that ran}, filled as ops run.

    Raises:
        UserError: of a backend for each op, an op or its form is not known.
    """
    record: dict[str, str] = {}
    asked, ran = _asked.set(_read(backend)), _ran.set(record)
    try:
        yield record
    finally:
        _asked.reset(asked)
        _ran.reset(ran)


def require_use(backend: str, record: Mapping[str, str]) -> None:
    """Refuses a `backend` that was named but, by the `record` of what ran, served nothing.

    Raises:
        UserError: no op ran in the named form, or one of the ops named alone did not run.
    """
    asked = _read(backend)
    idle = sorted(op for op in asked.alone if op not in record)
    if idle:
        used = f"; it uses {', '.join(sorted(record))}" if record else ""
        raise UserError(f"backend '{backend}' names {', '.join(idle)}, which this model does not use{used}")
    if asked.everywhere != AUTO and not record:
        raise UserError(f"backend '{backend}' has nothing to serve: this model uses no op that has a choice of forms")


def common_type(*tensors: Tensor | None) -> torch.dtype:
    """The type that holds all of the tensors' types: under autocast, one op may be handed several."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors if tensor is not None))
