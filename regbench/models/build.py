"""Makes a model from an architecture's class and its settings."""

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
    try:
        options: Options = cls.Options(**settings)
    except pydantic.ValidationError as error:
        raise UserError(describe_validation(error, "option", cls.Options.model_fields)) from None
    return options


def build(cls: type[Any], options: Options, io: IO) -> Model:
    """A model of an architecture: a mixer on the common backbone, or the architecture's own `Model`.

    Args:
        cls: the architecture's class.
        options: an instance of `cls.Options`.
        io: what the task's models read and predict.

    Raises:
        UserError: the architecture is for another kind of task, or its own code raises (the line says where).
    """
    try:
        if issubclass(cls, Mixer):
            return Backbone(cls, options, io)
        if options.ngram_heads:
            raise UserError(f"{cls.__name__} is a whole model: only architectures made of a mixer take n-gram heads")
        if io.kind not in cls.takes:
            raise UserError(f"{cls.__name__} is for {' and '.join(cls.takes)}, and this task is one of {io.kind}")
        model: Model = cls(options, io)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{cls.__name__} cannot be built: {blame(error)}") from error
    return model
