"""One vector in the place of all that was read: what a model sees after the bottleneck token of a task (`TokenIO.bottleneck`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class BottleneckState:
    """What the recurrent form keeps.

    Attributes:
        vector: (B, D), the output at the first bottleneck token; zeros before it.
        distance: (B,) int64, tokens read since then; -1 before it.
    """

    vector: Tensor
    distance: Tensor


class Bottleneck(nn.Module):
    """The decoder: replaces each output from the first bottleneck token on by norm(z + network(z)).

    z is the output at the bottleneck token plus a learned vector for the distance to it. The compression task of the MAD suite
    has such a decoder, too (Poli et al. 2024, arXiv:2403.17844). There the vectors of the distances are fixed sines and cosines,
    and the network of two layers has the width D and no residual connection.
    """

    def __init__(self, token: int, network: nn.Module, d_model: int, max_length: int) -> None:
        """Makes the decoder.

        Args:
            token: the bottleneck token.
            network: maps (..., D) to (..., D) at each position.
            d_model: D.
            max_length: the most tokens that an instance has.
        """
        super().__init__()
        self.token = token
        self.distances = nn.Embedding(max_length, d_model)
        self.network = network
        self.norm = nn.LayerNorm(d_model)

    def forward(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """The outputs after the bottleneck.

        Args:
            outputs: (B, L, D), those of the blocks.
            inputs: (B, L), the tokens that were read.

        Returns:
            (B, L, D). Rows before the first bottleneck token are as they were.
        """
        is_token = inputs == self.token
        first = is_token.int().argmax(1)
        distance = torch.arange(inputs.shape[1], device=inputs.device) - first[:, None]
        after = is_token.cumsum(1) > 0
        vector = outputs.take_along_dim(first[:, None, None], 1)
        return torch.where(after[..., None], self._decoded(vector, distance.clamp(min=0)), outputs)

    def init_state(self, batch: int, like: Tensor) -> BottleneckState:
        """The state of `batch` streams before their first token, with the device and the type of `like`, (..., D)."""
        return BottleneckState(
            like.new_zeros(batch, like.shape[-1]), torch.full((batch,), -1, dtype=torch.int64, device=like.device)
        )

    def step(self, output: Tensor, inputs: Tensor, state: BottleneckState) -> tuple[Tensor, BottleneckState]:
        """One position of the recurrent form: output (B, D) and inputs (B,) -> (B, D), and the state after it."""
        began = state.distance >= 0
        begins = ~began & (inputs == self.token)
        vector = torch.where(begins[:, None], output, state.vector)
        distance = torch.where(began | begins, state.distance + 1, state.distance)
        decoded = self._decoded(vector, distance.clamp(min=0))
        return torch.where((distance >= 0)[:, None], decoded, output), BottleneckState(vector, distance)

    def state_bytes(self) -> int:
        """Bytes of state for one sequence in float32: the vector and the distance."""
        return 4 * self.distances.embedding_dim + 8

    def _decoded(self, vector: Tensor, distance: Tensor) -> Tensor:
        z = vector + self.distances(distance)
        decoded: Tensor = self.norm(z + self.network(z))
        return decoded
