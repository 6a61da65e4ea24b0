"""A trainer of a small mixer, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer
from regbench.tracks import Track
from regbench.training.options import TrainingOptions
from regbench.training.trainer import Trainer


class Recency(Mixer):
    """A mixer with parameters and dropout, small enough to train in no time."""

    def __init__(self, options: object) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        self.decay = torch.nn.Parameter(torch.zeros(self.options.d_model))

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) * torch.sigmoid(self.decay) / 10


@pytest.fixture
def trainer(tiny: Track, tmp_path: Path) -> Callable[..., Trainer]:
    def make(folder: str = "a", seed: int = 0, mixer: Any = Recency, **options: object) -> Trainer:
        torch.manual_seed(seed)
        model = build(mixer, resolve_options(mixer, {"d_model": 8, "dropout": 0.2}), tiny.task.io)
        values = {"batch_size": 8, "evaluations": 4} | options
        return Trainer(
            model,
            tiny.instances("train"),
            tiny.instances("validation"),
            TrainingOptions(**values),  # type: ignore[arg-type]
            budget=6000,
            seed=seed,
            folder=tmp_path / folder,
            device=torch.device("cpu"),
        )

    return make


def log(trainer: Trainer) -> list[dict[str, float]]:
    return [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines()]
