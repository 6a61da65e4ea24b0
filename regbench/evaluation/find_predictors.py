"""The predictors that are compared, found by what the user calls them: baselines, runs, entries of a board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines, defaults_of
from regbench.metrics.significance import Prior, Sample, default_prior
from regbench.models.predictor import Baseline
from regbench.results import Result, ScoreRecord, read_result
from regbench.tracks import Track, load_track, track_names, track_of_run
from regbench.utils import registry
from regbench.utils.errors import UserError, nearest
from regbench.utils.files import runs_in

DEFAULT_TRACK = "pfa-small-v1"


@dataclass(frozen=True)
class ComparedPredictor:
    label: str | None
    """The name that the user gave to it, if any."""
    name: str
    long_name: str
    """Its name where another predictor has the same usual one."""
    source: Baseline | Run | KnownScores


@dataclass(frozen=True)
class Run:
    """A finished run: its result, and its folder, which holds the predictions of each seed."""

    result: Result
    folder: Path


@dataclass(frozen=True)
class KnownScores:
    """The scores of a predictor on a test split."""

    name: str
    scores: Mapping[str, ScoreRecord]
    """By metric the mean over seeds. Its error is over seeds, or with one seed over instances."""
    main: Sample
    """By the main score the scores of each seed, and the sums over each instance's positions."""
    result: Result | None = None
    """What it was trained with. None of a baseline."""


class Board(Protocol):
    """Where scores of predictors are found by name, without their predictions."""

    def scores(self, name: str, track: Track) -> KnownScores | None:
        """The scores of one predictor on a track. None where there is none of that name."""

    def names(self, track: Track) -> list[str]:
        """The names that there are."""

    def prior(self, track: Track) -> Prior:
        """What is expected of the seeds of the track's main score."""

    def track_of(self, file: str) -> str | None:
        """The name of the track that an entry's file is of. None where it is no such file."""


@dataclass(frozen=True)
class Found:
    """The predictors of a comparison."""

    track: Track
    test: Instances
    compared: Sequence[ComparedPredictor]
    """The predictors, as they were given."""
    names: Sequence[str]
    prior: Prior
    """What is expected of the seeds of the main score."""


def find_predictors(predictors: Sequence[str], track: str | None, board: Board | None = None) -> Found:
    """Finds predictors.

    Args:
        predictors: Each is a baseline by its name in tables ("3-gram"), a registered baseline ("ngram" stands for all n-gram
            models there), a file with a baseline, or a run folder. "LABEL=..." before any of them names it. A baseline that
            is meant twice, without a name of its own, stands once.
        track: A track's name or file. None: that of the run folders or of the entries' files, else pfa-small-v1.
        board: Is asked for what is neither a baseline nor a run folder.
    """
    loaded = load_track(track or track_of(predictors, board))
    test = loaded.instances("test")
    baselines = default_baselines(loaded, test)
    compared: list[ComparedPredictor] = []
    for one in (one for spec in predictors for one in _find(spec, loaded, test, baselines, board)):
        twice = any(one.source is other.source and one.label == other.label for other in compared)
        if not (twice and isinstance(one.source, Baseline)):
            compared.append(one)
    if len(compared) < 2:
        raise UserError(f"a comparison needs at least two predictors, not {len(compared)}")
    main = loaded.metrics[loaded.definition.main_score]
    prior = default_prior(main) if board is None else board.prior(loaded)
    return Found(loaded, test, compared, _names(compared), prior)


def _names(compared: Sequence[ComparedPredictor]) -> list[str]:
    usual = [one.label or one.name for one in compared]
    names = [one.label or (one.name if usual.count(one.name) == 1 else one.long_name) for one in compared]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two predictors are called '{twice}': give one of them a name of its own, as in NAME=FOLDER")
    return names


def track_of(predictors: Sequence[str], board: Board | None = None) -> str:
    """The name of the track that the first run folder or entry's file is on; without one `DEFAULT_TRACK`."""
    given = [_split(spec)[1] for spec in predictors]
    tracks = (
        _track_of(Path(one)) if Path(one).is_dir() else board.track_of(one) if board is not None else None
        for one in given
    )
    name = next(filter(None, tracks), DEFAULT_TRACK)
    if name.partition("?")[0] not in track_names():
        raise UserError(f"'{name}' is no built-in track; if it is yours, give its file: --track FILE.yaml")
    return name


def _track_of(folder: Path) -> str:
    name = read_result(folder).track.name
    return track_of_run(folder, name) or name


def _split(spec: str) -> tuple[str | None, str]:
    """The label, if there is one, and the predictor itself."""
    label, equals, rest = spec.partition("=")
    return (None, spec) if Path(spec).exists() or not equals or not label or not rest else (label, rest)


def _find(
    spec: str, track: Track, test: Instances, baselines: Sequence[Baseline], board: Board | None
) -> list[ComparedPredictor]:
    label, name = _split(spec)
    if label is not None and board is not None and spec in board.names(track):  # the name of an entry may have a "="
        label, name = None, spec
    if Path(name).is_dir():
        return [_run(Path(name), label, track, test)]
    chosen = defaults_of(name, track, test) if registry.is_file(name) else [b for b in baselines if b.name == name]
    registered = registry.entries(registry.BASELINE)
    if not chosen and name in registered:
        cls = registry.load(registry.BASELINE, name)
        chosen = [b for b in baselines if type(b) is cls]
    if not chosen and (name in registered or registry.is_file(name)):
        raise UserError(f"the baseline '{name}' has no place on {track.name}")
    scores = board.scores(name, track) if board is not None and not chosen else None
    if scores is not None:
        return [ComparedPredictor(label, scores.name, f"{scores.name}, entry", scores)]
    if not chosen:
        if "/" in name or name.endswith((".json", ".npz")):
            raise UserError(f"there is no run folder {name}{runs_in(Path(name))}")
        entries = [] if board is None else board.names(track)
        raise UserError(
            f"unknown predictor '{name}'{nearest(name, [*(b.name for b in baselines), *registered, *entries])}"
        )
    if label is not None and len(chosen) > 1:
        raise UserError(f"'{name}' stands for several predictors, which cannot all be called '{label}'")
    return [ComparedPredictor(label, baseline.name, baseline.name, baseline) for baseline in chosen]


def _run(folder: Path, label: str | None, track: Track, test: Instances) -> ComparedPredictor:
    """The run in a folder, if it is on the track as it is now."""
    result = read_result(folder)
    if result.split != "test":
        raise UserError(f"{folder} is of the {result.split} split; a comparison is on the test split")
    if result.evaluation is not None and result.evaluation.limit is not None:
        raise UserError(f"{folder} has {result.evaluation.limit} instances; a comparison is on all of the test split")
    if result.track.digest != track.definition.digest or result.track.fingerprints["test"] != test.fingerprint:
        now = f"what {track.name} is now" if result.track.name == track.name else track.name
        raise UserError(f"{folder} is a run on {result.track.name}, and the comparison is on {now}")
    return ComparedPredictor(label, result.architecture.name, folder.resolve().name, Run(result, folder))
