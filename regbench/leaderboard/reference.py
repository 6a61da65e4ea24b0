"""What the track itself says, to compare claims with: splits, scored positions, the plan of training, the baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines, score_baselines
from regbench.evaluation.predictions import expected_arrays, scored_at_once
from regbench.metrics.scores import Scores, score, score_records
from regbench.models.predictor import Baseline, predict_in_batches
from regbench.results import BaselineRecord, Curve, TrackRecord
from regbench.tracks import Track, load_track, track_names
from regbench.training.options import TrainingOptions
from regbench.training.trainer import training_steps
from regbench.utils import registry
from regbench.utils.arrays import IntArray
from regbench.utils.guard import Refused


@dataclass(frozen=True, eq=False)
class Reference:
    """A track and what follows from it. Everything is computed once, at its first use.

    Attributes:
        track: The track.
    """

    track: Track

    @cached_property
    def record(self) -> TrackRecord:
        """What every result on this track says of it."""
        return self.track.record()

    @cached_property
    def test(self) -> Instances:
        """The N instances of the test split."""
        return self.track.instances("test")

    @cached_property
    def training_lengths(self) -> IntArray:
        """(N,): the tokens of each training instance."""
        return self.track.instances("train").lengths

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the track's scores."""
        return self.track.task.scores

    @cached_property
    def frame(self) -> Scores:
        """The scores of a uniform predictor. Which positions count for which metric is the same for every predictor."""
        width, longest = self.packed.shape[1], self.test.tokens.shape[1]
        at_once = scored_at_once(longest, width)
        sizes = [min(at_once, len(self.test) - first) for first in range(0, len(self.test), at_once)]
        batches = (np.broadcast_to(1.0 / width, (size, longest, width)) for size in sizes)  # they take no memory
        return score(self.track.task, self.test, batches)

    @cached_property
    def truth(self) -> Scores | None:
        """The scores of the oracle, or None where the task has no known truth."""
        found = [baseline for baseline in default_baselines(self.track, self.test) if baseline.anchor == "end"]
        return self._score(found[0], self.test) if found else None

    @cached_property
    def controls(self) -> list[Scores]:
        """`controls_on` the test split."""
        return self.controls_on(self.test)

    def controls_on(self, instances: Instances) -> list[Scores]:
        """Scores of baselines that tell how hard each instance is: n-grams, and those that fix the normalized score.

        The others take minutes, and add little.
        """
        ngram = registry.load(registry.BASELINE, "ngram")
        found = default_baselines(self.track, instances)
        return [self._score(one, instances) for one in found if one.anchor is not None or isinstance(one, ngram)]

    def _score(self, baseline: Baseline, instances: Instances) -> Scores:
        at_once = scored_at_once(instances.tokens.shape[1], self.packed.shape[1])
        return score(self.track.task, instances, predict_in_batches(baseline, instances, at_once))

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """By metric a curve with the positions and counts that every curve of this track has."""
        return score_records(self.frame)[1]

    @property
    def packed(self) -> NDArray[Any]:
        """An array, without memory of its own, of the type and shape of stored predictions."""
        return expected_arrays(self.track.task, self.test)["packed"]

    def plan(self, options: TrainingOptions, seed: int) -> NDArray[np.int64]:
        """(S,): tokens seen after each step of a training with this seed.

        Raises:
            UserError: More tokens or instances are asked for than the track has, or not even one batch fits.
        """
        shortened = options.model_dump(include={"train_tokens", "train_instances", "epochs", "batch_size"})
        return _plan(self, tuple(sorted(shortened.items())), seed)

    def baselines(self, announce: Callable[[str], None]) -> dict[str, BaselineRecord]:
        """Every baseline's record, from the cache or computed now.

        Args:
            announce: Called with a line for each baseline that is computed.
        """
        if not self._baselines:
            found = score_baselines(self.track, self.test, lambda name: announce(f"computing the baseline {name}"))
            self._baselines.update(found)
        return self._baselines

    @cached_property
    def _baselines(self) -> dict[str, BaselineRecord]:
        return {}


def find_reference(name: str, given: Track | None = None) -> Reference:
    """The track that a claim is about. A name is never taken for a path.

    Args:
        name: The track's name, as the claim states it.
        given: A track of your own; it is taken if it has this name.

    Raises:
        Refused: There is no such track, or it takes no entries.
    """
    if given is None or given.name != name:
        if name not in track_names():
            raise Refused(f"{name[:80]!a} is no built-in track; if it is yours, give its file: --track FILE.yaml")
        given = _built_in(name)
    reference = _reference(given)
    if not given.task.knows_truth:
        raise Refused(
            f"{name} takes no entries: its text depends on the machine it was made on and its truth is unknown, "
            "so nobody else could check a claim"
        )
    return reference


def todays_track(name: str, digest: str, own: Track | None) -> Track | None:
    """The track of a definition. None where the track of this name has another definition today, or is gone.

    Args:
        name: The track's name.
        digest: The digest of the definition.
        own: A track of your own; it is taken if it has this name.
    """
    if own is not None and own.name == name:
        track: Track | None = own
    else:
        track = _built_in(name) if name in track_names() else None
    return track if track is not None and track.definition.digest == digest else None


_built_in = lru_cache(maxsize=16)(load_track)
_reference = lru_cache(maxsize=16)(Reference)


@lru_cache(maxsize=64)
def _plan(reference: Reference, options: tuple[tuple[str, Any], ...], seed: int) -> NDArray[np.int64]:
    budget = reference.track.definition.budget.train_tokens
    steps = training_steps(reference.training_lengths, TrainingOptions(**dict(options)), budget, seed)
    return np.cumsum([tokens for tokens, _ in steps])
