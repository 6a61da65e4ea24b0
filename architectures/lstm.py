"""LSTM: a gated recurrence whose state feeds back through a nonlinear map.

ICLL A.4: f, i, o = sigmoid(W x_t + U h_{t-1}), c~ = tanh(W_c x_t + U_c h_{t-1}), c_t = f c_{t-1} + i c~, h_t = o tanh(c_t).
PyTorch's LSTM computes it. As in the paper's experiments, there is no feed-forward network between layers. But each layer has the
backbone's residual connection and a LayerNorm before it (Eq. 17), which those of A.4 do not have.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regbench.models import mixer
from regbench.models.mixer import Mixer, Paper

State = tuple[Tensor, Tensor]
"""h and c, (1, B, D) each."""


class LSTM(Mixer):
    """One LSTM layer (B, L, D) -> (B, L, D), with as many cells as channels."""

    class Options(mixer.Options):
        """The options of the LSTM."""

        start: Literal["uniform", "orthogonal"] = Field(
            default="uniform",
            description="first weights: uniform as PyTorch's, or orthogonal recurrent ones and a forget bias of 1",
        )

    feed_forward = False
    family = "recurrent"
    paper = Paper("Long Short-Term Memory", "Hochreiter and Schmidhuber", 1997)

    def __init__(self, options: LSTM.Options) -> None:
        super().__init__(options)
        self.lstm = nn.LSTM(options.d_model, options.d_model, batch_first=True)
        if options.start == "orthogonal":
            cell: Any = self.lstm
            for gate in cell.weight_hh_l0.detach().chunk(4):  # input, forget, cell, output, as PyTorch orders them
                nn.init.orthogonal_(gate)
            # PyTorch adds two biases. Gers et al. 2000 begin with an open forget gate; Jozefowicz et al. 2015 with a bias of 1.
            for bias, forget in ((cell.bias_ih_l0, 1.0), (cell.bias_hh_l0, 0.0)):
                nn.init.zeros_(bias)
                nn.init.constant_(bias.detach().chunk(4)[1], forget)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        return self._run(x, None)[0]

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        zero = torch.zeros(1, batch, self.options.d_model, device=device, dtype=dtype)
        return zero, zero

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position: (B, D) and the state before it -> (B, D) and the state after it."""
        y, state = self._run(x[:, None], state)
        return y[:, 0], state

    def _run(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """In the weights' type: on a GPU autocast would take float16 here, whichever type it was asked for."""
        weights = next(self.lstm.parameters())
        with torch.autocast(x.device.type, enabled=False):
            found: tuple[Tensor, State] = self.lstm(x.to(weights.dtype), state)
        return found

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of h and c."""
        return 4 * 2 * options.d_model
