"""A case: what someone claims, what a run left to show for it, and what the checks find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, TypeVar

import pydantic

from regbench.config import Config
from regbench.evaluation.predictions import Predictions, read_stored
from regbench.leaderboard.entry import InstanceScores
from regbench.leaderboard.reference import Reference
from regbench.metrics.scores import Scores, score
from regbench.results import RESULT_BYTES, BaselineRecord, Result, SeedRecord
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.guard import (
    YAML_BYTES,
    Folder,
    Refused,
    describe_schema,
    parse_json,
    parse_yaml,
    tensor_sizes,
)

_Model = TypeVar("_Model", bound=pydantic.BaseModel)

LOG_BYTES = 4 << 20
LOG_ROWS = 20_000
_HEADER_BYTES = 1 << 20


@dataclass(frozen=True)
class Scored:
    """Stored predictions of one seed.

    Attributes:
        digest: SHA-256 of the numbers.
        scores: The scores of the predictions.
    """

    digest: str
    scores: Scores


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The files of one run, read as someone else's. Each property reads its file at its first use.

    Attributes:
        path: The run folder.
    """

    path: Path

    @property
    def folder(self) -> Folder:
        """The folder, read within bounds."""
        return Folder(self.path)

    def require(self) -> None:
        """Reads what no check can do without.

        Raises:
            UserError: The result or the configuration is not there or cannot be read. The line has the folder, too.
        """
        try:
            _ = self.result, self.config
        except Refused as error:
            raise UserError(f"{self.path}: {error}") from None

    @cached_property
    def result(self) -> Result:
        """What `result.json` holds.

        Raises:
            Refused: It is not a result.
        """
        result = _validated(
            Result, parse_json(self.folder.read("result.json", RESULT_BYTES), "result.json"), "result.json"
        )
        if result.evaluation is not None:
            raise Refused(
                "result.json is of `regbench.evaluate`: an entry is trained by `regbench run`, under the track's budget"
            )
        return result

    @cached_property
    def config(self) -> Config:
        """What `config.yaml` holds.

        Raises:
            Refused: It is not the configuration of a run.
        """
        value = parse_yaml(self.folder.read("config.yaml", YAML_BYTES), "config.yaml")
        return _validated(Config, value, "config.yaml")

    @property
    def configuration(self) -> Config:
        """The configuration without the folders of whoever ran it. A track from a file is named as in the result."""
        track, architecture = self.config.track, self.config.architecture
        if track.endswith((".yaml", ".yml")):
            track = self.result.track.name
        if registry.is_file(architecture):
            architecture = PurePath(architecture).name
        return self.config.model_copy(update={"track": track, "architecture": architecture})

    def seed_record(self, seed: int) -> SeedRecord:
        """What `scores.json` of a seed holds.

        Raises:
            Refused: It is not the record of a seed.
        """
        name = f"seed-{seed}/scores.json"
        return _validated(SeedRecord, parse_json(self.folder.read(name, RESULT_BYTES), name), name)

    def evaluations(self, seed: int) -> list[dict[str, Any]]:
        """The rows of a seed's `metrics.jsonl` at which the validation split was scored.

        Raises:
            Refused: The file cannot be read, or has too many rows.
        """
        name = f"seed-{seed}/metrics.jsonl"
        lines = self.folder.read(name, LOG_BYTES).splitlines()
        if len(lines) > LOG_ROWS:
            raise Refused(f"{name}: {len(lines):,} rows, more than the {LOG_ROWS:,} it can need")
        rows = [parse_json(line, name) for line in lines]
        if not all(isinstance(row, dict) for row in rows):
            raise Refused(f"{name}: a row is no object")
        return [row for row in rows if "validation_loss" in row]

    def weights(self, seed: int) -> dict[str, int]:
        """The number of elements of each tensor of a seed's checkpoint, from its header alone.

        Raises:
            Refused: It is no checkpoint.
        """
        name = f"seed-{seed}/checkpoint.safetensors"
        head, size = self.folder.head(name, _HEADER_BYTES)
        return tensor_sizes(head, size, name)[0]

    def scored(self, seed: int, reference: Reference) -> Scored:
        """A seed's predictions, scored; see `read_scored`."""
        return read_scored(self.folder, f"seed-{seed}/predictions.npz", reference)


def read_scored(folder: Folder, name: str, reference: Reference) -> Scored:
    """Stored predictions and their scores.

    Raises:
        Refused: The file does not hold predictions for the reference's test split.
    """
    predictions = read_predictions(folder, name, reference)
    try:
        scores = score(reference.track.task, reference.test, predictions.batches(at=reference.test.scored))
    except UserError as error:
        raise Refused(f"{name}: {error}") from None
    return Scored(predictions.digest, scores)


def read_predictions(folder: Folder, name: str, reference: Reference) -> Predictions:
    """The stored numbers themselves.

    Raises:
        Refused: The file does not hold predictions for the reference's test split.
    """
    stored = read_stored(folder, name, reference.track.task, reference.test)
    assert isinstance(stored, Predictions)  # a board's task knows its truth
    return stored


class Note(str):
    """A finding that is no fault: something that could not be checked, or that the reader should know."""


@dataclass(frozen=True)
class Case:
    """What someone claims, and what there is to compare it with.

    Attributes:
        result: The claim.
        configuration: What the claim says the run was asked.
        reference: The track.
        instances: The claimed scores of the test instances. None where they could not be computed.
        source: The bytes of the architecture's file kept beside the entry. None of a built-in architecture.
        run: The run folder, where there is one.
        scored: The predictions of every seed, in the result's order, where there are any.
        announce: Called with a line before something that takes long.
        baselines: The track's baselines. None where they are to be computed.
    """

    result: Result
    configuration: Config
    reference: Reference
    instances: InstanceScores | None = None
    source: bytes | None = None
    run: RunFolder | None = None
    scored: Sequence[Scored] | None = None
    announce: Callable[[str], None] = lambda _: None
    baselines: Mapping[str, BaselineRecord] | None = None


Check = Callable[[Case], Iterator[str]]
"""Yields a line for each fault, or a `Note`. RULES.md calls a check by the name of its function."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        check: The name of the check that found it.
        text: What is wrong, in one line.
    """

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


@dataclass
class Findings:
    """All that was found, in order.

    Attributes:
        faults: What is wrong.
        notes: What is worth knowing.
    """

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, checks: Iterable[Check], case: Case) -> bool:
        """Runs the checks and keeps what they find. Returns whether they found no fault."""
        before = len(self.faults)
        for check in checks:
            self.take(check.__name__, check(case))
        return len(self.faults) == before

    def take(self, check: str, found: Iterable[str]) -> None:
        """Keeps the findings of one check."""
        for text in found:
            if isinstance(text, Note):
                self.notes.append(str(text))
            else:
                self.faults.append(Fault(check, text))


def _validated(model: type[_Model], value: Any, name: str) -> _Model:
    """`value` as a model; of another schema, or no object, it is refused."""
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        raise describe_schema(error, name, model.model_fields) from None
