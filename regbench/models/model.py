"""What the training loop and the scoring see of any architecture: a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.mixer import Options, Paper
from regbench.tasks.base import IO, VectorIO
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError


class Model(nn.Module):
    """A trainable predictor, made as `TheModel(options, io)`.

    `forward(tokens)[b, t]` are the logits of `tokens[b, t]` given `tokens[b, :t]`. A model that is more than a mixer on the
    common backbone subclasses this; it turns the tokens into its inputs by `shift_in`, the only place where anything is shifted.
    Where a token is a vector (`VectorIO`) the output is not logits but the prediction: (B, L, D_in) -> (B, L, D_out).
    """

    Options: ClassVar[type[Options]] = Options
    paper: ClassVar[Paper | None] = None
    takes: ClassVar[tuple[str, ...]] = ("tokens",)
    """The kinds of task it is for: "tokens", "vectors" or both."""
    compiles: ClassVar[bool] = True
    """Whether it works under torch.compile, as the contract demands unless this says no."""
    analysis: ClassVar[str | None] = None
    """Name of the module that `regbench analyze` and `regbench specialize` call for this architecture, if it has one."""
    training: bool
    training_defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: Any, io: IO) -> None:
        """options: an instance of this class's `Options`."""
        super().__init__()
        self.options = options
        self.io: Any = io  # a model of one kind of task knows which it is

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits."""
        name = type(self).__name__
        raise UserError(f"{name} has no forward(self, tokens), which maps tokens (B, L) to logits (B, L, V)")

    def losses(self, tokens: Tensor, scored: Tensor) -> dict[str, Tensor]:
        """Named terms of the loss, in nats; their sum is minimised. (B, L) int64, (B, L) bool -> scalars.

        The first alone decides the best checkpoint: `cross_entropy`, the mean over scored positions (ICLL Eq. 8), or for
        vectors `mse`, the mean over their components of the squared error. (B, L, D_in) float32, (B, L) bool -> scalars.
        """
        if isinstance(self.io, VectorIO):
            return {"mse": F.mse_loss(self(tokens)[scored], tokens[..., -self.io.d_out :][scored])}
        return {"cross_entropy": F.cross_entropy(self(tokens)[scored], tokens[scored])}

    @classmethod
    def can_overfit(cls, options: Any) -> bool:
        """Whether it can learn a few instances by heart, as the contract then demands. False for one that is shown too little."""
        return True

    def state_bytes(self) -> int | None:
        """Bytes of recurrent state for one sequence in float32; None where it grows with L or is unknown."""
        return None


def shift_in(tokens: Tensor, separator: float) -> Tensor:
    """The inputs that predict `tokens`: a separator, then every token but the last. (B, L) or, of vectors, (B, L, D)."""
    if tokens.ndim == 3:
        return F.pad(tokens, (0, 0, 1, 0), value=separator)[:, :-1]
    return F.pad(tokens, (1, 0), value=separator)[:, :-1]


def token_tensor(tokens: NDArray[Any], device: torch.device) -> Tensor:
    """Instances' tokens as a model takes them: int64, or float32 where they are vectors."""
    kind = np.float32 if np.issubdtype(tokens.dtype, np.floating) else np.int64
    return torch.from_numpy(np.asarray(tokens, kind)).to(device)


def parameter_count(model: nn.Module) -> int:
    """Trainable parameters, shared ones counted once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class ModelPredictor:
    """A trained model as a `Predictor`. Its probabilities are float64, from the softmax of float32 logits.

    Of a task of vectors it gives the model's own output: (B, L, D_in) -> (B, L, D_out).
    """

    def __init__(self, model: Model, device: torch.device, batch_size: int = 64) -> None:
        self.model, self.device, self.batch_size = model, device, batch_size

    def predict(self, tokens: IntArray) -> FloatArray:
        """(B, L) integers -> (B, L, V) float64."""
        self.model.eval()
        parts = []
        with torch.inference_mode():
            for i in range(0, len(tokens), self.batch_size):
                batch = token_tensor(tokens[i : i + self.batch_size], self.device)
                out = self.model(batch).double()
                parts.append((out.softmax(-1) if batch.ndim == 2 else out).cpu().numpy())
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
