"""From settings to the options of an architecture, and from options to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""Of a model that is built without memory."""


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divides settings into those of the architecture and those of training.

    Args:
        settings: by their keys. Those of training have keys `training.NAME`.

    Returns:
        The architecture's settings, and the training settings by NAME.
    """
    own = {key: value for key, value in settings.items() if not key.startswith("training.")}
    return own, {key.removeprefix("training."): value for key, value in settings.items() if key not in own}


def resolve_options(cls: type[Any], settings: Mapping[str, Any]) -> Options:
    """The architecture's options: its defaults, with these settings in their place.

    Args:
        cls: the architecture's class.
        settings: option values by name.

    Raises:
        UserError: a key is unknown (the line has the nearest known one), or a value has the wrong type.
    """
    with explain_validation("option", cls.Options.model_fields):
        options: Options = cls.Options(**settings)
    return options


def build(cls: type[Any], options: Options, io: IO) -> Model:
    """A model of an architecture: a mixer on the common backbone, or the architecture's own `Model`.

    Args:
        cls: the architecture's class.
        options: an instance of `cls.Options`.
        io: what the task's models read and predict.

    Raises:
        UserError: the architecture is for another kind of task, its family is none of `FAMILIES`, or its own code raises (the
            line says where).
    """
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
    """As `build`, but the weights take no memory. So the options may be a stranger's.

    Raises:
        UserError: As `build`, or the model has very many parts.
    """
    parts = 0

    def count(*_: Any) -> None:
        nonlocal parts
        parts += 1
        if parts > _MOST_PARTS:
            raise UserError(f"a model of more than {_MOST_PARTS:,} modules")

    hook = register_module_module_registration_hook(count)
    try:
        with torch.device("meta"), _WithoutDraws():
            return build(cls, options, io)
    finally:
        hook.remove()
