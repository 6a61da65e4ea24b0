"""The constructed linear module: y = W x + b, its way back, and its descent, each by linear attention to prefix tokens.

One set of maps serves all matrices of all layers. The maps hold 0, 1 and -rate alone. The matrices are in prefix tokens
(see `layout.py`). In head (r, s) of the forward pass, prefix token j answers a query with <x, W[j R + r]> over shard s, in
coordinate j. Then maps sum the shards and put each number into its row.

Paper: section 3.2 and Appendix C.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from architectures.tint.layout import Layout, dimensionwise, splitwise


class LinearModule(nn.Module):
    """Forward, backward and descent. Tokens (B, T, D), prefix tokens (B, K, D)."""

    forward_query: Tensor
    forward_key: Tensor
    forward_value: Tensor
    forward_shards: Tensor
    forward_rows: Tensor
    forward_slots: Tensor
    backward_copies: Tensor
    backward_query: Tensor
    backward_value: Tensor
    backward_slots: Tensor
    descent_copies: Tensor
    descent_key: Tensor
    positions: Tensor
    at_bias: Tensor
    at_main: Tensor
    at_all: Tensor

    def __init__(self, layout: Layout, rate: float) -> None:
        """Builds the maps.

        Args:
            layout: The sizes.
            rate: Learning rate of the descent.
        """
        super().__init__()
        self.layout = layout
        bias, main = layout.rows, range(layout.rows)
        copies = layout.between_slots({(r, 0): 1.0 for r in main})
        values = {(r, 1): -rate for r in main}, {(bias, 0): -rate}
        buffers = {
            "forward_query": copies,
            "forward_key": layout.between_slots({(r, r): 1.0 for r in main}),
            "forward_value": layout.between_slots({(bias, bias): 1.0}),
            "forward_shards": layout.sum_of_shards(),
            "forward_rows": layout.to_rows(),
            "forward_slots": layout.between_slots({(0, slot): 1.0 for slot in range(layout.slots)}),
            "backward_copies": copies.clone(),
            "backward_query": layout.from_rows(),
            "backward_value": layout.between_slots({(r, r): 1.0 for r in main}),
            "backward_slots": layout.between_slots({(0, r): 1.0 for r in main}),
            "descent_copies": copies.clone(),
            "descent_key": layout.from_rows(),
            "descent_value_both": layout.between_slots(values[0] | values[1]),
            "descent_value_weight": layout.between_slots(values[0]),
            "descent_value_bias": layout.between_slots(values[1]),
            "positions": layout.position_table(),
            "at_bias": layout.head_switch(False, True),
            "at_main": layout.head_switch(True, False),
            "at_all": layout.head_switch(True, True),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.to(torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor, prefix: Tensor) -> Tensor:
        """Slot 0 of the result is W x + b for x in slot 0; the other slots are 0: (B, T, D) -> (B, T, D)."""
        query = self._heads(dimensionwise(x, self.forward_query)) + self._first() * self.at_bias
        key = self._heads(dimensionwise(prefix, self.forward_key)) + self._own() * self.at_bias
        value = self._heads(dimensionwise(prefix, self.forward_value)) + self._own() * self.at_main
        found = dimensionwise(_attend(query, key, value), self.forward_shards)
        return dimensionwise(splitwise(found, self.forward_rows), self.forward_slots)

    def backward(self, g: Tensor, prefix: Tensor) -> Tensor:
        """Slot 0 of the result is W^T g for g in slot 0; the other slots are 0: (B, T, D) -> (B, T, D)."""
        query = self._heads(splitwise(dimensionwise(g, self.backward_copies), self.backward_query))
        key = (self._own() * self.at_main).expand(len(prefix), -1, -1, -1)
        value = self._heads(dimensionwise(prefix, self.backward_value))
        return dimensionwise(_attend(query, key, value), self.backward_slots)

    def descent(self, tokens: Tensor, prefix: Tensor, seen: Tensor, learn: str = "both") -> Tensor:
        """The prefix tokens after one step on the tokens that are seen.

        Args:
            tokens: (B, T, D) with g, the gradient of the output, in slot 0, and x, the input, in slot 1.
            prefix: (B, K, D).
            seen: Positions to learn from, (B, T) bool.
            learn: "both", "weight" or "bias".
        """
        query = (self._own() * self.at_all).expand(len(prefix), -1, -1, -1)
        key = self._heads(splitwise(dimensionwise(tokens, self.descent_copies), self.descent_key))
        key = (key + self._first() * self.at_bias) * seen[..., None, None]
        value = self._heads(dimensionwise(tokens, getattr(self, f"descent_value_{learn}")))
        return prefix + _attend(query, key, value)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, H, d/Sp)."""
        return x.unflatten(-1, (self.layout.n_heads, -1))

    def _own(self) -> Tensor:
        """What the prefix tokens get of their positions, (1, K, 1, d/Sp)."""
        return self.positions[None, : self.layout.prefixes, None]

    def _first(self) -> Tensor:
        """What each token of the text gets of its position, (1, 1, 1, d/Sp). All get the same."""
        return self.positions[None, self.layout.prefixes, None, None]


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Linear attention, without softmax and scale: (B, N, H, w), (B, M, H, w) twice -> (B, N, H w)."""
    weights = query.transpose(1, 2) @ key.permute(0, 2, 3, 1)
    return (weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)
