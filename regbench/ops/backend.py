"""Which form of an op runs. The choice is explicit and recorded; there is no silent fallback.

Every op has a `naive` form that is obviously right, and fast forms tested against it. A caller names one
(`backend="triton"`), or says `"auto"` and gets the one asked for by the enclosing `use_backend`, or else the
first form in the op's list that runs on the tensor's device.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from regbench.errors import UserError, nearest

_asked: ContextVar[str] = ContextVar("regbench_backend", default="auto")
_ran: ContextVar[dict[str, str] | None] = ContextVar("regbench_backends_that_ran", default=None)


@dataclass(frozen=True)
class Form:
    """One implementation of an op, imported when first used.

    target: "package.module:function".
    devices: the device types it runs on, e.g. ("cpu",).
    requires: the module it needs beyond PyTorch and Numba, and `install`, how to get it.
    """

    target: str
    devices: tuple[str, ...]
    requires: str | None = None
    install: str | None = None

    @property
    def missing(self) -> str | None:
        """The module that would have to be installed first, if any."""
        if self.requires is not None and importlib.util.find_spec(self.requires) is None:
            return self.requires
        return None

    def load(self) -> Callable[..., Any]:
        module, _, name = self.target.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


@dataclass(frozen=True)
class Op:
    """An op and its forms, fastest first."""

    name: str
    forms: Mapping[str, Form]

    def choose(self, backend: str, device: torch.device) -> Callable[..., Any]:
        """The function that serves `backend` for tensors on `device`; notes the choice for the result.

        Raises:
            UserError: the op has no such form, it does not run on that device, or its package is missing.
        """
        asked = _asked.get() if backend == "auto" else backend
        if asked == "auto":
            fitting = (n for n, f in self.forms.items() if device.type in f.devices and f.missing is None)
            asked = next(fitting, "naive")
        form = self.forms.get(asked)
        if form is None:
            raise UserError(f"{self.name} has no backend '{asked}'{nearest(asked, self.forms)}")
        if form.missing is not None:
            raise UserError(f"backend '{asked}' of {self.name} needs {form.missing}: {form.install}")
        if device.type not in form.devices:
            fits = ", ".join(n for n, f in self.forms.items() if device.type in f.devices)
            raise UserError(f"backend '{asked}' of {self.name} does not run on {device.type}; there: {fits}")
        ran = _ran.get()
        if ran is not None:
            ran[self.name] = asked
        return form.load()


@contextlib.contextmanager
def use_backend(backend: str) -> Iterator[dict[str, str]]:
    """Within the block `backend="auto"` means `backend`; yields the record {op: form that ran}, filled as ops run."""
    record: dict[str, str] = {}
    asked, ran = _asked.set(backend), _ran.set(record)
    try:
        yield record
    finally:
        _asked.reset(asked)
        _ran.reset(ran)
