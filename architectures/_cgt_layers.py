"""The blocks of CGT: attention and an MLP for each of its two streams, alike for whole sequences and single positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.backbone import embedding, sinusoids
from regbench.models.rotary import rotate
from regbench.ops.attention import attention
from regbench.tasks.base import IO
from regbench.utils.errors import UserError


@dataclass
class Cache:
    """Keys and values of the positions read so far, (B, H, t, K) each; None before the first. It grows with the stream."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def nbytes(self) -> int:
        """Bytes it holds now."""
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes


class Reader(nn.Module):
    """What brings tokens to one stream: a vector for each token and, unless positions are rotary, one for each position."""

    def __init__(self, io: IO, width: int, *, learned_positions: bool, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding(io, width)
        self.positions: nn.Embedding | None = None
        if learned_positions:
            self.positions = nn.Embedding(io.max_length, width)
            with torch.no_grad():
                self.positions.weight.copy_(sinusoids(io.max_length, width) * 0.02 * 2**0.5)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, start: int = 0) -> Tensor:
        """Tokens (B, L), or vectors (B, L, D_in), at the positions start, start + 1, ... -> (B, L, D).

        Raises:
            UserError: a position is past the last that was learned.
        """
        x = self.embedding(inputs)
        if self.positions is not None:
            end, longest = start + inputs.shape[1], self.positions.num_embeddings
            if end > longest:
                raise UserError(
                    f"a sequence of {end} tokens is longer than the {longest} positions this model has learned"
                )
            x = x + self.positions.weight[start:end]
        out: Tensor = self.dropout(x)
        return out


class Attention(nn.Module):
    """Causal softmax attention that reads vectors of one width and gives vectors of another: (B, L, D_in) -> (B, L, D_out).

    Queries and keys begin with the same weights where `mimetic` says so, as in `architectures/transformer.py`.
    """

    def __init__(self, d_in: int, d_out: int, n_heads: int, *, rotary: bool, mimetic: bool, bias: bool = False) -> None:
        super().__init__()
        self.n_heads, self.rotary = n_heads, rotary
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=bias)
        self.out = nn.Linear(d_out, d_out, bias=False)
        if mimetic:
            with torch.no_grad():
                query, key, _ = self.qkv.weight.chunk(3)
                nn.init.normal_(query, std=(3 / d_in) ** 0.5)
                key.copy_(query)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, L, D_in) -> (B, L, D_out). With a cache the L positions follow those in it; then L is 1, or the cache is empty."""
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
        out: Tensor = self.out(z.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """Two linear maps with a GELU between them, four times as wide as what comes out: (B, L, D_in) -> (B, L, D_out)."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_in, 4 * d_out)
        self.down = nn.Linear(4 * d_out, d_out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D_in) -> (B, L, D_out)."""
        down: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return down


class Block(nn.Module):
    """The attention and the MLP of one stream with the norms before them. Who reads what is the model's affair.

    width: of the stream, D.  reads: width of what attention and MLP read: D, or for y the widths of x and y together.
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
        """A stream that reads itself alone: (B, L, D) -> (B, L, D)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), cache))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


def both_streams(
    x: Tensor, y: Tensor, x_block: Block, y_block: Block, x_cache: Cache | None = None, y_cache: Cache | None = None
) -> tuple[Tensor, Tensor]:
    """One block of both streams (CGT Appendix B.1): x reads x; y reads both. (B, L, d_x), (B, L, d_y) -> the same.

    y reads x as x's own norms leave it, so that there is no other way from y to x than through what y makes of it.
    """
    h = x_block.attention_norm(x)
    y = y + y_block.dropout(y_block.attention(torch.cat([h, y_block.attention_norm(y)], dim=-1), y_cache))
    x = x + x_block.dropout(x_block.attention(h, x_cache))
    h = x_block.mlp_norm(x)
    y = y + y_block.dropout(y_block.mlp(torch.cat([h, y_block.mlp_norm(y)], dim=-1)))
    x = x + x_block.dropout(x_block.mlp(h))
    return x, y
