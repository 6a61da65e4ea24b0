"""What the checks of architectures take, and how they compare outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regbench.checks.contract import NotApplicable
from regbench.models.build import build
from regbench.models.mixer import Options
from regbench.models.model import CPU, Model, manual_seed
from regbench.tasks.base import IO, Task, VectorIO
from regbench.training.options import TrainingOptions

CAUSAL_TOLERANCE = 1e-4
"""As `causality.TOLERANCE`, between two inputs that differ later on. An FFT spreads its rounding over all positions.

Hyena has the most of the built-in architectures: 1.4e-5 on weights moved by `STEPS`.
"""

LENGTH_TOLERANCE = 1e-2
"""As it, between two lengths. Attention in bfloat16 has 1.7e-3; with positions that are divided by the length it is 1.4e-2."""

STEPS = (0.1, 0.01, 0.0)
"""The standard deviations of the noise that moves weights from their start. The first that keeps the output finite is used."""


@dataclass(frozen=True)
class Subject:
    """What the checks take: an architecture with its options, for the tokens or vectors of a task."""

    cls: type[Any]
    options: Options
    io: IO
    device: torch.device = CPU
    training: TrainingOptions = field(default_factory=TrainingOptions)
    """How the run will train it."""
    task: Task | None = None
    """What it will be trained on, where that is known."""

    def model(self, seed: int = 0) -> Model:
        """A model in evaluation mode, its weights drawn under `seed`."""
        manual_seed(seed)
        return build(self.cls, self.options, self.io).to(self.device).eval()

    def moved(self) -> Model:
        """A model whose trainable weights are moved away from their start by noise, as training moves them.

        A branch that a zero weight shuts at the start is then open.
        """
        for step in STEPS:
            model, generator = self.model(), torch.Generator().manual_seed(1)
            for parameter in model.parameters():
                kind = parameter.dtype if parameter.is_complex() else torch.float32
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator, dtype=kind)
                    parameter.data += step * noise.to(parameter)
            if model(self.tokens(1, length=None)).isfinite().all():
                break
        return model

    def tokens(self, batch: int = 3, length: int | None = 32) -> Tensor:
        """Random tokens (B, L), the separator among them; for a task of vectors, Gaussian vectors (B, L, D_in).

        They have the longest length of the task where `length` is None.
        """
        generator = torch.Generator().manual_seed(0)
        shape = (batch, min(length or self.io.max_length, self.io.max_length))
        if isinstance(self.io, VectorIO):
            return torch.randn(*shape, self.io.d_in, generator=generator).to(self.device)
        tokens = torch.randint(self.io.vocab_size, shape, generator=generator)
        if self.io.bottleneck is not None:  # most positions are after it, as in the task's instances
            tokens[:, shape[1] // 4] = self.io.bottleneck
        return tokens.to(self.device)


def finite_output(output: Tensor) -> Tensor:
    """The same output. A check that compares outputs says nothing of NaN: `finite` reports it."""
    if not output.isfinite().all():
        raise NotApplicable("not asked: it returns NaN or infinity")
    return output
