"""What a track says itself, to compare claims with: its splits, what is scored where, the plan of training, the baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines, predict_baseline, score_baselines, score_stored
from regbench.evaluation.predictions import Predictions
from regbench.metrics.scores import Scores, score, score_records
from regbench.results import BaselineRecord, Curve, TrackRecord
from regbench.tasks.base import VectorIO
from regbench.tracks import SPLITS, Track
from regbench.training.options import TrainingOptions
from regbench.training.trainer import training_steps


@dataclass(frozen=True, eq=False)
class Reference:
    """A track, and what follows from it; everything is computed once, when it is first asked for."""

    track: Track

    @cached_property
    def record(self) -> TrackRecord:
        """What every result on this track says of it."""
        track = self.track
        splits = {split: track.instances(split) for split in SPLITS}
        return TrackRecord(
            name=track.name,
            version=track.version,
            digest=track.definition.digest,
            main_score=track.definition.main_score,
            fingerprints={split: instances.fingerprint for split, instances in splits.items()},
        )

    @cached_property
    def test(self) -> Instances:
        return self.track.instances("test")

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.track.task.scores

    @property
    def budget(self) -> int:
        """Training tokens that an entry may spend."""
        return self.track.definition.budget.train_tokens

    @cached_property
    def frame(self) -> Scores:
        """The scores of a predictor that knows nothing: what counts where is the same for every other."""
        width = self.packed.shape[1]
        fill = np.full(self.packed.shape, 1.0 / width, self.packed.dtype)
        return score(self.track.task, self.test, Predictions(fill, self.test.lengths).batches())

    @cached_property
    def truth(self) -> Scores | None:
        """The scores of the truth itself; None where nobody knows it."""
        found = [baseline for baseline in default_baselines(self.track, self.test) if baseline.anchor == "end"]
        if not found:
            return None
        return score_stored(self.track, self.test, predict_baseline(found[0], self.track, self.test).stored)

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """By metric a curve with the positions and counts that every curve of this track has."""
        return score_records(self.frame)[1]

    @property
    def packed(self) -> NDArray[Any]:
        """An array, without memory of its own, of the type and shape of stored predictions."""
        io = self.track.task.io
        tokens = int(self.test.lengths.sum())
        if isinstance(io, VectorIO):
            return np.broadcast_to(np.float32(0), (tokens, io.d_out))
        return np.broadcast_to(np.float16(0), (tokens, io.vocab_size))

    def plan(self, options: TrainingOptions, seed: int) -> NDArray[np.int64]:
        """(S,): tokens seen after each step of a training with this seed.

        Raises:
            UserError: more tokens are asked for than the budget has, or not even one batch fits.
        """
        shortened = options.model_dump(include={"train_tokens", "epochs", "batch_size"})
        return _plan(self, tuple(sorted(shortened.items())), seed)

    def baselines(self, announce: Callable[[str], None]) -> dict[str, BaselineRecord]:
        """Every baseline's record, from the cache or computed now; `announce` is told of each that is computed."""
        if "_baselines" not in self.__dict__:
            told = score_baselines(self.track, self.test, lambda name: announce(f"computing the baseline {name}"))
            self.__dict__["_baselines"] = told
        records: dict[str, BaselineRecord] = self.__dict__["_baselines"]
        return records


@lru_cache(maxsize=64)
def _plan(reference: Reference, options: tuple[tuple[str, Any], ...], seed: int) -> NDArray[np.int64]:
    lengths = reference.track.instances("train").lengths
    steps = list(training_steps(lengths, TrainingOptions(**dict(options)), reference.budget, seed))
    return np.cumsum([tokens for tokens, _ in steps])
