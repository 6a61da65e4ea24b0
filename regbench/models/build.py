"""From an architecture's class and its settings to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from regbench.models.backbone import Backbone
from regbench.models.mixer import Mixer, Options
from regbench.models.model import Model
from regbench.tasks.base import IO
from regbench.utils.errors import UserError, blame, describe_validation


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the architecture, and those of training that are given as `training.NAME`, by their names."""
    own = {key: value for key, value in settings.items() if not key.startswith("training.")}
    return own, {key.removeprefix("training."): value for key, value in settings.items() if key not in own}


def resolve_options(cls: type[Any], settings: Mapping[str, Any]) -> Options:
    """The architecture's options with `settings` over its defaults.

    Raises:
        UserError: an unknown key (the nearest known one is named) or a value of the wrong type.
    """
    try:
        options: Options = cls.Options(**settings)
    except pydantic.ValidationError as error:
        raise UserError(describe_validation(error, "option", cls.Options.model_fields)) from None
    return options


def build(cls: type[Any], options: Options, io: IO) -> Model:
    """A model of `cls`: a mixer is put on the common backbone, a whole model stands by itself.

    Raises:
        UserError: the architecture is for another kind of task, or its own code raises; the line says where.
    """
    try:
        if issubclass(cls, Mixer):
            return Backbone(cls, options, io)
        if options.ngram_heads:
            raise UserError(f"{cls.__name__} is a whole model: only architectures made of a mixer take n-gram heads")
        if options.short_conv:
            raise UserError(f"{cls.__name__} is a whole model: only architectures made of a mixer take short_conv")
        if io.kind not in cls.takes:
            raise UserError(f"{cls.__name__} is for {' and '.join(cls.takes)}, and this task is one of {io.kind}")
        model: Model = cls(options, io)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{cls.__name__} cannot be built: {blame(error)}") from error
    return model
