"""What someone claims, and what it is held against: the track, the files of the run, and what the checks find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.config import Config
from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines, score_baselines
from regbench.evaluation.predictions import Predictions, expected_arrays, read_stored, scored_at_once
from regbench.leaderboard.entry import InstanceScores
from regbench.metrics.scores import Scores, score, score_records
from regbench.models.predictor import Baseline, predict_in_batches
from regbench.results import RESULT_BYTES, BaselineRecord, Curve, Result, TrackRecord
from regbench.tracks import Track, load_track, track_file, track_names
from regbench.training.options import TrainingOptions
from regbench.training.trainer import training_steps
from regbench.utils import registry
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.folder import Folder
from regbench.utils.guard import YAML_BYTES, Refused, of_schema, parse_json, parse_plain_yaml

# --- The track. ---


@dataclass(frozen=True, eq=False)
class Reference:
    """A track and what follows from it. Everything is computed once, at its first use."""

    track: Track

    @cached_property
    def record(self) -> TrackRecord:
        return self.track.record()

    @cached_property
    def test(self) -> Instances:
        return self.track.instances("test")

    @cached_property
    def frame(self) -> Scores:
        """The scores of a uniform predictor. Which positions count for which metric is the same for every predictor."""
        width, longest = self.packed.shape[1], self.test.tokens.shape[1]
        at_once = scored_at_once(longest, width)
        sizes = [min(at_once, len(self.test) - first) for first in range(0, len(self.test), at_once)]
        batches = (np.broadcast_to(1.0 / width, (size, longest, width)) for size in sizes)  # they take no memory
        return score(self.track.task, self.test, batches)

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """By metric a curve with the positions and counts that every curve of this track has."""
        return score_records(self.frame)[1]

    @property
    def packed(self) -> NDArray[Any]:
        """An array, without memory of its own, of the type and shape of stored predictions."""
        return expected_arrays(self.track.task, self.test)["packed"]

    @cached_property
    def truth(self) -> Scores | None:
        """The scores of the oracle, or None where the task has no known truth."""
        found = [baseline for baseline in default_baselines(self.track, self.test) if baseline.anchor == "end"]
        return self._score(found[0]) if found else None

    def controls(self, instances: Instances) -> list[Baseline]:
        """Baselines that tell how hard each instance is: n-grams, and those that fix the normalized score.

        The others take minutes, and add little.
        """
        ngram = registry.load(registry.BASELINE, "ngram")
        return [
            one for one in default_baselines(self.track, instances) if one.anchor is not None or isinstance(one, ngram)
        ]

    @cached_property
    def control_scores(self) -> list[Scores]:
        """What these score on the test split."""
        return [self._score(one) for one in self.controls(self.test)]

    def _score(self, baseline: Baseline) -> Scores:
        return score(self.track.task, self.test, self.batches(baseline, self.test))

    def batches(self, baseline: Baseline, instances: Instances) -> Iterable[FloatArray]:
        """What a baseline predicts, so many instances at once as fit into memory."""
        return predict_in_batches(baseline, instances, scored_at_once(instances.tokens.shape[1], self.packed.shape[1]))

    @cached_property
    def training_lengths(self) -> NDArray[np.integer[Any]]:
        """(N,): the tokens of each training instance."""
        return self.track.instances("train").lengths

    def plan(self, options: TrainingOptions, seed: int) -> NDArray[np.int64]:
        """(S,): tokens seen after each step of a training with this seed."""
        shortened = options.model_dump(include={"train_tokens", "train_instances", "epochs", "batch_size"})
        return _plan(self, tuple(sorted(shortened.items())), seed)

    def baselines(self, announce: Callable[[str], None]) -> dict[str, BaselineRecord]:
        """Every baseline's record, from the cache or computed now. `announce` is told of each that is computed."""
        if "_found" not in vars(self):
            found = score_baselines(self.track, self.test, announce)
            vars(self)["_found"] = found
        kept: dict[str, BaselineRecord] = vars(self)["_found"]
        return kept


def find_reference(name: str, given: Track | None = None) -> Reference:
    """The track that a claim is about. A name is never taken for a path; `given` is a track of your own."""
    if given is None or given.name != name:
        if name not in track_names():
            raise Refused(f"{name[:80]!a} is no built-in track; if it is yours, give its file: --track FILE.yaml")
        given = _built_in(name)
    if not given.task.knows_truth:
        raise Refused(
            f"{name} takes no entries: its text depends on the machine it was made on and its truth is unknown, "
            "so nobody else could check a claim"
        )
    return _reference(given)


def todays_track(name: str, own: Track | None) -> Track | None:
    """The track of this name, or `own` if it has the name. None where there is none here."""
    if own is not None and own.name == name:
        return own
    return _built_in(name) if name in track_names() else None


_built_in = lru_cache(maxsize=16)(load_track)
_reference = lru_cache(maxsize=16)(Reference)


@lru_cache(maxsize=64)
def _plan(reference: Reference, options: tuple[tuple[str, Any], ...], seed: int) -> NDArray[np.int64]:
    budget = reference.track.definition.budget.train_tokens
    steps = training_steps(reference.training_lengths, TrainingOptions(**dict(options)), budget, seed)
    return np.cumsum([tokens for tokens, _ in steps])


# --- The run. ---


@dataclass(frozen=True)
class Scored:
    """Stored predictions of one seed: the SHA-256 of the numbers, and their scores."""

    digest: str
    scores: Scores


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The files of one run, read as someone else's: within bounds. What is not as it must be raises `Refused`."""

    path: Path

    @property
    def folder(self) -> Folder:
        return Folder(self.path)

    def require(self) -> None:
        """Reads what no check can do without."""
        try:
            _ = self.result, self.config
        except Refused as error:
            raise UserError(f"{self.path}: {error}") from None

    @cached_property
    def result(self) -> Result:
        content = parse_json(self.folder.read("result.json", RESULT_BYTES), "result.json")
        result = of_schema(Result, content, "result.json")
        if result.evaluation is not None:
            raise Refused(
                "result.json is of `regbench.evaluate`: an entry is trained by `regbench run`, under the track's budget"
            )
        return result

    @cached_property
    def config(self) -> Config:
        content = parse_plain_yaml(self.folder.read("config.yaml", YAML_BYTES), "config.yaml")
        return of_schema(Config, content, "config.yaml")

    @property
    def configuration(self) -> Config:
        """The configuration without the folders of whoever ran it. A track from a file or with changes is named by the result."""
        track, architecture = self.config.track, self.config.architecture
        if track_file(track) or "?" in track:
            track = self.result.track.name
        if registry.is_file(architecture):
            architecture = PurePath(architecture).name
        return self.config.model_copy(update={"track": track, "architecture": architecture})

    def weights(self, seed: int) -> dict[str, int]:
        """The number of elements of each tensor of a seed's checkpoint, from its header alone."""
        return self.folder.tensor_sizes(f"seed-{seed}/checkpoint.safetensors")

    def predictions(self, seed: int, reference: Reference) -> Predictions:
        stored = read_stored(self.folder, f"seed-{seed}/predictions.npz", reference.track.task, reference.test)
        assert isinstance(stored, Predictions)  # a board's task knows its truth
        return stored

    def scored(self, seed: int, reference: Reference) -> Scored:
        found = self.predictions(seed, reference)
        try:
            scores = score(reference.track.task, reference.test, found.batches(at=reference.test.scored))
        except UserError as error:
            raise Refused(f"seed-{seed}/predictions.npz: {error}") from None
        return Scored(found.digest, scores)


# --- The claim, and what is found. ---


class Note(str):
    """A finding that is no fault: something that could not be checked, or that the reader should know."""


@dataclass(frozen=True)
class Case:
    """What someone claims, and what there is to compare it with."""

    result: Result
    configuration: Config
    reference: Reference
    instances: InstanceScores | None = None
    """The claimed scores of the test instances. None where they could not be computed."""
    source: bytes | None = None  # the architecture's file kept beside the entry. None of a built-in architecture
    run: RunFolder | None = None
    scored: Sequence[Scored] | None = None  # the predictions of every seed, in the result's order, where there are any
    announce: Callable[[str], None] = lambda _: None
    baselines: Mapping[str, BaselineRecord] | None = None  # the track's baselines. None where they are to be computed


Check = Callable[[Case], Iterator[str]]
"""Yields a line for each fault, or a `Note`. RULES.md calls a check by the name of its function."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and the name of the check that found it."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


@dataclass
class Findings:
    """All that was found, in order."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, checks: Iterable[Check], case: Case) -> bool:
        """Runs the checks and keeps what they find. Returns whether they found no fault."""
        before = len(self.faults)
        for check in checks:
            self.take(check.__name__, check(case))
        return len(self.faults) == before

    def take(self, check: str, found: Iterable[str]) -> None:
        for text in found:
            if isinstance(text, Note):
                self.notes.append(str(text))
            else:
                self.faults.append(Fault(check, text))
