"""The base of typed options: unknown keys, values of another type, NaN and infinity are errors; a boolean is no number."""

from __future__ import annotations

from typing import Any, get_args

import pydantic


class Settings(pydantic.BaseModel):
    """The base of the options of architectures and of training, and of the parameters of tasks: typed fields that never change.

    A number may be given as text: YAML reads "1e-3" as text. True and yes are not 1: a field takes a boolean only where its type
    says so, and there 1 and "true" are none. A default is validated as a given value is.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_boolean_as_a_number(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        given = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, bool) for one in given) and not _takes_boolean(annotation):
            raise ValueError("true, false, yes and no are not allowed here")
        others = any(isinstance(one, int | float | str) and not isinstance(one, bool) for one in given)
        if others and _is_boolean(annotation):
            raise ValueError("give true or false")
        return value


class Strict(pydantic.BaseModel):
    """The base of what is read from files: typed and frozen, no unknown keys, no conversions, no NaN or infinity.

    A field that need not be there, with the default None, is not written where it is None.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    @pydantic.field_validator("schema_version", mode="before", check_fields=False)
    @classmethod
    def _true_is_not_1(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("it is a number")
        return value

    @pydantic.model_serializer(mode="wrap")
    def _without_what_is_not_there(self, write: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = write(self)
        fields = type(self).model_fields
        return {k: v for k, v in content.items() if v is not None or fields[k].is_required()}


def _is_boolean(annotation: Any) -> bool:
    """Whether the type is bool, several of them, or one of these or None."""
    parts = [part for part in get_args(annotation) if part not in (type(None), ...)]
    return annotation is bool or (bool(parts) and all(map(_is_boolean, parts)))


def _takes_boolean(annotation: Any) -> bool:
    """Whether the type is bool, contains it, is a Literal that lists a boolean, or is Any."""
    if annotation in (bool, Any, object) or isinstance(annotation, bool):
        return True
    return any(map(_takes_boolean, get_args(annotation)))
