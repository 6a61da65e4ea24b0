"""From settings to the options of an architecture, and from options to a model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.overrides import TorchFunctionMode

from regbench.models.backbone import Backbone
from regbench.models.bottleneck import Bottleneck
from regbench.models.mixer import FAMILIES, Mixer, Options
from regbench.models.model import Model
from regbench.tasks.base import IO
from regbench.utils.errors import UserError, blame, explain_validation, nearest

_DRAWS = frozenset({"normal_", "uniform_"})
"""Methods, and functions of torch.nn.init, that draw the initial values of weights."""

_MOST_PARTS = 10_000
"""The most modules of a model."""

_COPIES = 4
"""Training holds the weights, their gradients and two means of AdamW."""


def resolve_options(cls: type[Any], settings: Mapping[str, Any]) -> Options:
    """The options of an architecture: its defaults, with these settings in their place.

    A UserError if a key is unknown (the line has the nearest known one), or a value has the wrong type.
    """
    with explain_validation("option", cls.Options.model_fields):
        options: Options = cls.Options(**settings)
    return options


def build(cls: type[Any], options: Options, io: IO) -> Model:
    """A model of an architecture: a mixer on the common backbone, or the architecture's own `Model`.

    A UserError if it is for another kind of task, its family is none of `FAMILIES`, its own code raises (the line says where), or
    a training with these options is more than this machine holds.
    """
    if torch.get_default_device().type != "meta":
        _require_room(cls, options, io)
    with _counting_parts(cls, options):
        return _build(cls, options, io)


def _build(cls: type[Any], options: Options, io: IO) -> Model:
    if cls.family not in FAMILIES:
        known = f"; known: {', '.join(FAMILIES)}"
        raise UserError(f"{cls.__name__}.family is {cls.family!r}{nearest(str(cls.family), FAMILIES) or known}")
    try:
        if issubclass(cls, Mixer):
            return Backbone(cls, options, io)
        if options.ngram_heads and not issubclass(cls, Backbone):
            raise UserError(f"{cls.__name__} is a whole model: only architectures made of a mixer take n-gram heads")
        if options.short_conv and not issubclass(cls, Backbone):
            raise UserError(f"{cls.__name__} is a whole model: only architectures made of a mixer take short_conv")
        if io.kind not in cls.takes:
            raise UserError(f"{cls.__name__} is for {' and '.join(cls.takes)}, and this task is one of {io.kind}")
        model: Model = cls(options, io)
        if io.bottleneck is not None and not isinstance(getattr(model, "bottleneck", None), Bottleneck):
            raise UserError(
                f"{cls.__name__} is a whole model without a bottleneck, and this task asks what one vector of a model holds: "
                "take an architecture made of a mixer"
            )
    except UserError:
        raise
    except Exception as error:
        taken = "options" if issubclass(cls, Mixer) else "options, io"
        hint = f"; begin with super().__init__({taken})" if "Module.__init__() call" in str(error) else ""
        raise UserError(f"{cls.__name__} cannot be built: {blame(error)}{hint}") from error
    return model


class _WithoutDraws(TorchFunctionMode):
    """Draws no initial values. Without memory there are none, and PyTorch would load its compiler for them, in seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__name__", "") in _DRAWS:
            return args[0] if args else named["tensor"]  # as torch.nn.init calls itself
        return func(*args, **named)


def build_without_memory(cls: type[Any], options: Options, io: IO) -> Model:
    """As `build`, but the weights take no memory. So the options may be a stranger's."""
    with torch.device("meta"), _WithoutDraws():
        return build(cls, options, io)


def _too_large(cls: type[Any], options: Options, what: str) -> UserError:
    numbers = {name: value for name, value in options if isinstance(value, int)}
    largest = max(numbers, key=lambda name: numbers[name])
    return UserError(f"{cls.__name__} with {largest}={numbers[largest]} {what}")


@contextlib.contextmanager
def _counting_parts(cls: type[Any], options: Options) -> Iterator[None]:
    """Refuses a model of very many modules while it is made: without memory, too, each of them takes time and memory."""
    parts = 0

    def count(*_: Any) -> None:
        nonlocal parts
        parts += 1
        if parts > _MOST_PARTS:
            raise _too_large(cls, options, f"has more than {_MOST_PARTS:,} modules")

    hook = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _require_room(cls: type[Any], options: Options, io: IO) -> None:
    """Refuses a model whose training is more than this machine holds. A stranger's code need not build without memory."""
    try:
        with torch.random.fork_rng(devices=[]):
            model = build_without_memory(cls, options, io)
    except UserError as error:
        if error.__cause__ is None:  # of the options, not of code that fails
            raise
        if "overflow" in str(error).lower():
            raise _too_large(cls, options, "is larger than any memory") from None
        return
    tensors = [*model.parameters(), *model.buffers()]
    needed = _COPIES * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else needed  # no Windows
    if needed > there:
        raise _too_large(cls, options, f"needs {needed >> 30:,} GiB in training, and this machine has {there >> 30:,}")
