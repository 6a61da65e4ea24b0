"""The configuration of a run, as a YAML file: a user's own for `regbench run --config`, or that of the run folder it makes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
import yaml
from pydantic_core import PydanticSerializationError

from regbench.utils.errors import UserError, explain_validation
from regbench.utils.files import atomic_write, explain_writing, read_mapping, runs_in
from regbench.utils.folder import Folder
from regbench.utils.guard import YAML_BYTES, Refused, parse_plain_yaml

OF_TASK = "task."
"""Before the name of a parameter of the track's task, where it stands among settings."""

OF_TRAINING = "training."
"""Before the name of a training option there."""

Seed = Annotated[int, pydantic.Field(strict=True, ge=0, lt=2**63)]
"""A whole number that the generators of NumPy and PyTorch both take."""


class Config(pydantic.BaseModel):
    """The whole of what a run is asked to do. It is kept in `config.yaml`, and a resumed run follows it."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    track: str
    """The name of a built-in track, or the path of a YAML file; with other parameters as `variant` says."""
    architecture: str
    """A registered name, or `path/to/file.py[:Class]`."""
    seeds: tuple[Seed, ...] = pydantic.Field(default=(0,), min_length=1)
    """One model is trained for each."""
    settings: dict[str, Any] = {}
    """Options of the architecture, and training options as `training.NAME`. `task.NAME` becomes part of `track`."""
    backend: str = "auto"
    """The implementation of the ops."""
    device: str = "auto"
    """"cpu", "cuda", or "auto"."""
    trials: int = pydantic.Field(default=1, ge=1)
    """How many configurations were tried on the validation split, this one included."""

    @pydantic.field_validator("settings", "seeds", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return plain(value)

    @pydantic.model_validator(mode="after")
    def _of_task(self) -> Config:
        of_task, others = parted(self.settings, OF_TASK)
        if of_task:
            object.__setattr__(self, "track", variant(self.track, of_task))
            object.__setattr__(self, "settings", others)
        return self


def plain(value: Any) -> Any:
    """Numbers and arrays of NumPy become Python's, and paths text: `config.yaml` holds no others."""
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def parted(settings: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings whose keys begin with `OF_TASK` or `OF_TRAINING`, without it; and all others."""
    some = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
    return some, {key: value for key, value in settings.items() if not key.startswith(prefix)}


def variant(track: str, parameters: Mapping[str, Any]) -> str:
    """What a track with other parameters of its task is called by, as in "recall-reach-v1?n_keys=64&n_values=16"."""
    written = (
        f"{name}={json.dumps(value, separators=(',', ':'))}".replace("&", "\\u0026")
        for name, value in parameters.items()
    )
    return f"{track}{'&' if '?' in track else '?'}{'&'.join(written)}" if parameters else track


def read_config(path: Path) -> Config:
    """Reads a configuration from a YAML file."""
    if (path / "config.yaml").is_file():
        raise UserError(f"{path} is a folder; its configuration is {path / 'config.yaml'}")
    content = read_mapping(path, "a configuration")
    with explain_validation(str(path), Config.model_fields):
        return Config(**content)


def require_readable(config: Config) -> None:
    """Checks that `read_run` can read the `config.yaml` of a run with this configuration."""
    try:
        parse_plain_yaml(yaml.safe_dump(config.model_dump(mode="json")).encode(), "the configuration")
    except Refused as error:
        raise UserError(str(error)) from None
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        raise UserError(f"the settings cannot be written: {str(error).splitlines()[0]}") from None


def read_run(folder: Path) -> Config:
    """Reads the configuration of a run, from the `config.yaml` of its folder, which may be a stranger's."""
    path = folder / "config.yaml"
    if not os.path.lexists(path):
        kept = "; what `regbench.evaluate` leaves has none" if (folder / "result.json").exists() else ""
        raise UserError(f"{folder} holds no run: there is no config.yaml{kept or runs_in(folder)}")
    try:
        content = parse_plain_yaml(Folder(folder).read(path.name, YAML_BYTES), path.name)
    except Refused as error:
        raise UserError(f"{folder}/{error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: a configuration is a mapping of fields, not {type(content).__name__}")
    with explain_validation(str(path), Config.model_fields):
        return Config(**content)


# --- The folder of a run. ---


def unused(out: str | Path | None, instead: str = "choose another folder") -> Path | None:
    """The folder that the caller chose, which must hold no run. None: none was chosen."""
    if out == "":
        raise UserError("out is empty: it names a new folder")
    folder = None if out is None else Path(out)
    if folder is not None and any((folder / name).exists() for name in ("result.json", "config.yaml")):
        raise UserError(f"{out} holds a run already; {instead}")
    return folder


def make_folder(base: Path) -> Path:
    """Makes the folder `base`, or where it is there `base-2` and so on."""
    folder, number = base, 1
    with explain_writing(base):
        base.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
                folder = base.with_name(f"{base.name}-{number}")


def write_config(folder: Path, config: Config) -> None:
    """Writes `config.yaml`. From then on the folder holds a run that can be resumed."""
    with atomic_write(folder / "config.yaml") as file:
        yaml.safe_dump(config.model_dump(mode="json"), file, sort_keys=False)
