"""PaTH attention: softmax attention whose positions are products of reflections that the tokens in between set."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from architectures._attention import Cache, empty_cache
from architectures._delta_mixer import unit
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.short_conv import ShortConv

State = tuple[Tensor, Cache]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, D), and keys and values (B, H, t, K)."""

CHUNK = 64
"""Positions whose reflections are one matrix."""


class PathAttention(mixer.Mixer):
    """PaTH. Yang et al. 2025, sections 3.1 and 3.2.

        q, k, v = query(x), key(x), value(x)
        w       = SiLU(conv(reflect(x))), of length 1          reflect has rank `rank`; conv is causal and depthwise
        beta    = 2 sigmoid(strength(x))                       one for each head
        H_t     = I - beta_t w_t^T w_t                         a generalised Householder matrix
        A_ij proportional to exp(q_i H_i H_{i-1} ... H_{j+1} k_j^T / sqrt(d_k)) for j <= i
        y_i     = out(sum over j of A_ij v_j)

    Within a chunk all products follow from one triangular system (the UT transform): with W and B the rows w and beta w, and
    T = (I + tril(B W^T, -1))^-1, the product of the whole chunk is I - W^T T B. From chunk to chunk queries pass through such
    matrices, from the nearest to the farthest. A block of queries is computed again for the backward pass, so that memory grows
    as L. Streaming multiplies all past keys by each new H. There are no other positions. The forget gate of PaTH-FoX and the
    optional norms of q and k are left out.
    """

    class Options(mixer.Options):
        """The options of PaTH attention."""

        rank: int = Field(default=32, ge=1, description="rank of the map to the reflections")
        d_conv: int = Field(default=3, ge=1, description="width of the convolution of the reflections")

    family = "attention"
    paper = mixer.Paper(
        "PaTH Attention: Position Encoding via Accumulating Householder Transformations",
        "Yang et al.",
        2025,
        arxiv="2505.16381",
    )
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model = options.d_model
        self.n_heads, self.width = options.n_heads, head_width(d_model, options.n_heads)
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        down, up = nn.Linear(d_model, options.rank, bias=False), nn.Linear(options.rank, d_model, bias=False)
        self.reflect = nn.Sequential(down, up)
        self.conv = ShortConv(d_model, options.d_conv)
        self.strength = nn.Linear(d_model, options.n_heads)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        inputs, _ = self._inputs(x, self.conv.init_window(len(x), x.device, x.dtype))
        with torch.autocast(x.device.type, enabled=False):
            z, *_ = path_attention(*inputs)
        y: Tensor = self.out(join_heads(z))
        return y

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position. It grows with the stream."""
        cache = empty_cache(batch, self.n_heads, (self.width, self.width), device, dtype)
        return self.conv.init_window(batch, device, dtype), cache

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        window, cache = state
        inputs, window = self._inputs(x, window)
        with torch.autocast(x.device.type, enabled=False):
            z, keys, products = path_attention(*inputs, cache)
            # Each key passes through the products of the chunks after its own, a past one through all.
            past, parts = cache[0].shape[2], []
            for first, part in zip((0, *range(1, len(products) + 1)), _chunks(keys, past), strict=True):
                for product in products[first:]:
                    part = part - part @ product.mT
                parts.append(part)
        y: Tensor = self.out(join_heads(z))
        return y, (window, (torch.cat(parts, 2), torch.cat([cache[1], inputs[2]], 2)))

    def weights(self, x: Tensor) -> Tensor:
        """What each head attends to, (B, L, D) -> (B, H, L, L)."""
        (q, k, v, w, beta), _ = self._inputs(x, self.conv.init_window(len(x), x.device, x.dtype))
        one_hot = torch.eye(x.shape[1], dtype=v.dtype, device=x.device).expand(*v.shape[:2], -1, -1)
        z, *_ = path_attention(q, k, one_hot, w, beta)
        return z

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """`forward` with these weights in the place of its own: (B, L, D), (B, H, L, L) -> (B, L, D)."""
        y: Tensor = self.out(join_heads(weights @ split_heads(self.value(x), self.n_heads)))
        return y

    def _inputs(self, x: Tensor, window: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
        """q, k, v and w (B, H, L, K) and beta (B, H, L, 1) in float32, and the window of the convolution."""
        w, window = self.conv(self.reflect(x), window)
        q, k, v, w = (
            full(split_heads(part, self.n_heads)) for part in (self.query(x), self.key(x), self.value(x), F.silu(w))
        )
        beta = 2 * split_heads(full(self.strength(x)).sigmoid(), self.n_heads)
        return (q, k, v, unit(w), beta), window


def path_attention(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, cache: Cache | None = None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The attention of L positions that follow on those of a cache.

    Args:
        q: (B, H, L, K).
        k: (B, H, L, K).
        v: (B, H, L, V).
        w: (B, H, L, K), of length 1.
        beta: (B, H, L, 1).
        cache: keys and values before them.

    Returns:
        z (B, H, L, V); the keys of the cache, and then those of each chunk after its own products, (B, H, t + L, K); and of each
        chunk W^T T B, (B, H, K, K).
    """
    past = 0 if cache is None else cache[0].shape[2]
    keys, values, products = (
        [] if cache is None else [cache[0]],
        v if cache is None else torch.cat([cache[1], v], 2),
        [],
    )
    pieces = []
    for q_c, k_c, w_c, beta_c in zip(*(part.split(CHUNK, 2) for part in (q, k, w, beta)), strict=True):
        TB, TBk = _solve(k_c, w_c, beta_c)
        pieces.append((q_c, k_c, w_c, TB, TBk))
        keys.append(k_c - TBk.mT @ w_c)
        products.append(w_c.mT @ TB)
    held, outputs, end = torch.cat(keys, 2), [], past
    for number, piece in enumerate(pieces):
        start, end = end, end + piece[0].shape[2]
        given = (*piece, held[:, :, :start], values[:, :, :end], *products[:number])
        outputs.append(checkpoint(_block, past, *given, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outputs, 2), held, products


def _solve(k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Of one chunk T B (B, H, C, K), and T times the lower triangle of B k^T (B, H, C, C)."""
    B = beta * w
    system = torch.eye(k.shape[2], dtype=k.dtype, device=k.device) + (B @ w.mT).tril(-1)
    both = torch.linalg.solve_triangular(
        system, torch.cat([B, (B @ k.mT).tril(-1)], -1), upper=False, unitriangular=True
    )
    return both[..., : k.shape[3]], both[..., k.shape[3] :]


def _block(
    past: int,
    q: Tensor,
    k: Tensor,
    w: Tensor,
    TB: Tensor,
    TBk: Tensor,
    keys: Tensor,
    values: Tensor,
    *products: Tensor,
) -> Tensor:
    """What a chunk of queries reads, (B, H, C, V).

    Args:
        past: how many of the keys are of a cache.
        q: (B, H, C, K), and so k and w of the chunk.
        k: its keys.
        w: its reflections.
        TB: (B, H, C, K), and TBk (B, H, C, C), as of `_solve`.
        TBk: see TB.
        keys: (B, H, t, K), those before the chunk, each after the products of its own chunk.
        values: (B, H, t + C, V).
        products: of each chunk before it, (B, H, K, K).
    """
    scale = q.shape[-1] ** -0.5
    reflected = (q @ w.mT).tril()
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = [(q @ k.mT - reflected @ TBk).masked_fill(future, float("-inf"))]
    q = q - reflected @ TB
    first, *chunks = _chunks(keys, past)
    for part, product in zip(chunks[::-1], products[::-1], strict=True):
        scores.append(q @ part.mT)
        q = q - q @ product
    scores.append(q @ first.mT)
    return (torch.cat(scores[::-1], -1) * scale).softmax(-1) @ values


def _chunks(keys: Tensor, past: int) -> list[Tensor]:
    """The keys of the cache, and those of each chunk."""
    return [keys[:, :, :past], *(keys[:, :, past:].split(CHUNK, 2) if keys.shape[2] > past else ())]
