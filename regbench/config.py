"""What a run is asked to do, as a YAML file: `config.yaml` in a run folder, or one's own for `regbench run --config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pydantic

from regbench.utils.errors import UserError, describe_validation, nearest
from regbench.utils.files import read_mapping

Seed = Annotated[int, pydantic.Field(strict=True, ge=0, lt=2**63)]
"""What NumPy's and PyTorch's generators both take."""


class Config(pydantic.BaseModel):
    """What was asked for: the whole of it is kept in `config.yaml`, and decides what a resumed run does."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    track: str
    architecture: str
    seeds: tuple[Seed, ...] = pydantic.Field(default=(0,), min_length=1)
    settings: dict[str, Any] = {}
    backend: str = "auto"
    device: str = "auto"
    trials: int = pydantic.Field(default=1, ge=1)


def read_config(path: Path) -> Config:
    """The configuration in a YAML file.

    Raises:
        UserError: it cannot be read, is broken (with its line), or has a key that is unknown, missing or of the wrong type.
    """
    content = read_mapping(path, "a configuration")
    for key in content:  # first: a misspelt key is also one that is missing
        if key not in Config.model_fields:
            raise UserError(f"{path}: unknown key '{key}'{nearest(key, Config.model_fields)}")
    try:
        return Config(**content)
    except pydantic.ValidationError as error:
        raise UserError(describe_validation(error, str(path), Config.model_fields)) from None
