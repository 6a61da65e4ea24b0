"""The layers of CGT: embedding, attention and MLP of its two streams, and the operators T that y generates.

The operators (CGT section 3.1) are near-identity maps of x. Their low-rank part is mixed from templates by y:

    T(x; y) = x + L(y) R(y)^T [x; 1],    L(y) = sum_m s_m(y) L_m,    R(y) = sum_m s_m(y) R_m,    s(y) = tanh(S [y; 1]) or softmax

The templates are L_m (d_x, r) and R_m (d_x + 1, r), m = 1..M. The 1 below x gives T a bias. The 1 below y gives S a bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.backbone import embedding, position_embedding
from regbench.models.heads import join_heads, start_alike
from regbench.models.model import require_positions
from regbench.models.rotary import rotate
from regbench.ops.attention import attention
from regbench.ops.attention.naive import attention_weights
from regbench.ops.gelu import gelu
from regbench.tasks.base import IO

Mixing = Literal["tanh", "softmax"]


@dataclass
class Cache:
    """Keys and values of the t positions read so far, (B, H, t, K) each; None before the first."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes


class Reader(nn.Module):
    """The embedding of one stream: a vector for each token, plus a learned one for each position unless those are rotary."""

    def __init__(self, io: IO, width: int, *, learned_positions: bool, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding(io, width)
        self.positions: nn.Embedding | None = None
        if learned_positions:
            self.positions = position_embedding(io, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, start: int = 0) -> Tensor:
        """The stream before its first block.

        Args:
            inputs: Tokens (B, L), or vectors (B, L, D_in).
            start: Position of the first of them.

        Returns:
            (B, L, D).

        Raises:
            UserError: A position is after the last one that was learned.
        """
        x = self.embedding(inputs)
        if self.positions is not None:
            end = start + inputs.shape[1]
            require_positions(end, self.positions.num_embeddings)
            x = x + self.positions.weight[start:end]
        out: Tensor = self.dropout(x)
        return out


class Attention(nn.Module):
    """Causal softmax attention, (B, L, D_in) -> (B, L, D_out).

    With `mimetic`, queries and keys start with the same weights, as in `architectures/transformer.py`.
    """

    def __init__(self, d_in: int, d_out: int, n_heads: int, *, rotary: bool, mimetic: bool, bias: bool = False) -> None:
        super().__init__()
        self.n_heads, self.rotary = n_heads, rotary
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=bias)
        self.out = nn.Linear(d_out, d_out, bias=False)
        if mimetic:
            start_alike(*self.qkv.weight.detach().chunk(3)[:2])

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Attention over the given positions and those in the cache.

        Args:
            x: (B, L, D_in). L is 1 if the cache is not empty.
            cache: Keys and values of the positions before; those of x are added.

        Returns:
            (B, L, D_out).
        """
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        if cache is None or cache.keys is None or cache.values is None:
            if self.rotary:
                q, k = rotate(q), rotate(k)
            z = attention(q, k, v)
            if cache is not None:
                cache.keys, cache.values = k, v
        else:
            assert x.shape[1] == 1
            if self.rotary:
                q, k = rotate(q, start=cache.keys.shape[2]), rotate(k, start=cache.keys.shape[2])
            cache.keys, cache.values = torch.cat([cache.keys, k], dim=2), torch.cat([cache.values, v], dim=2)
            z = F.scaled_dot_product_attention(q, cache.keys, cache.values)
        out: Tensor = self.out(join_heads(z))
        return out

    def weights(self, x: Tensor) -> Tensor:
        """What each head attends to, (B, L, D_in) -> (B, H, L, L)."""
        q, k, _ = self.qkv(x).view(*x.shape[:2], 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        return attention_weights(rotate(q), rotate(k)) if self.rotary else attention_weights(q, k)


class MLP(nn.Module):
    """Two linear maps with a GELU between them; the hidden width is 4 D_out. (B, L, D_in) -> (B, L, D_out)."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_in, 4 * d_out)
        self.down = nn.Linear(4 * d_out, d_out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D_in) -> (B, L, D_out)."""
        down: Tensor = self.down(gelu(self.up(x)))
        return down


class Block(nn.Module):
    """Attention and MLP of one stream, with the norms before them.

    `width` is D, the width of the stream. `reads` is the width of the input of attention and MLP: D for x, d_x + d_y for y.
    """

    def __init__(
        self, width: int, reads: int, n_heads: int, *, rotary: bool, mimetic: bool, dropout: float, bias: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(reads, width, n_heads, rotary=rotary, mimetic=mimetic, bias=bias)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(reads, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """One block of a stream that reads only itself: (B, L, D) -> (B, L, D)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), cache))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


def both_streams(
    x: Tensor, y: Tensor, x_block: Block, y_block: Block, x_cache: Cache | None = None, y_cache: Cache | None = None
) -> tuple[Tensor, Tensor]:
    """One block of both streams (CGT Appendix B.1): x reads x, y reads x and y.

    y reads x after the norms of x.

    Args:
        x: (B, L, d_x).
        y: (B, L, d_y).
        x_block: Attention and MLP of x.
        y_block: Attention and MLP of y.
        x_cache: Keys and values of x before these positions.
        y_cache: Keys and values of y before these positions.

    Returns:
        x and y after the block, in the same shapes.
    """
    h = x_block.attention_norm(x)
    y = y + y_block.dropout(y_block.attention(torch.cat([h, y_block.attention_norm(y)], dim=-1), y_cache))
    x = x + x_block.dropout(x_block.attention(h, x_cache))
    h = x_block.mlp_norm(x)
    y = y + y_block.dropout(y_block.mlp(torch.cat([h, y_block.mlp_norm(y)], dim=-1)))
    x = x + x_block.dropout(x_block.mlp(h))
    return x, y


class Operator(nn.Module):
    """One operator T.

    L(y) and R(y) of all positions would be (B, L, (2 d_x + 1) r) numbers; they are not computed. R_m^T [x; 1] is computed for
    all templates together, (B, L, M r), and mixed. Then all L_m are applied together. Without `bias` no 1 stands below x and y
    (2024, section 3.4), so T(0; y) = 0.
    """

    def __init__(self, d_x: int, d_y: int, rank: int, templates: int, mixing: Mixing, *, bias: bool = True) -> None:
        super().__init__()
        self.rank, self.templates, self.mixing = rank, templates, mixing
        self.mix = nn.Linear(d_y, templates, bias=bias)
        self.right = nn.Linear(d_x, templates * rank, bias=bias)
        self.left = nn.Linear(templates * rank, d_x, bias=False)
        # T starts near the identity, but not at it: at L = 0 the gradient of R is 0. Softmax weights are much smaller.
        nn.init.normal_(self.left.weight, std=0.02 if mixing == "tanh" else 0.02 * templates)

    def weights(self, y: Tensor) -> Tensor:
        """s(y), the weights of the templates: (..., d_y) -> (..., M)."""
        mixed: Tensor = self.mix(y)
        return mixed.tanh() if self.mixing == "tanh" else mixed.softmax(-1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """T(x; y): (B, L, d_x), and (B, L, d_y) or for a constant y (B, 1, d_y) -> (B, L, d_x)."""
        weights = self.weights(y)[..., None]
        read = (weights * self.right(x).unflatten(-1, (self.templates, self.rank))).sum(-2, keepdim=True)
        out: Tensor = x + self.left((weights * read).flatten(-2))
        return out

    def matrices(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """L(y) and R(y): (..., d_y) -> (..., d_x, r) and (..., d_x + 1, r)."""
        weights = self.weights(y)
        left = self.left.weight.unflatten(1, (self.templates, self.rank))
        weight: Tensor = self.right.weight
        last = torch.zeros_like(weight[:, 0]) if self.right.bias is None else self.right.bias
        right = torch.cat([weight, last[:, None]], dim=1)
        right = right.unflatten(0, (self.templates, self.rank))
        return torch.einsum("...m,xmr->...xr", weights, left), torch.einsum("...m,mrx->...xr", weights, right)


class GuidedBlock(nn.Module):
    """The operators before the attention and before the MLP of one block of x above l."""

    def __init__(self, d_x: int, d_y: int, rank: int, templates: int, mixing: Mixing, *, bias: bool = True) -> None:
        super().__init__()
        self.before_attention = Operator(d_x, d_y, rank, templates, mixing, bias=bias)
        self.before_mlp = Operator(d_x, d_y, rank, templates, mixing, bias=bias)

    def forward(self, x: Tensor, y: Tensor, block: Block, cache: Cache | None = None) -> Tensor:
        """One block of x: x + attention(T(norm(x); y)), then the same with the MLP.

        T stands after the norm. Before the norm it could not be folded into the next matrix.

        Args:
            x: (B, L, d_x).
            y: (B, L, d_y), or for a constant y (B, 1, d_y).
            block: Attention and MLP of x.
            cache: Keys and values of x before these positions.

        Returns:
            (B, L, d_x).
        """
        x = x + block.dropout(block.attention(self.before_attention(block.attention_norm(x), y), cache))
        out: Tensor = x + block.dropout(block.mlp(self.before_mlp(block.mlp_norm(x), y)))
        return out
