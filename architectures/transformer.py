"""Transformer: causal softmax self-attention with learned or rotary positions.

ICLL A.1: q = W_q x, k = W_k x, v = W_v x, A_ij proportional to exp(<q_i, k_j> / sqrt(d_k)) for j <= i, z = A v, y = W_o z. Its
Eq. 22 leaves out the factor 1 / sqrt(d_k). Learned positions are added to the embedding (Eq. 16), as in the paper's synthetic
experiments. Rotary positions rotate q and k (Su et al. 2021, Eq. 34).

Queries and keys begin with independent weights, as published. With `mimetic` they begin with the same weights (Trockman and
Kolter 2023, arXiv:2305.09828). At first a position then attends to similar positions: to its neighbours, which have similar
sinusoids, and to equal tokens. An induction head needs both.

`extra_ngram_heads` puts n-gram heads beside the softmax heads of every layer (ICLL section 6, footnote 6). A head of order n
computes z_t = A(n)_t v with values of its own, and W_o reads all heads. The tokens determine the weights A(n), so the weights are
not learned, and no (L, L) matrix is made.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.heads import head_width, join_heads, start_alike
from regbench.models.mixer import Mixer, Options, Paper
from regbench.models.rotary import rotate
from regbench.ops.attention import attention
from regbench.ops.attention.naive import attention_weights
from regbench.ops.ngram import NGramIndex, NGramState, ngram_head
from regbench.ops.ngram.naive import ngram_matches, ngram_weights

State = tuple[Tensor, Tensor, list[NGramState]]
"""Keys and values so far (B, H, L, K) each, and the sums of each n-gram head."""


class Transformer(Mixer):
    """Multi-head self-attention (B, L, D) -> (B, L, D)."""

    class Options(Options):
        """The options of the transformer."""

        n_heads: int = Field(default=8, ge=1, description="attention heads")
        positions: Literal["learned", "rotary"] = Field(default="learned", description="how positions are encoded")
        mimetic: bool = Field(default=False, description="whether queries and keys begin with the same weights")
        extra_ngram_heads: tuple[Annotated[int, Field(ge=1, le=8)], ...] = Field(
            default=(), description="orders of n-gram heads beside those n_heads, in each layer, e.g. [1,2,3]"
        )

    family = "attention"
    paper = Paper("Attention Is All You Need", "Vaswani et al.", 2017, "1706.03762")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Transformer.Options) -> None:
        super().__init__(options)
        self.n_heads = options.n_heads
        self.rotary = options.positions == "rotary"
        self.width = head_width(options.d_model, options.n_heads, rotary=self.rotary)
        self.qkv = nn.Linear(options.d_model, 3 * options.d_model, bias=False)
        self.orders = options.extra_ngram_heads
        self.reads_tokens = bool(self.orders)
        extra = len(self.orders) * self.width
        self.out = nn.Linear(options.d_model + extra, options.d_model, bias=False)
        if options.mimetic:
            start_alike(*self.qkv.weight.detach().chunk(3)[:2])
        self.ngram_values = nn.Linear(options.d_model, extra, bias=False) if extra else None

    def forward(self, x: Tensor, index: NGramIndex | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D). N-gram heads need the index of the tokens."""
        q, k, v = self._heads(x)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        z = join_heads(attention(q, k, v))
        if self.ngram_values is not None:
            assert index is not None
            pairs = zip(self.ngram_values(x).chunk(len(self.orders), dim=-1), self.orders, strict=True)
            z = torch.cat([z, *(ngram_head(index.tokens, v, order, index=index) for v, order in pairs)], dim=-1)
        y: Tensor = self.out(z)
        return y

    def weights(self, x: Tensor, index: NGramIndex | None = None) -> Tensor:
        """What each head attends to, (B, L, D) -> (B, H, L, L). The rows of n-gram heads stand after those of the others."""
        q, k, _ = self._heads(x)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        learned = attention_weights(q, k)
        if index is None:
            return learned
        static = [ngram_weights(ngram_matches(index.tokens, order), x.dtype) for order in self.orders]
        return torch.cat([learned, *(rows[:, None] for rows in static)], dim=1)

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """`forward` with these weights in the place of its own: (B, L, D), (B, H, L, L) -> (B, L, D)."""
        z = join_heads(weights[:, : self.n_heads] @ self._heads(x)[2])
        if self.ngram_values is not None:
            values = self.ngram_values(x).chunk(len(self.orders), dim=-1)
            z = torch.cat([z, *(weights[:, self.n_heads + i] @ v for i, v in enumerate(values))], dim=-1)
        y: Tensor = self.out(z)
        return y

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position. It grows with the stream."""
        empty = torch.zeros(batch, self.n_heads, 0, self.width, device=device, dtype=dtype)
        return empty, empty, [NGramState(order) for order in self.orders]

    def step(self, x: Tensor, state: State, tokens: Tensor | None = None) -> tuple[Tensor, State]:
        """One position: (B, D) and the state before it -> (B, D) and the state after it. N-gram heads need its tokens (B,)."""
        q, k, v = self._heads(x[:, None])
        keys, values, ngrams = state
        if self.rotary:
            q, k = rotate(q, start=keys.shape[2]), rotate(k, start=keys.shape[2])
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        z = F.scaled_dot_product_attention(q, keys, values).flatten(1)
        if self.ngram_values is not None:
            assert tokens is not None
            pairs = zip(self.ngram_values(x).chunk(len(self.orders), dim=-1), ngrams, strict=True)
            z = torch.cat([z, *(ngram.step(tokens, v) for v, ngram in pairs)], dim=-1)
        y: Tensor = self.out(z)
        return y, (keys, values, ngrams)

    def _heads(self, x: Tensor) -> Tensor:
        """Queries, keys and values: (B, L, D) -> (3, B, H, L, K)."""
        return self.qkv(x).view(*x.shape[:2], 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)

    @classmethod
    def learned_positions(cls, options: Any) -> bool:
        """Whether they are asked for (ICLL Eq. 16)."""
        return options.positions == "learned"
