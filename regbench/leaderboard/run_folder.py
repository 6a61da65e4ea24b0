"""The folder of a run, read as someone else's: its result, its configuration, its logs, its weights, its predictions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from regbench.config import Config
from regbench.evaluation.predictions import Predictions, read_stored
from regbench.leaderboard.reference import Reference
from regbench.metrics.scores import Scores, score
from regbench.results import RESULT_BYTES, Result, SeedRecord
from regbench.tracks import is_track_file
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.folder import Folder
from regbench.utils.guard import YAML_BYTES, Refused, of_schema, parse_json, parse_plain_yaml

LOG_BYTES = 4 << 20
LOG_ROWS = 20_000


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
        content = parse_json(self.folder.read("result.json", RESULT_BYTES), "result.json")
        result = of_schema(Result, content, "result.json")
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
        content = parse_plain_yaml(self.folder.read("config.yaml", YAML_BYTES), "config.yaml")
        return of_schema(Config, content, "config.yaml")

    @property
    def configuration(self) -> Config:
        """The configuration without the folders of whoever ran it. A track from a file is named as in the result."""
        track, architecture = self.config.track, self.config.architecture
        if is_track_file(track):
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
        return of_schema(SeedRecord, parse_json(self.folder.read(name, RESULT_BYTES), name), name)

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
        return self.folder.tensor_sizes(f"seed-{seed}/checkpoint.safetensors")

    def predictions(self, seed: int, reference: Reference) -> Predictions:
        """A seed's predictions.

        Raises:
            Refused: The file does not hold predictions for the reference's test split.
        """
        return _predictions(self.folder, _file_of(seed), reference)

    def scored(self, seed: int, reference: Reference) -> Scored:
        """A seed's predictions, scored; see `read_scored`."""
        return read_scored(self.folder, _file_of(seed), reference)


def read_scored(folder: Folder, name: str, reference: Reference) -> Scored:
    """Stored predictions and their scores.

    Raises:
        Refused: The file does not hold predictions for the reference's test split.
    """
    predictions = _predictions(folder, name, reference)
    try:
        scores = score(reference.track.task, reference.test, predictions.batches(at=reference.test.scored))
    except UserError as error:
        raise Refused(f"{name}: {error}") from None
    return Scored(predictions.digest, scores)


def _file_of(seed: int) -> str:
    return f"seed-{seed}/predictions.npz"


def _predictions(folder: Folder, name: str, reference: Reference) -> Predictions:
    stored = read_stored(folder, name, reference.track.task, reference.test)
    assert isinstance(stored, Predictions)  # a board's task knows its truth
    return stored
