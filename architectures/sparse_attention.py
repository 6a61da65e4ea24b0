"""Sparse attention: softmax attention to a few blocks of the past, chosen by their content (MoBA)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from architectures._attention import Cache, empty_cache
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.rotary import rotate

CHUNK = 128
"""Queries whose scores are held at once."""


class SparseAttention(mixer.Mixer):
    """MoBA, mixture of block attention. Lu et al. 2025, section 2.2.

        q, k, v = query(x), key(x), value(x)                   q and k with rotary positions
        I_n     = the positions n C to (n + 1) C - 1           C = block_size
        s_n     = <q_i, mean of k_j over j in I_n>             for blocks that end before the query's own begins
        g_n     = whether n is the query's own block, or s_n is among the largest `blocks` - 1
        A_ij proportional to exp(<q_i, k_j> / sqrt(d_k)) for j <= i with g = 1 in the block of j
        y_i     = out(sum over j of A_ij v_j)

    The choice has no parameters and no gradient. Each head chooses for itself. With as many blocks as there are it is attention.
    All scores are computed and those of other blocks left out, so that it takes attention's time; a chunk of queries is computed
    again for the backward pass, and memory grows as L. The authors keep full attention in the last layers of a large model: that
    is a `hybrid`.
    """

    class Options(mixer.Options):
        """The options of sparse attention."""

        block_size: int = Field(default=16, ge=1, description="positions of a block")
        blocks: int = Field(default=3, ge=1, description="blocks that a position reads, its own among them")
        positions: Literal["rotary", "learned", "none"] = Field(
            default="rotary", description="how positions are encoded"
        )

    family = "attention"
    paper = mixer.Paper("MoBA: Mixture of Block Attention for Long-Context LLMs", "Lu et al.", 2025, arxiv="2502.13189")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model = options.d_model
        self.n_heads, self.rotary = options.n_heads, options.positions == "rotary"
        self.width = head_width(d_model, options.n_heads, rotary=self.rotary)
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Cache:
        """The state before the first position. It grows with the stream: a block may be chosen at any time."""
        return empty_cache(batch, self.n_heads, (self.width, self.width), device, dtype)

    def advance(self, x: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        q, *new = self._heads(x, state[0].shape[2])
        keys, values = (torch.cat(pair, 2) for pair in zip(state, new, strict=True))
        y: Tensor = self.out(join_heads(self._attend(q, keys, values)))
        return y, (keys, values)

    def weights(self, x: Tensor) -> Tensor:
        """What each head attends to, (B, L, D) -> (B, H, L, L)."""
        q, k, v = self._heads(x, 0)
        one_hot = torch.eye(x.shape[1], dtype=v.dtype, device=x.device).expand(*v.shape[:2], -1, -1)
        return self._attend(q, k, one_hot)

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """`forward` with these weights in the place of its own: (B, L, D), (B, H, L, L) -> (B, L, D)."""
        y: Tensor = self.out(join_heads(weights @ split_heads(self.value(x), self.n_heads)))
        return y

    def _heads(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of positions from `start` on, (B, H, L, K) each, in float32: half precision may choose other blocks."""
        q, k, v = (full(split_heads(linear(x), self.n_heads)) for linear in (self.query, self.key, self.value))
        return (rotate(q, start), rotate(k, start), v) if self.rotary else (q, k, v)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What the last L positions read, (B, H, L, K), (B, H, t, K) and (B, H, t, V) -> (B, H, L, V)."""
        size, end, outputs = self.options.block_size, keys.shape[2] - q.shape[2], []
        whole = keys.detach()[:, :, : keys.shape[2] // size * size]
        means = whole.unflatten(2, (-1, size)).mean(3)  # (B, H, N, K)
        with torch.autocast(q.device.type, enabled=False):
            for part in q.split(CHUNK, 2):
                end += part.shape[2]
                given = (part, keys[:, :, :end], values[:, :, :end], means[:, :, : end // size])
                outputs.append(checkpoint(self._chunk, *given, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(outputs, 2)

    def _chunk(self, q: Tensor, keys: Tensor, values: Tensor, means: Tensor) -> Tensor:
        """What the last C positions read; `means` has all whole blocks up to them."""
        size, length = self.options.block_size, keys.shape[2]
        j = torch.arange(length, device=q.device)
        i = j[length - q.shape[2] :, None]
        past = torch.arange(means.shape[2], device=q.device) < i // size  # (C, N)
        s = (q.detach() @ means.mT).masked_fill(~past, float("-inf"))
        best = s.topk(min(self.options.blocks - 1, means.shape[2]), -1).indices
        chosen = torch.zeros_like(s, dtype=torch.bool).scatter(-1, best, True) & past
        chosen = F.pad(chosen.repeat_interleave(size, -1), (0, length - size * means.shape[2]))
        own = (j // size == i // size) & (j <= i)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=chosen | own)

    @classmethod
    def learned_positions(cls, options: Any) -> bool:
        """Whether they are asked for (ICLL Eq. 16)."""
        return bool(options.positions == "learned")
