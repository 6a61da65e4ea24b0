"""Reading tracks, and checking that they still mean what they meant when they were frozen."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pydantic

from regbench.data.instances import Instances, cached
from regbench.metrics.metric import metrics_of
from regbench.tasks.base import Splits, Task
from regbench.tracks.form import ill_formed, unfinished
from regbench.utils import registry
from regbench.utils.errors import UserError, describe_validation, nearest
from regbench.utils.files import read_mapping

SPLITS = ("train", "validation", "test")
_FOLDER = Path(__file__).parent
FROZEN_FILE = _FOLDER / "statistics.json"


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class SplitSizes(_Strict):
    """Instances in each split, and the seed they all come from."""

    train: int = pydantic.Field(ge=1)
    validation: int = pydantic.Field(ge=1)
    test: int = pydantic.Field(ge=1)
    seed: int = pydantic.Field(ge=0, lt=2**63)


class Budget(_Strict):
    """What an entry may spend: real tokens seen in training, repeats counted, padding not."""

    train_tokens: int = pydantic.Field(ge=1)


class Definition(_Strict):
    """The content of a track's YAML file."""

    name: str = pydantic.Field(pattern=r"^[a-z0-9-]+-v[0-9]+$")
    task: str
    parameters: dict[str, Any] = {}
    splits: SplitSizes
    budget: Budget
    main_score: str

    @property
    def digest(self) -> str:
        """SHA-256 of everything above: another digest under the same name is an edited track."""
        text = json.dumps(self.model_dump(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Track:
    """A loaded track: its definition, its task, and its instances by split.

    where: its file; a task that is a file too is looked for from there.
    metrics: the scores of its task, by name.
    task_code: SHA-256 of the code of a task that is not built in, as it was loaded: it may change without a new version.
    """

    def __init__(self, definition: Definition, where: str) -> None:
        self.definition = definition
        cls = registry.load(registry.TASK, definition.task, Path(where).parent)
        self.task_code = None if registry.is_built_in(registry.TASK, cls) else _code(cls)
        lacking = unfinished(cls)
        if lacking:
            raise UserError(f"{where}: {cls.__name__} of {definition.task} is no whole task: {lacking}")
        with self.blaming_task():
            try:
                parameters = cls.Parameters(**definition.parameters)
            except pydantic.ValidationError as error:
                fields = cls.Parameters.model_fields
                raise UserError(describe_validation(error, f"{where}: parameters", fields)) from None
            self.task: Task = cls(parameters)
        self.metrics = metrics_of(self.task)
        if definition.main_score not in self.task.scores:
            hint = nearest(definition.main_score, self.task.scores)
            raise UserError(f"{where}: unknown main_score '{definition.main_score}'{hint}")
        self.frozen: dict[str, Any] | None = frozen_tracks().get(definition.name)
        if self.frozen is not None and self.frozen["digest"] != definition.digest:
            raise UserError(
                f"{where} is not the {definition.name} that results were made on: give a changed track a new version"
            )

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def version(self) -> int:
        return int(self.name.rpartition("-v")[2])

    @property
    def task_name(self) -> str:
        """How the task is called: a registered name, or a file's stem."""
        return registry.short_name(self.definition.task)

    def instances(self, split: str) -> Instances:
        """The instances of "train", "validation" or "test", from the cache where it has them.

        Raises:
            UserError: no such split, or a frozen track's instances do not have the fingerprint they had.
        """
        if split not in SPLITS:
            raise UserError(f"unknown split '{split}'{nearest(split, SPLITS)}")
        d = self.definition
        config: dict[str, Any] = {
            "task": d.task,
            "task_version": self.task.version,
            "parameters": self.task.parameters.model_dump(),
            "splits": d.splits.model_dump(),
            "split": split,
        }
        with self.blaming_task():
            source = self.task.source_digest()
        if source is not None:  # else the key is what it was before there were sources
            config["source"] = source
        if self.task_code is not None:
            config["code"] = self.task_code
        instances = cached(config, lambda: self._generate(split))
        if self.frozen is not None and self.frozen["fingerprints"][split] != instances.fingerprint:
            raise UserError(
                f"the {split} split of {self.name} came out as {instances.fingerprint[:12]}, not "
                f"{self.frozen['fingerprints'][split][:12]} as when the track was frozen: results would not compare"
            )
        return instances

    def _generate(self, split: str) -> Instances:
        """Made now. What is no Instances does not get into the cache."""
        splits = self.splits
        if self.task_code is None:
            return self.task.generate(splits, split)
        with self.blaming_task():
            instances = self.task.generate(splits, split)
            fault = ill_formed(self.task, instances, splits.size(split), split)
        if fault:
            raise UserError(f"task '{self.task_name}' cannot be scored: {fault}")
        return instances

    @property
    def splits(self) -> Splits:
        """How many instances each split has, and their seed."""
        return Splits(**self.definition.splits.model_dump())

    def blaming_task(self) -> AbstractContextManager[None]:
        """Turns what the task's own code raises into one line that says where."""
        return registry.blaming(f"task '{self.task_name}' raises")

    def freeze(self) -> dict[str, Any]:
        """What `statistics.json` records of this track: digest, fingerprints, statistics and the overlap of its splits."""
        splits = {split: self.instances(split) for split in SPLITS}
        seen = {split: set(self.task.identities(i)) for split, i in splits.items()}
        pairs = (("train", "test"), ("train", "validation"), ("validation", "test"))
        return {
            "digest": self.definition.digest,
            "fingerprints": {split: i.fingerprint for split, i in splits.items()},
            "overlap": {f"{a}/{b}": len(seen[a] & seen[b]) for a, b in pairs},
            "statistics": {
                split: {k: round(float(v), 4) for k, v in self.task.statistics(i).items()}
                for split, i in splits.items()
            },
        }


def _code(cls: type[Any]) -> str:
    """Of the files of a task and of those it is built on, up to what is built in."""
    own = [b for b in cls.__mro__ if issubclass(b, Task) and not registry.is_built_in(registry.TASK, b)]
    return hashlib.sha256("".join(registry.source_digest(base) for base in own).encode()).hexdigest()


def track_names() -> dict[str, str]:
    """Every built-in track and the comment that begins its file, sorted by name."""
    found = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found[path.stem] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found


def load_track(name: str) -> Track:
    """A built-in track by name, or one's own by the path of its YAML file.

    Raises:
        UserError: no such track, broken YAML (with file and line), or a field that is unknown, missing or of the wrong type.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _FOLDER / f"{name}.yaml"
    if path.parent == _FOLDER and path.stem not in track_names():
        hint = nearest(name, track_names(), " (one of your own is given by its YAML file)")
        raise UserError(f"unknown track '{name}'{hint}")
    content = read_mapping(path, "a track")
    try:
        definition = Definition(**content)
    except pydantic.ValidationError as error:
        fields = [*Definition.model_fields, *SplitSizes.model_fields, *Budget.model_fields]
        raise UserError(describe_validation(error, str(path), fields)) from None
    if path.parent == _FOLDER and definition.name != path.stem:
        raise UserError(f"{path}: the name must be '{path.stem}', as the file is called")
    return Track(definition, str(path))


@lru_cache(maxsize=1)
def frozen_tracks() -> dict[str, Any]:
    """The committed record of every built-in track, by name; see `Track.freeze`."""
    if not FROZEN_FILE.exists():
        return {}
    content: dict[str, Any] = json.loads(FROZEN_FILE.read_text(encoding="utf-8"))
    return content
