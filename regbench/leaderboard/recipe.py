"""What a run was asked to do, as the command that asks for it: written from `config.yaml`, read back from an entry."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import pydantic

from regbench.config import Config
from regbench.leaderboard.guard import Refused, check_plain, describe_schema, parse_yaml
from regbench.utils import registry

_PROGRAM = ["regbench", "run"]


@dataclass(frozen=True)
class Recipe:
    """A run's configuration, free of the folders of whoever ran it.

    architecture: a registered name, or "file.py" or "file.py:Class".  track: its name.  settings: what was set.
    """

    architecture: str
    track: str
    seeds: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    trials: int = 1
    backend: str = "auto"
    device: str = "auto"

    @classmethod
    def of(cls, config: Config, track: str) -> Recipe:
        """From a run's `config.yaml`; track: what the one it names is called."""
        architecture = config.architecture
        if architecture.partition(":")[0].endswith(".py") or architecture.endswith(".py"):
            architecture = PurePath(architecture).name
        return cls(
            architecture, track, config.seeds, dict(config.settings), config.trials, config.backend, config.device
        )

    @classmethod
    def parse(cls, command: str) -> Recipe:
        """From `str(recipe)`.

        Raises:
            Refused: it is not a command that this module writes.
        """
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise Refused(f"not a command: {str(error).lower()}") from None
        flags = _flags(words)
        try:
            settings = dict(_setting(pair) for pair in flags.pop("set", []))
            recipe = cls(
                architecture=flags.pop("arch")[0],
                track=flags.pop("track")[0],
                seeds=tuple(int(seed) for seed in flags.pop("seed")),
                settings=settings,
                trials=int(flags.pop("trials", ["1"])[0]),
                backend=flags.pop("backend", ["auto"])[0],
                device=flags.pop("device", ["auto"])[0],
            )
        except (KeyError, IndexError, ValueError):
            raise Refused("not a command of the form `regbench run --arch A --track T --seed N ...`") from None
        if str(recipe) != command:
            raise Refused(f"not in the form that submitting writes: {str(recipe)[:200]!a}")
        return recipe

    def __str__(self) -> str:
        """The command."""
        words = [*_PROGRAM, "--arch", self.architecture, "--track", self.track, "--seed", *map(str, self.seeds)]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={_yaml(value)}"]
        for flag, value, default in (
            ("--trials", str(self.trials), "1"),
            ("--backend", self.backend, "auto"),
            ("--device", self.device, "auto"),
        ):
            words += [flag, value] if value != default else []
        return shlex.join(words)

    @property
    def architecture_name(self) -> str:
        """What the result calls the architecture."""
        return registry.short_name(self.architecture)

    @property
    def own_settings(self) -> dict[str, Any]:
        """Options of the architecture."""
        return {k: v for k, v in self.settings.items() if not k.startswith("training.")}

    @property
    def training_settings(self) -> dict[str, Any]:
        """Options of training, without their prefix."""
        return {k.removeprefix("training."): v for k, v in self.settings.items() if k.startswith("training.")}


def parse_config(content: bytes, name: str) -> Config:
    """A run folder's `config.yaml`.

    Raises:
        Refused: it is not the configuration of a run.
    """
    value = parse_yaml(content, name)
    if not isinstance(value, dict):
        raise Refused(f"{name}: not the configuration of a run")
    try:
        return Config(**value)
    except pydantic.ValidationError as error:
        raise describe_schema(error, name, Config.model_fields) from None


def _flags(words: list[str]) -> dict[str, list[str]]:
    """["regbench", "run", "--flag", "value", ...] by flag; what `--set` is given several times is joined."""
    if words[:2] != _PROGRAM or not all(word.isprintable() for word in words):
        raise Refused("not a `regbench run` command")
    flags: dict[str, list[str]] = {}
    last: list[str] | None = None
    for word in words[2:]:
        if word.startswith("--"):
            last = flags.setdefault(word[2:], [])
        elif last is None:
            raise Refused("not a `regbench run` command")
        else:
            last.append(word)
    unknown = set(flags) - {"arch", "track", "seed", "set", "trials", "backend", "device"}
    if unknown:
        raise Refused(f"unknown flag --{min(unknown)}")
    return flags


def _setting(pair: str) -> tuple[str, Any]:
    key, _, value = pair.partition("=")
    return key, parse_yaml(value.encode(), f"--set {key}")


def _yaml(value: Any) -> str:
    """A value on one line, as YAML reads it back."""
    check_plain(value, "a setting")
    if isinstance(value, str):
        return value if _reads_as_itself(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")  # YAML takes 1e-05 for a word
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)  # YAML does not join pairs of escapes


def _reads_as_itself(text: str) -> bool:
    try:
        value: Any = parse_yaml(text.encode(), "a setting")
    except Refused:
        return False
    return isinstance(value, str) and value == text
