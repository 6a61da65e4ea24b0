"""What the training loop and the scoring see of any architecture: a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.mixer import Options, Paper
from regbench.predictor import FloatArray, IntArray
from regbench.tasks.task import TokenIO


class Model(nn.Module):
    """A trainable predictor, made as `TheModel(options, io)`.

    `forward(tokens)[b, t]` are the logits of `tokens[b, t]` given `tokens[b, :t]`. A model that is more than a mixer on the
    common skeleton subclasses this; it turns the tokens into its inputs by `shift_in`, the only place where anything is shifted.
    """

    Options: ClassVar[type[Options]] = Options
    paper: ClassVar[Paper | None] = None
    training: bool
    training_defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: Any, io: TokenIO) -> None:
        """options: an instance of this class's `Options`."""
        super().__init__()
        self.options = options
        self.io = io

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits."""
        raise NotImplementedError

    def losses(self, tokens: Tensor, scored: Tensor) -> dict[str, Tensor]:
        """Named terms of the loss, in nats; their sum is minimised. (B, L) int64, (B, L) bool -> scalars.

        The first is `cross_entropy`: the mean over scored positions, which alone decides the best checkpoint. ICLL Eq. 8.
        """
        return {"cross_entropy": F.cross_entropy(self(tokens)[scored], tokens[scored])}

    def state_bytes(self) -> int | None:
        """Bytes of recurrent state for one sequence in float32; None where it grows with L or is unknown."""
        return None


def shift_in(tokens: Tensor, separator: int) -> Tensor:
    """(B, L) -> (B, L): the inputs that predict `tokens`: a separator, then every token but the last."""
    return F.pad(tokens, (1, 0), value=separator)[:, :-1]


def parameter_count(model: nn.Module) -> int:
    """Trainable parameters, shared ones counted once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class ModelPredictor:
    """A trained model as a `Predictor`. Its probabilities are float64, from the softmax of float32 logits."""

    def __init__(self, model: Model, device: torch.device, batch_size: int = 64) -> None:
        self.model, self.device, self.batch_size = model, device, batch_size

    def predict(self, tokens: IntArray) -> FloatArray:
        """(B, L) integers -> (B, L, V) float64."""
        self.model.eval()
        parts = []
        with torch.inference_mode():
            for i in range(0, len(tokens), self.batch_size):
                batch = torch.from_numpy(np.asarray(tokens[i : i + self.batch_size], np.int64)).to(self.device)
                parts.append(self.model(batch).double().softmax(-1).cpu().numpy())
        return np.concatenate(parts)
