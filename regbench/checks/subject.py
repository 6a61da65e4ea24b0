"""What the checks of architectures take, how they compare outputs, and what "sees the future" means.

A predictor sees the future where a prediction changes when its own token, or what follows it, is changed or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

TOLERANCE = 1e-5
"""Two outputs are equal within this rounding, relative to the largest logit (at least 1).

Fused kernels sum in another order when a shape differs. A real fault moves logits by far more.
"""

CAUSAL_TOLERANCE = 1e-4
"""As `TOLERANCE`, between two inputs that differ later on. An FFT spreads its rounding over all positions.

Hyena has the most of the built-in architectures: 1.4e-5 on weights moved by `STEPS`.
"""

LENGTH_TOLERANCE = 1e-2
"""As it, between two lengths. Attention in bfloat16 has 1.7e-3; with positions that are divided by the length it is 1.4e-2."""

STEPS = (0.1, 0.01, 0.0)
"""The standard deviations of the noise that moves weights from their start. The first that keeps the output finite is used."""

Predict = Callable[[Tensor], Tensor]
"""Tokens (B, L), or vectors (B, L, D), to rows (B, L, V). The row of position t is for token t."""

BORDERS = tuple(place for power in range(3, 13) for place in (2**power - 1, 2**power))
"""Places where a parallel form that works in chunks goes from one to the next. An index that is off by one leaks there alone."""


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


@dataclass(frozen=True)
class Leak:
    """How a predictor sees the future. As text it is the end of a message."""

    token: int
    """The first token that was changed or left out, with all behind it."""
    prediction: int
    """The first prediction that changed: of this token, or of one before it."""
    how: str = "changing"

    def __str__(self) -> str:
        return f"{self.how} the tokens from {self.token} on changes the prediction of token {self.prediction}"


def sees_future(
    predict: Predict, tokens: Tensor, io: IO, tolerance: float, places: Iterable[int], *, at_once: int = 0
) -> Leak | None:
    """Whether a prediction changes with tokens from its own on. The last place is asked first, so that the nearest leak is found.

    From each of the `places` on the tokens are changed, once. `at_once` changed copies are read in one batch, with a copy that is
    not changed; with 0 each is a batch of its own.
    """
    waiting, before = sorted(places, reverse=True), predict(tokens)
    for start in range(0, len(waiting), max(1, at_once)):
        some = waiting[start : start + max(1, at_once)]
        copies = tokens.repeat(len(some), *[1] * (tokens.ndim - 1)).view(len(some), *tokens.shape)
        for copy, place in zip(copies, some, strict=True):
            copy[:, place:] = others(copy[:, place:], io)
        if at_once:
            *answers, unchanged = predict(torch.cat([*copies, tokens])).split(len(tokens))
        else:
            answers, unchanged = list(map(predict, copies)), before
        for place, after in zip(some, answers, strict=True):
            if (found := _first(unchanged[:, : place + 1], after[:, : place + 1], tolerance)) is not None:
                return Leak(place, found)
    return None


def depends_on_length(predict: Predict, tokens: Tensor, length: int, tolerance: float) -> Leak | None:
    """Whether a prediction of the first `length` tokens changes where those behind them are left out."""
    found = _first(predict(tokens)[:, :length], predict(tokens[:, :length]), tolerance)
    return None if found is None else Leak(length, found, "leaving out")


def others(tokens: Tensor, io: IO) -> Tensor:
    """Tokens or vectors of which each differs from the given one."""
    return tokens + 1 if isinstance(io, VectorIO) else (tokens + 1) % io.vocab_size


def differ(one: Tensor, other: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether rows differ by more than a share of their largest number (at least 1), or one is NaN."""
    return one.shape != other.shape or _first(one, other, tolerance) is not None


def _first(one: Tensor, other: Tensor, tolerance: float) -> int | None:
    """The first position at which rows (B, L, V) differ."""
    near = (one - other).abs() <= tolerance * one.abs().max().clamp(min=1.0)
    wrong = (~near).reshape(len(near), near.shape[1], -1).any(-1).any(0).nonzero()
    return int(wrong[0]) if len(wrong) else None
