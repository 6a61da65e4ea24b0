"""What training and scoring see of any architecture: a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.mixer import Architecture
from regbench.tasks.base import IO, Task, VectorIO
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import Unavailable, UserError, nearest


class Model(Architecture):
    """A trainable predictor, made as `TheModel(options, io)`.

    `forward(tokens)[b, t]` are the logits of `tokens[b, t]` given `tokens[b, :t]`. An architecture that is more than a mixer on
    the common backbone is a subclass. It makes its inputs with `shift_in`, the only place where tokens are shifted. For a task
    of vectors (`VectorIO`) the output is the prediction itself, (B, L, D_in) -> (B, L, D_out).
    """

    takes: ClassVar[tuple[str, ...]] = ("tokens",)
    """The kinds of task it is for: "tokens", "vectors" or both."""

    def __init__(self, options: Any, io: IO) -> None:
        """Takes an instance of this class's `Options`, and what the task's models read and predict."""
        super().__init__()
        self.options = options
        self.io: Any = io  # Any, as a model for one kind of task knows the type

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every token: (B, L) int64 -> (B, L, V). A UserError if the subclass has not written it."""
        name = type(self).__name__
        raise UserError(f"{name} has no forward(self, tokens), which maps tokens (B, L) to logits (B, L, V)")

    def losses(self, tokens: Tensor, scored: Tensor, targets: Tensor | None = None) -> dict[str, Tensor]:
        """Named terms of the loss. Training minimises their sum. The first alone decides which checkpoint is best.

        Tokens are (B, L) int64; of a task of vectors (B, L, D_in) float32. `scored` (B, L) bool are the positions that count.
        `targets` (B, L) int64 are what is to be predicted, on tasks that do not show it; None: the tokens.

        By default `cross_entropy` in nats, the mean over scored positions (ICLL Eq. 8). For vectors `mse`, the squared error, the
        mean over scored positions and components.
        """
        of_vectors = isinstance(self.io, VectorIO)
        wanted = tokens if targets is None else targets
        out, true = self(tokens), wanted[..., -self.io.d_out :] if of_vectors else wanted
        if tokens.is_cpu:
            if not scored.all():  # only rows that count: fewer to compute
                out, true = out[scored], true[scored]
            if of_vectors:
                return {"mse": F.mse_loss(out, true)}
            return {"cross_entropy": F.cross_entropy(out.flatten(0, -2), true.flatten())}
        # elsewhere shapes do not depend on values: Python would wait for the GPU to tell them
        if of_vectors:
            squares = (out - true).square().masked_fill(~scored[..., None], 0.0)
            return {"mse": squares.sum() / (scored.sum() * self.io.d_out)}
        true = true.masked_fill(~scored, _LEFT_OUT)
        return {"cross_entropy": F.cross_entropy(out.flatten(0, 1), true.flatten(), ignore_index=_LEFT_OUT)}

    def measured(self, task: Task) -> Mapping[str, float]:
        """Figures that follow from the weights. Training writes them to each row of its log, as `measured.NAME`.

        Training calls it before the first step too, always without gradients, with the task that the model is trained on. It
        should cost less than a step.
        """
        return {}

    def state_bytes(self) -> int | None:
        """Bytes of recurrent state for one sequence in float32. None: it grows with L, or is not known."""
        return None


_LEFT_OUT = -100
"""Stands for a token that is not scored: no token's number."""


def require_positions(length: int, longest: int) -> None:
    """Refuses a sequence of `length` tokens where only `longest` positions are learned."""
    if length > longest:
        raise UserError(f"a sequence of {length} tokens is longer than the {longest} positions this model has learned")


def shift_in(tokens: Tensor, separator: float) -> Tensor:
    """The inputs that predict `tokens`, (B, L) or of vectors (B, L, D): a separator, then every token but the last.

    Of vectors, `separator` is each component of the first vector.
    """
    if tokens.ndim == 3:
        return F.pad(tokens, (0, 0, 1, 0), value=separator)[:, :-1]
    return F.pad(tokens, (1, 0), value=separator)[:, :-1]


CPU = torch.device("cpu")


def find_device(name: str) -> torch.device:
    """The device that "cpu", "cuda", "cuda:1" or "auto" stands for. A UserError if there is no such device here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        hint = "; did you mean 'cuda'?" if name == "gpu" else nearest(name, ["auto", "cpu", "cuda"])
        raise UserError(f"unknown device '{name}'{hint}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported; known: auto, cpu, cuda")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= there:
        seen = f"{there} GPU{'s' * (there > 1)}, from cuda:0 on" if there else "no GPU; use --device cpu"
        raise Unavailable(f"device '{name}' is not available: this PyTorch sees {seen}")
    return device


def device_of(module: nn.Module) -> torch.device:
    """Where the weights of a module are. The CPU if it has none."""
    return next((parameter.device for parameter in module.parameters()), CPU)


def token_tensor(tokens: NDArray[Any], device: torch.device = CPU) -> Tensor:
    """The tokens of instances as a model takes them: int64, or for vectors float32."""
    kind = np.float32 if np.issubdtype(tokens.dtype, np.floating) else np.int64
    return torch.from_numpy(np.asarray(tokens, kind)).to(device)


def manual_seed(seed: int) -> None:
    """Seeds PyTorch's generators.

    Without a GPU, `torch.manual_seed` writes down the call stack for the day when one appears, which takes milliseconds.
    """
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def parameter_count(model: nn.Module) -> int:
    """The number of trainable parameters. Shared ones count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@dataclass
class ModelPredictor:
    """A trained model as a `Predictor`. Its probabilities are the softmax in float64 of logits in float32.

    For a task of vectors it gives the model's own output, (B, L, D_in) -> (B, L, D_out). `batch_size` instances are predicted at
    a time.
    """

    model: Model
    device: torch.device = CPU
    batch_size: int = 64

    def predict(self, tokens: IntArray) -> FloatArray:
        """(B, L) integers -> (B, L, V) float64."""
        self.model.eval()
        parts = []
        with torch.no_grad():  # not in inference mode: a model that learns at test time records gradients
            for i in range(0, len(tokens), self.batch_size):
                batch = token_tensor(tokens[i : i + self.batch_size], self.device)
                out = self.model(batch).double()
                parts.append((out.softmax(-1) if batch.ndim == 2 else out).cpu().numpy())
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
