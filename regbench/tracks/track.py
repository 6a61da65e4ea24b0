"""Tracks: their files are read, and checked against what was recorded when they were frozen."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from regbench.config import read_run
from regbench.data.instances import Instances, cached
from regbench.metrics.metric import metrics_of
from regbench.results import TrackName, TrackRecord
from regbench.tasks.base import Splits, Task, unfinished
from regbench.utils import registry
from regbench.utils.errors import UserError, blaming, closest, explain_validation, nearest
from regbench.utils.files import read_mapping
from regbench.utils.guard import Refused, parse_yaml
from regbench.utils.settings import Strict

if TYPE_CHECKING:
    from regbench.tracks.dataset import InstanceDataset

SPLITS = ("train", "validation", "test")
_FOLDER = Path(__file__).parent
_LONGEST_NAME = 60
FROZEN_FILE = _FOLDER / "statistics.json"
"""The committed record of every built-in track; see `Track.freeze`."""


class Budget(Strict):
    """The tokens that a training may see. Repeats count, padding does not."""

    train_tokens: int = pydantic.Field(ge=1)


class Definition(Strict):
    """The content of a track's YAML file."""

    name: TrackName  # with its version, e.g. "pfa-small-v1"
    task: str  # a registered task, or a path to a file as seen from the track's folder
    parameters: dict[str, Any] = pydantic.Field(default_factory=dict)
    splits: Splits
    budget: Budget
    main_score: str  # the score that ranks

    @property
    def digest(self) -> str:
        """SHA-256 of the content. Another digest under the same name is an edited track."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Track:
    """A loaded track: its definition, its task, and its instances by split.

    Args:
        definition: The content of its file.
        where: The path of its file, for messages. A task that is a file is searched from that file's folder. So is a
            file of text, if the track is not built in.
        changes: What was changed of its parameters, as `regbench.config.variant` writes it.

    Attributes:
        definition: The content of its file.
        name: Its name with the version, e.g. "pfa-small-v1".
        address: What `load_track` finds it by: the name of a built-in track, or the path of the file, with the changes.
        version: The number at the end of the name.
        task_name: The task's name: as registered, or the stem of its file.
        task: The task with the track's parameters.
        task_code: SHA-256 of the task's code as it was loaded, if the task is not built in: the code of such a task may change
            without a new version. Else None.
        metrics: The scores of its task, by name.
        frozen: The track's record in `statistics.json`, if it has one.

    Raises:
        UserError: The task is unknown or incomplete, a parameter or score is wrong, or a frozen track was edited.
    """

    def __init__(self, definition: Definition, where: str, changes: str = "") -> None:
        self.definition, self.name = definition, definition.name
        folder = Path(where).parent
        built_in = folder == _FOLDER
        self.address = "?".join(filter(None, [Path(where).stem if built_in else where, changes]))
        self.version = int(definition.name.rpartition("-v")[2])
        self.task_name = registry.short_name(definition.task)
        cls = registry.load(registry.TASK, definition.task, folder)
        self.task_code = None if registry.is_built_in(registry.TASK, cls) else _code(cls)
        lacking = unfinished(cls)
        if lacking:
            raise UserError(f"{where}: {cls.__name__} of {definition.task} is not a complete task: {lacking}")
        with self.blaming_task():
            with explain_validation(f"{where}: parameters", cls.Parameters.model_fields):
                context = None if built_in else {"folder": folder}
                parameters = cls.Parameters.model_validate(definition.parameters, context=context)
            self.task: Task = cls(parameters)
        self.metrics = metrics_of(self.task)
        if definition.main_score not in self.task.scores:
            hint = nearest(definition.main_score, self.task.scores)
            raise UserError(f"{where}: unknown main_score '{definition.main_score}'{hint}")
        self.frozen: dict[str, Any] | None = frozen_tracks().get(definition.name)
        if self.frozen is not None and self.frozen["digest"] != definition.digest:
            raise UserError(
                f"{where} differs from the {definition.name} that results were made on: give a changed track a new version"
            )

    def __repr__(self) -> str:
        d = self.definition
        sizes = f"{d.splits.train:,} training, {d.splits.validation:,} validation, {d.splits.test:,} test instances"
        budget = f"{d.budget.train_tokens:,} training tokens"
        return f"<Track {d.name}: task {self.task_name}; {sizes}; budget {budget}; ranked by {d.main_score}>"

    def instances(self, split: str) -> Instances:
        """The instances of a split. They come from the cache if it has them.

        Raises:
            UserError: There is no such split, or a frozen track's instances do not have the fingerprint that was recorded.
        """
        if split not in SPLITS:
            raise UserError(f"unknown split '{split}'{nearest(split, SPLITS)}")
        with self.blaming_task():
            source = self.task.source_digest()
        d = self.definition
        config: dict[str, Any] = {
            "task": d.task,
            "task_version": self.task.version,
            "parameters": self.task.parameters.model_dump(mode="json"),
            "splits": asdict(d.splits),
            "split": split,
        }
        if source is not None:  # a key without sources stays as it was
            config["source"] = source
        if self.task_code is not None:
            config["code"] = self.task_code
        instances = cached(config, lambda: self._generate(split))
        if self.frozen is not None and self.frozen["fingerprints"][split] != instances.fingerprint:
            raise UserError(
                f"the {split} split of {self.name} has the fingerprint {instances.fingerprint[:12]}, but "
                f"{self.frozen['fingerprints'][split][:12]} when the track was frozen: results cannot be compared"
            )
        return instances

    @property
    def takes_entries(self) -> bool:
        """Whether a leaderboard may have entries of it: the truth is known, and nothing is changed of its file's parameters."""
        return self.task.knows_truth and "?" not in self.address

    @property
    def sources(self) -> list[str | None]:
        """What its instances follow from: digests of the definition, of a task's own code, and of the text if there is one."""
        text = self.task.source_digest()
        return [self.definition.digest, self.task_code, *([] if text is None else [text])]

    def record(self) -> TrackRecord:
        """What a result says of the track. It makes the instances of every split."""
        return TrackRecord(
            name=self.name,
            version=self.version,
            digest=self.definition.digest,
            main_score=self.definition.main_score,
            fingerprints={split: self.instances(split).fingerprint for split in SPLITS},
        )

    def dataset(self, split: str) -> InstanceDataset:
        """The instances of a split for a training loop of your own: a PyTorch `Dataset` with a `collate` function."""
        from regbench.tracks.dataset import InstanceDataset  # PyTorch loads slowly

        return InstanceDataset(self.instances(split), self.task.io.separator)

    def _generate(self, split: str) -> Instances:
        """Makes a split now. The form of a task that is not built in is checked before the cache gets the instances."""
        splits = self.definition.splits
        if self.task_code is None:
            try:
                return self.task.generate(splits, split)
            except MemoryError:
                size = f"{splits.size(split):,} instances of up to {self.task.io.max_length:,} tokens"
                raise UserError(f"the {split} split of {self.name}, {size}, does not fit in memory") from None
        from regbench.tracks.form import ill_formed

        with self.blaming_task():
            instances = self.task.generate(splits, split)
            fault = ill_formed(self.task, instances, splits.size(split), split)
        if fault:
            raise UserError(f"task '{self.task_name}' cannot be scored: {fault}")
        return instances

    def blaming_task(self) -> AbstractContextManager[None]:
        """A context that turns an exception of the task's own code into a UserError of one line, with its place."""
        return blaming(f"task '{self.task_name}' raises")

    def freeze(self) -> dict[str, Any]:
        """What `statistics.json` records of this track: digest, fingerprints, statistics, and the overlap of splits."""
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
    """SHA-256 of the files of a task and of the tasks that it is derived from. Built-in tasks do not count."""
    own = [b for b in cls.__mro__ if issubclass(b, Task) and not registry.is_built_in(registry.TASK, b)]
    return hashlib.sha256("".join(registry.source_digest(base) for base in own).encode()).hexdigest()


def track_names() -> dict[str, str]:
    """Every built-in track, sorted by name, with the first line of its file, a comment."""
    return first_comments(_FOLDER)


def track_of_run(folder: Path, name: str) -> str | None:
    """The built-in track of a run whose result is on `name`, with the parameters that it changed; None of another track."""
    if name in track_names():
        return name
    try:
        address = read_run(folder).track
    except UserError:  # it was not trained here
        return None
    return address if address.partition("?")[0] in track_names() else None


def first_comments(folder: Path) -> dict[str, str]:
    """By the stem of each YAML file of a folder, sorted, its first line, where that is a comment."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found[path.stem] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found


def track_file(address: str) -> Path | None:
    """The YAML file that a track is named by, which need not exist; None of a built-in one."""
    name = address.partition("?")[0]
    return Path(name) if name.endswith((".yaml", ".yml")) else None


def load_track(name: str | Path) -> Track:
    """Loads a track.

    Args:
        name: The name of a built-in track, or the path of a track's YAML file. Other parameters of its task may follow, as in
            "recall-reach-v1?n_keys=64&n_values=16": a track of its own, which is not frozen, and has no leaderboard.

    Raises:
        UserError: There is no such track, its YAML is broken (with file and line), or a field is unknown, missing or of the
            wrong type.
    """
    if not isinstance(name, str | Path):
        raise UserError(f"a track is a name or the path of a YAML file, not {type(name).__name__}")
    own = track_file(str(name))
    name, _, changes = str(name).partition("?")
    path = own or _FOLDER / f"{name}.yaml"
    if not own and (path.parent != _FOLDER or not path.exists()):
        hint = "; `regbench ls tracks` lists the built-in ones; give one of your own by its YAML file"
        if (near := closest(name, track_names())) is not None:
            hint = f"; did you mean '{near}'?"
        raise UserError(f"unknown track '{name}'{hint}")
    content = read_mapping(path, "a track")
    with explain_validation(str(path), [*Definition.model_fields, *Splits.__annotations__, *Budget.model_fields]):
        definition = Definition(**content)
    varied = _varied(definition, changes) if changes else definition
    return Track(varied, str(path), changes if varied != definition else "")


def _varied(definition: Definition, changes: str) -> Definition:
    """A definition with other parameters of its task, and a name that says which; with equal ones as it was."""
    changed: dict[str, Any] = {}
    for change in filter(None, changes.split("&")):
        key, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"after '?' a track has parameters as NAME=VALUE, with '&' between them, not '{change}'")
        try:
            changed[key] = parse_yaml(value, key)
        except Refused:
            raise UserError(f"{definition.name}: the value of '{key}' is broken: {value}") from None
    parameters = {**definition.parameters, **changed}
    if parameters == definition.parameters:
        return definition
    stem, _, version = definition.name.rpartition("-v")
    words = re.sub("[^a-z0-9]+", "-", "-".join(f"{key}-{value}" for key, value in changed.items()).lower()).strip("-")
    if len(words) > _LONGEST_NAME - len(definition.name):
        words = hashlib.sha256(changes.encode()).hexdigest()[:8]
    return definition.model_copy(update={"parameters": parameters, "name": f"{stem}-{words}-v{version}"})


@lru_cache(maxsize=1)
def frozen_tracks() -> dict[str, Any]:
    """The committed record of every built-in track, by name; see `Track.freeze`."""
    if not FROZEN_FILE.exists():
        return {}
    content: dict[str, Any] = json.loads(FROZEN_FILE.read_text(encoding="utf-8"))
    return content
