"""One tiny training, the curve of its losses, and the distance of two curves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml

from regbench.models.build import build, resolve_options
from regbench.tracks import Track, load_track
from regbench.training.options import TrainingOptions
from regbench.training.trainer import Trainer
from regbench.utils import registry
from tests.conftest import TINY

Curve = list[tuple[int, float, float]]
"""(step, training loss, validation loss) of each evaluation, in nats."""

FOLDER = Path(__file__).parent
SETTINGS: dict[str, Any] = {
    "d_model": 16,
    "training.batch_size": 8,
    "training.train_tokens": 2400,
    "training.evaluations": 5,
}
SLOWER = 0.2
"""The learning rate, as a share of the architecture's own: at the full rate a few curves carry a rounding of the last bit to the
third digit (GLA's: a norm of four numbers that may all be near 0), and a tolerance for that would hide what it should show."""


def names() -> list[str]:
    """The built-in architectures; none is imported for it."""
    found = registry.entries(registry.ARCHITECTURE).values()
    return [entry.name for entry in found if entry.source.startswith("architectures/")]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def tiny_track() -> Track:
    """The tests' tiny track, from a file that is gone again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny-v1.yaml"
        path.write_text(yaml.safe_dump(TINY), encoding="utf-8")
        return load_track(str(path))


def train(
    track: Track,
    name: str,
    settings: dict[str, Any],
    *,
    rate: float = 1.0,
    scale: float = 1.0,
    rounding: int | None = None,
) -> Curve:
    """About 24 steps of the architecture from seed 0, at `SLOWER` of its learning rate.

    rate: a factor on the learning rate.  scale: a factor on every matrix at the start.  rounding: a seed by which every weight
    is moved at the start by about one part in 10 million, the last bit of a float32.
    """
    cls = registry.load(registry.ARCHITECTURE, name)
    own = {key: value for key, value in settings.items() if not key.startswith("training.")}
    given = {key.removeprefix("training."): value for key, value in settings.items() if key.startswith("training.")}
    options = TrainingOptions(**{**cls.training_defaults, **given})
    options = options.model_copy(update={"learning_rate": options.learning_rate * SLOWER * rate})
    torch.manual_seed(0)
    model = build(cls, resolve_options(cls, own), track.task.io)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim >= 2 and scale != 1.0:
                weights.mul_(scale)
            if rounding is not None:
                noise = torch.randn(weights.shape, generator=torch.Generator().manual_seed(rounding))
                weights.mul_(1.0 + 1e-7 * noise)
    with tempfile.TemporaryDirectory() as folder:
        progress = Trainer(
            model,
            track.instances("train"),
            track.instances("validation"),
            options,
            budget=track.definition.budget.train_tokens,
            seed=0,
            folder=Path(folder),
            device=torch.device("cpu"),
        ).run()
    known = ("step", "tokens", "validation_loss")
    return [
        (int(row["step"]), sum(v for k, v in row.items() if k not in known), row["validation_loss"])
        for row in progress.curve
    ]


def distance(expected: Curve, got: Curve) -> float:
    """The largest relative difference of two losses; infinite if the evaluations are at other steps."""
    if [row[0] for row in expected] != [row[0] for row in got]:
        return float("inf")
    pairs = [pair for old, new in zip(expected, got, strict=True) for pair in zip(old[1:], new[1:], strict=True)]
    return max(abs(new - old) / abs(old) for old, new in pairs)


def first_apart(expected: Curve, got: Curve, tolerance: float) -> str:
    """The first evaluation at which the curves differ by more than the tolerance, for people."""
    for old, new in zip(expected, got, strict=False):
        if distance([old], [new]) > tolerance:
            return (
                f"first apart at step {new[0]}, expected at {old[0]} of {expected[-1][0]}: "
                f"training loss {old[1]:.6f}, got {new[1]:.6f}; validation loss {old[2]:.6f}, got {new[2]:.6f}"
            )
    return "not apart"
