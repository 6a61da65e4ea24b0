"""One vector in the place of all that was read: what a model sees after the bottleneck token of a task (`TokenIO.bottleneck`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regbench.models.model import require_positions


@dataclass
class BottleneckState:
    """What the recurrent form keeps."""

    vector: Tensor  # (B, D), the output at the first bottleneck token; zeros before it
    distance: Tensor  # (B,) int64, tokens read since then; -1 before it
    position: int = 0  # how many tokens were read


class Bottleneck(nn.Module):
    """The decoder: replaces each output from the first bottleneck token on by norm(z + network(z)).

    z is the output at the bottleneck token plus a learned vector for the distance to it. The compression task of the MAD suite
    has such a decoder, too (Poli et al. 2024, arXiv:2403.17844). There the vectors of the distances are fixed sines and cosines,
    and the network of two layers has the width D and no residual connection.
    """

    def __init__(self, token: int, network: nn.Module, d_model: int, max_length: int) -> None:
        """`network` maps (..., D) to (..., D) at each position. No instance has more than `max_length` tokens."""
        super().__init__()
        self.token = token
        self.distances = nn.Embedding(max_length, d_model)
        self.network = network
        self.norm = nn.LayerNorm(d_model)

    def forward(self, outputs: Tensor, inputs: Tensor, state: BottleneckState) -> tuple[Tensor, BottleneckState]:
        """Outputs of the blocks (B, L, D) at the tokens `inputs` (B, L) -> (B, L, D), and the state after them.

        Positions may come at once, or one after the other. Rows before the first bottleneck token are as they were. A UserError
        if there are more tokens than an instance has.
        """
        length, began = inputs.shape[1], state.distance >= 0
        read = state.position + length
        require_positions(read, self.distances.num_embeddings)  # of numbers in Python: a GPU need not tell its values
        is_token = inputs == self.token
        first = is_token.int().argmax(1)
        after = began[:, None] | (is_token.cumsum(1) > 0)
        vector = torch.where(began[:, None], state.vector, outputs.take_along_dim(first[:, None, None], 1)[:, 0])
        start = torch.where(began, state.distance + 1, -first)  # the distance of the first position
        distance = start[:, None] + torch.arange(length, device=inputs.device)
        z = vector[:, None] + self.distances(distance.clamp(min=0))
        decoded = torch.where(after[..., None], self.norm(z + self.network(z)), outputs)
        there = after[:, -1]
        last = BottleneckState(
            torch.where(there[:, None], vector, state.vector),
            torch.where(there, distance[:, -1], state.distance),
            read,
        )
        return decoded, last

    def init_state(self, batch: int, like: Tensor) -> BottleneckState:
        """The state of `batch` streams before their first token, with the device and the type of `like`, (..., D)."""
        return BottleneckState(
            like.new_zeros(batch, like.shape[-1]), torch.full((batch,), -1, dtype=torch.int64, device=like.device)
        )

    def state_bytes(self) -> int:
        """Bytes of state for one sequence in float32: the vector and the distance."""
        return 4 * self.distances.embedding_dim + 8
