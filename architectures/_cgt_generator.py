"""The operators T of CGT: near-identity maps of x whose low-rank part is mixed from templates by y (CGT section 3.1).

    T(x; y) = x + L(y) R(y)^T [x; 1],    L(y) = sum_m s_m(y) L_m,    R(y) = sum_m s_m(y) R_m,    s(y) = tanh(S [y; 1]) or softmax

with templates L_m (d_x, r) and R_m (d_x + 1, r), m = 1..M. The 1 below x gives T a bias, the 1 below y gives S one.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from architectures._cgt_layers import Block, Cache

Mixing = Literal["tanh", "softmax"]


class Operator(nn.Module):
    """One operator T.

    Neither L(y) nor R(y) is made for every position: that would be (B, L, (2 d_x + 1) r) numbers. R_m^T [x; 1] is computed for
    all templates at once and mixed, and so is what L_m makes of it: (B, L, M r).
    """

    def __init__(self, d_x: int, d_y: int, rank: int, templates: int, mixing: Mixing) -> None:
        super().__init__()
        self.rank, self.templates, self.mixing = rank, templates, mixing
        self.mix = nn.Linear(d_y, templates)
        self.right = nn.Linear(d_x, templates * rank)
        self.left = nn.Linear(templates * rank, d_x, bias=False)
        # T begins near the identity, but not at it: at L = 0 nothing would teach R. Softmax weights are smaller by far.
        nn.init.normal_(self.left.weight, std=0.02 if mixing == "tanh" else 0.02 * templates)

    def weights(self, y: Tensor) -> Tensor:
        """s(y): how much of each template. (..., d_y) -> (..., M)."""
        mixed: Tensor = self.mix(y)
        return mixed.tanh() if self.mixing == "tanh" else mixed.softmax(-1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, L, d_x) and (B, L, d_y), or (B, 1, d_y) for a y that stands still -> (B, L, d_x)."""
        weights = self.weights(y)[..., None]
        read = (weights * self.right(x).unflatten(-1, (self.templates, self.rank))).sum(-2, keepdim=True)
        out: Tensor = x + self.left((weights * read).flatten(-2))
        return out

    def matrices(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """L(y) and R(y) themselves: (..., d_y) -> (..., d_x, r) and (..., d_x + 1, r)."""
        weights = self.weights(y)
        left = self.left.weight.unflatten(1, (self.templates, self.rank))
        right = torch.cat([self.right.weight, self.right.bias[:, None]], dim=1)
        right = right.unflatten(0, (self.templates, self.rank))
        return torch.einsum("...m,xmr->...xr", weights, left), torch.einsum("...m,mrx->...xr", weights, right)


class GuidedBlock(nn.Module):
    """The operators before the attention and before the MLP of one block of x from layer l on."""

    def __init__(self, d_x: int, d_y: int, rank: int, templates: int, mixing: Mixing) -> None:
        super().__init__()
        self.before_attention = Operator(d_x, d_y, rank, templates, mixing)
        self.before_mlp = Operator(d_x, d_y, rank, templates, mixing)

    def forward(self, x: Tensor, y: Tensor, block: Block, cache: Cache | None = None) -> Tensor:
        """x + attention(T(norm(x); y)), then the same with the MLP: (B, L, d_x), (B, L or 1, d_y) -> (B, L, d_x).

        T stands behind the norm: before it, it could not be folded into the matrices that follow.
        """
        x = x + block.dropout(block.attention(self.before_attention(block.attention_norm(x), y), cache))
        out: Tensor = x + block.dropout(block.mlp(self.before_mlp(block.mlp_norm(x), y)))
        return out
