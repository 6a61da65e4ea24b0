"""Entries without a training: predictors that know the truth to some degree stand for trained models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regbench.config import Config
from regbench.data.instances import Instances
from regbench.evaluation.baselines import score_baselines
from regbench.evaluation.predictions import store
from regbench.leaderboard.entry import Entry, InstanceScores
from regbench.metrics.scores import Scores, score, score_records
from regbench.models.predictor import predict_in_batches
from regbench.results import (
    ArchitectureRecord,
    CheckpointRecord,
    Code,
    Environment,
    Result,
    SeedRecord,
    Selection,
    TrackRecord,
    normalized_scores,
)
from regbench.tracks import SPLITS, Track
from regbench.utils.arrays import FloatArray, IntArray


class Learned:
    """As far from the truth as a trained model might be: `skill` of it, and random logits of a seed's own."""

    def __init__(self, track: Track, instances: Instances, skill: float, seed: int) -> None:
        self.truth = track.task.truth(instances)
        self.skill = skill
        self.rng = np.random.default_rng(seed)
        self.done = 0

    def predict(self, tokens: IntArray) -> FloatArray:
        """(B, L) -> (B, L, V); batches come in the instances' order."""
        truth = self.truth[self.done : self.done + len(tokens), : tokens.shape[1]]
        self.done += len(tokens)
        noise = np.exp(self.rng.normal(0.0, 1.0, truth.shape))
        noise /= noise.sum(-1, keepdims=True)
        return self.skill * np.where(truth.sum(-1, keepdims=True) > 0, truth, noise) + (1.0 - self.skill) * noise


def make_entry(
    track: Track,
    name: str,
    architecture: str,
    skill: float,
    *,
    options: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    parameters: int = 60_000,
    state_bytes: int | None = 1024,
    speed: float = 40_000.0,
    tokens: int = 6000,
    seeds: Sequence[int] = (0, 1, 2),
) -> Entry:
    """An entry of the schema whose figures all follow from predictions on the track's test split."""
    test = track.instances("test")
    baselines = score_baselines(track, test, lambda _: None)
    scored: list[Scores] = []
    records = []
    for seed in seeds:
        learned = Learned(track, test, skill, 1000 * seed + len(name))
        predictions = store(track.task, predict_in_batches(learned, test), test)
        scored.append(score(track.task, test, predictions.batches()))
        scores, curves = score_records(scored[-1])
        records.append(
            SeedRecord(
                seed=seed,
                scores=scores,
                share_of_the_way=normalized_scores(scores, baselines),
                curves=curves,
                training_curve=[
                    CheckpointRecord(
                        step=100 * i,
                        tokens=tokens * i // 5,
                        loss={"cross_entropy": 1.0 + math.exp(-i)},
                        validation_loss=1.1 + math.exp(-i),
                    )
                    for i in range(1, 6)
                ],
                best_step=500,
                steps=500,
                tokens=tokens,
                seconds=round(tokens / speed, 3),
                tokens_per_second=speed + seed,
                peak_memory_bytes=500 << 20,
                predictions_sha256=predictions.digest,
            )
        )
    fingerprints = {split: track.instances(split).fingerprint for split in SPLITS}
    result = Result(
        track=TrackRecord(
            name=track.name,
            version=track.version,
            digest=track.definition.digest,
            main_score=track.definition.main_score,
            fingerprints=fingerprints,
        ),
        architecture=ArchitectureRecord(
            name=architecture,
            source=f"architectures.{architecture}",
            source_sha256="0" * 64,
            options={"d_model": 64, "n_layers": 2, **(options or {})},
            parameters=parameters,
            state_bytes=state_bytes,
        ),
        training={"train_tokens": None, "batch_size": 16, "learning_rate": 0.005, **(training or {})},
        seeds=records,
        baselines=baselines,
        selection=Selection(trials=3),
        environment=Environment(
            python="3.11.2",
            platform="Linux x86_64",
            processor="a processor, 2 cores",
            device="cpu",
            threads=2,
            precision="float32",
            backend={"selective_scan": "cpu"},
            packages={"torch": "2.13.0"},
        ),
        code=Code(commit="0123456789abcdef", dirty=False),
    )
    configuration = Config(track=track.name, architecture=architecture, seeds=tuple(seeds))
    return Entry.seal(name, configuration, result, InstanceScores.of(scored))


def make_entries(track: Track) -> list[Entry]:
    """Eight entries: six architectures, two of them with n-gram heads, one also trained on less; two are nearly level."""
    heads = {"options": {"ngram_heads": [1, 2, 3]}}
    short = {"tokens": 1500, "training": {"train_tokens": 1500}}
    rows: tuple[tuple[str, float, int, int | None, float, dict[str, Any]], ...] = (
        ("transformer", 0.42, 116_800, None, 49_000.0, {}),
        ("transformer+ngh-1-2-3", 0.61, 125_056, None, 40_000.0, heads),
        ("mamba", 0.4205, 66_816, 19_456, 41_000.0, {}),
        ("mamba-short", 0.2, 66_816, 19_456, 40_000.0, short),
        ("lstm", 0.34, 68_096, 1024, 88_000.0, {}),
        ("lstm+ngh-1-2-3", 0.6, 76_352, None, 61_000.0, heads),
        ("hyena", 0.36, 140_800, None, 30_000.0, {}),
        ("retnet", 0.25, 83_000, 8192, 37_000.0, {"seeds": (0,)}),
    )
    return [
        make_entry(
            track, name, re.split("[+-]", name)[0], skill, parameters=size, state_bytes=state, speed=speed, **more
        )
        for name, skill, size, state, speed, more in rows
    ]
