"""How differently any two predictors predict: their total variation distance, early in the context (ICLL Figure 6).

No truth is needed for it: it shows whose guesses a model's are like, where the scores show whose are as good.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.evaluation.baseline_predictions import (
    BaselinePredictions,
    cached_baseline_predictions,
    whole_baseline_predictions,
)
from regbench.evaluation.baselines import forms_of, lineup
from regbench.evaluation.predictions import Predictions
from regbench.metrics.scores import Score
from regbench.models.predictor import Baseline
from regbench.results import read_result
from regbench.tracks import Track, load_track
from regbench.utils import registry
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, nearest
from regbench.utils.files import atomic_write

DEFAULT_TRACK = "pfa-small-v1"
Announce = Callable[[str, int, int], None]
"""Is told which baseline is at work, how many instances it has done, and of how many."""


@dataclass(frozen=True)
class Voice:
    """One predictor: what each of its seeds (a baseline has one) says at the scored positions, (P, V) each.

    name: None asks for the `usual` one, or where another has that too, for the `long` one.
    """

    name: str | None
    usual: str
    long: str
    seeds: Sequence[FloatArray]


@dataclass(frozen=True)
class Comparison:
    """Distances (M, M) between M predictors, and their standard errors over instances.

    A run of several seeds is compared by the mean over pairs of seeds; its distance to itself is that between its own seeds.
    """

    track: str
    tokens: int
    instances: int
    positions: int
    names: Sequence[str]
    seeds: Sequence[int]
    distance: NDArray[np.float64]
    stderr: NDArray[np.float64]

    def ordered(self, order: Sequence[int]) -> Comparison:
        """The same with its predictors in another order."""
        rows = np.ix_(order, order)
        return replace(
            self,
            names=[self.names[i] for i in order],
            seeds=[self.seeds[i] for i in order],
            distance=self.distance[rows],
            stderr=self.stderr[rows],
        )

    def write_csv(self, path: Path) -> None:
        """A line for each pair of predictors, in both directions."""
        with atomic_write(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["predictor", "other", "tvd", "stderr"])
            for i, one in enumerate(self.names):
                for j, other in enumerate(self.names):
                    writer.writerow([one, other, f"{self.distance[i, j]:.6f}", f"{self.stderr[i, j]:.6f}"])


def compare(
    predictors: Sequence[str],
    track: str | None = None,
    *,
    tokens: int = 100,
    order: Literal["similar", "given"] = "similar",
    announce: Announce = lambda name, done, total: None,
) -> Comparison:
    """TVD between every two of the predictors, over the scored positions among the first `tokens` of each test instance.

    Args:
        predictors: each a baseline by its name in the tables ("3-gram") or its registered one ("ngram": all its forms there),
            or a run folder, whose saved predictions are read and which is called by its architecture, or where there are
            two of one by the folder's name; "LABEL=..." gives any of them a name of its own.
        track: by default that of the run folders, else pfa-small-v1.
        order: "similar" puts those next to each other that predict alike; the first stays first.

    Raises:
        UserError: an unknown predictor, runs of another track, or nothing to compare.
    """
    if tokens < 1:
        raise UserError(f"tokens must be at least 1, not {tokens}")
    loaded = load_track(track or _track_of(predictors))
    if loaded.task.io.kind != "tokens":
        raise UserError(f"{loaded.name} has no distributions over tokens to compare")
    if not loaded.task.knows_truth:
        raise UserError(
            f"nothing to compare on {loaded.name}: no truth is known there, so of each prediction only the token's own "
            "probability is kept, and the distance of two predictors needs whole distributions"
        )
    test = loaded.instances("test")
    early = first_tokens(test, tokens)
    if not early.scored.any():
        raise UserError(f"nothing is scored among the first {tokens} tokens of {loaded.name}")
    voices = [voice for spec in predictors for voice in _voices(spec, loaded, test, early, announce)]
    if len(voices) < 2:
        raise UserError(f"a comparison needs at least two predictors, not {len(voices)}")
    names = _names(voices)
    found = _distances(voices, early)
    comparison = Comparison(
        loaded.name, tokens, len(early), int(early.scored.sum()), names, [len(v.seeds) for v in voices], *found
    )
    return comparison.ordered(similar_order(comparison.distance)) if order == "similar" else comparison


def first_tokens(instances: Instances, count: int) -> Instances:
    """The instances cut after `count` tokens: a predictor that looks only back says of them what it says of the whole."""
    return replace(
        instances,
        tokens=instances.tokens[:, :count],
        lengths=np.minimum(instances.lengths, count),
        scored=instances.scored[:, :count],
        truth_at={name: values[:, :count] for name, values in instances.truth_at.items()},
    )


def similar_order(distance: NDArray[np.float64]) -> list[int]:
    """An order in which neighbours are near: the path from the first through all others, shortened until no reversal helps."""
    order = list(range(len(distance)))

    def length(path: list[int]) -> float:
        return float(sum(distance[a, b] for a, b in itertools.pairwise(path)))

    improved = True
    while improved:
        improved = False
        for i in range(1, len(order) - 1):
            for j in range(i + 1, len(order)):
                other = order[:i] + order[i : j + 1][::-1] + order[j + 1 :]
                if length(other) < length(order) - 1e-12:
                    order, improved = other, True
    return order


def _names(voices: Sequence[Voice]) -> list[str]:
    usual = [voice.name or voice.usual for voice in voices]
    names = [v.name or (v.usual if usual.count(v.usual) == 1 else v.long) for v in voices]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two predictors are called '{twice}': give one a name of its own, as in other={twice}")
    return names


# --- From what is asked for to what was predicted. ---


def _track_of(predictors: Sequence[str]) -> str:
    runs = (_split(spec)[1] for spec in predictors)
    return next((read_result(Path(run)).track.name for run in runs if Path(run).is_dir()), DEFAULT_TRACK)


def _split(spec: str) -> tuple[str | None, str]:
    """(label or None, the predictor itself)."""
    label, equals, rest = spec.partition("=")
    return (None, spec) if Path(spec).exists() or not equals or not label or not rest else (label, rest)


def _voices(spec: str, track: Track, test: Instances, early: Instances, announce: Announce) -> list[Voice]:
    label, name = _split(spec)
    if Path(name).is_dir():
        return [_run(Path(name), label, track, test, early)]
    baselines = lineup(track, test)
    chosen = forms_of(name, track, test) if registry.is_file(name) else [b for b in baselines if b.name == name]
    registered = registry.entries(registry.BASELINE)
    if not chosen and name in registered:
        cls = registry.load(registry.BASELINE, name)
        chosen = [b for b in baselines if type(b) is cls]
    if not chosen and (name in registered or registry.is_file(name)):
        raise UserError(f"the baseline '{name}' has no place on {track.name}")
    if not chosen:
        if "/" in name or name.endswith((".json", ".npz")):
            raise UserError(f"there is no run folder {name}")
        raise UserError(f"unknown predictor '{name}'{nearest(name, [*(b.name for b in baselines), *registered])}")
    if label is not None and len(chosen) > 1:
        raise UserError(f"'{name}' stands for several predictors, which cannot all be called '{label}'")
    voices = []
    for baseline in chosen:
        said = _said(baseline, track, test, early, announce)
        voices.append(Voice(label, baseline.name, baseline.name, [_at_scored(said.packed, said.lengths, early)]))
    return voices


def _said(
    baseline: Baseline, track: Track, test: Instances, early: Instances, announce: Announce
) -> BaselinePredictions:
    """Of the first tokens only, unless the whole is in the cache, or it is the oracle, which knows an instance by the whole."""
    whole = cached_baseline_predictions(baseline, track, test)
    if whole is not None:
        return whole
    part = test if baseline.anchor == "end" else early
    return whole_baseline_predictions(baseline, track, part, partial(announce, baseline.name))


def _run(folder: Path, label: str | None, track: Track, test: Instances, early: Instances) -> Voice:
    result = read_result(folder)
    if result.track.digest != track.definition.digest or result.track.fingerprints["test"] != test.fingerprint:
        now = f"what {track.name} is now" if result.track.name == track.name else track.name
        raise UserError(f"{folder} is a run on {result.track.name}, not on {now} as the others are")
    seeds = []
    for seed in result.seeds:
        path = folder / f"seed-{seed.seed}" / "predictions.npz"
        predictions = Predictions.read(path)
        if not np.array_equal(predictions.lengths, test.lengths):
            raise UserError(f"{path} holds predictions of other instances than {track.name}'s")
        seeds.append(_at_scored(predictions.packed, predictions.lengths, early))
    return Voice(label, result.architecture.name, folder.resolve().name, seeds)


def _at_scored(packed: NDArray[Any], lengths: NDArray[Any], early: Instances) -> FloatArray:
    """(T, V), a row for each token -> (P, V) float64, a row for each scored position of `early`, each summing to 1."""
    starts = np.cumsum(lengths) - lengths
    row, position = np.nonzero(early.scored)
    chosen = packed[starts[row] + position].astype(np.float64)
    return chosen / chosen.sum(-1, keepdims=True)


def _distances(voices: Sequence[Voice], early: Instances) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(M, M) TVD and its standard error over instances."""
    row, _ = np.nonzero(early.scored)
    counts = early.scored.sum(1)
    some = counts > 0
    distance, stderr = np.zeros((len(voices), len(voices))), np.zeros((len(voices), len(voices)))
    for i, one in enumerate(voices):
        for j, other in enumerate(voices[: i + 1]):
            pairs = [(a, b) for m, a in enumerate(one.seeds) for n, b in enumerate(other.seeds) if i != j or m < n]
            sums = [np.bincount(row, 0.5 * np.abs(a - b).sum(-1), len(early)) for a, b in pairs]
            if sums:
                score = Score.of(np.mean(sums, 0)[some], counts[some])
                distance[i, j] = distance[j, i] = score.value
                stderr[i, j] = stderr[j, i] = score.stderr
    return distance, stderr
