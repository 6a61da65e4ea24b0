"""Transformer: causal softmax self-attention with learned or rotary positions.

ICLL A.1: q = W_q x, k = W_k x, v = W_v x, A_ij proportional to exp(<q_i, k_j> / sqrt(d_k)) for j <= i, z = A v, y = W_o z. Its
Eq. 22 leaves out the factor 1 / sqrt(d_k). Learned positions are added to the embedding (Eq. 16), as in the paper's synthetic
experiments. Rotary positions rotate q and k (Su et al. 2021, Eq. 34). With a window W only positions i - W < j <= i are attended
to (Beltagy et al. 2020, arXiv:2004.05150, section 3.1), so the state is fixed: the keys and values of the last W - 1 positions.

Queries and keys begin with independent weights, as published. With `mimetic` they begin with the same weights (Trockman and
Kolter 2023, arXiv:2305.09828). At first a position then attends to similar positions: to its neighbours, which have similar
sinusoids, and to equal tokens. An induction head needs both.

`extra_ngram_heads` puts n-gram heads beside the softmax heads of every layer (ICLL section 6, footnote 6). A head of order n
computes z_t = A(n)_t v with values of its own, and W_o reads all heads. The tokens determine the weights A(n), so the weights are
not learned, and no (L, L) matrix is made. A window does not limit them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from architectures._attention import Cache, attend, empty_cache
from regbench.models.heads import head_width, join_heads, start_alike
from regbench.models.mixer import Mixer, Options, Paper
from regbench.models.rotary import rotate
from regbench.ops.attention import attention
from regbench.ops.attention.naive import attention_weights
from regbench.ops.ngram import NGramIndex, NGramState, ngram_head
from regbench.ops.ngram.naive import ngram_matches, ngram_weights

State = tuple[Cache, list[NGramState], int]
"""Keys and values, the sums of each n-gram head, and the number of positions so far."""


class Transformer(Mixer):
    """Multi-head self-attention (B, L, D) -> (B, L, D)."""

    class Options(Options):
        """The options of the transformer."""

        n_heads: int = Field(default=8, ge=1, description="attention heads")
        positions: Literal["learned", "rotary", "none"] = Field(
            default="learned", description="how positions are encoded"
        )
        window: int = Field(
            default=0, ge=0, description="how many positions a head attends to, its own included; 0 for all"
        )
        mimetic: bool = Field(default=False, description="whether queries and keys begin with the same weights")
        extra_ngram_heads: tuple[Annotated[int, Field(ge=1, le=8)], ...] = Field(
            default=(), description="orders of n-gram heads beside those n_heads, in each layer, e.g. [1,2,3]"
        )

    family = "attention"
    paper = Paper("Attention Is All You Need", "Vaswani et al.", 2017, "1706.03762")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Transformer.Options) -> None:
        super().__init__(options)
        self.n_heads, self.window = options.n_heads, options.window
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
        z = join_heads(attention(q, k, v, window=self.window))
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
        learned = attention_weights(q, k, self.window)
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
        """The state before the first position. It grows with the stream, up to the window."""
        cache = empty_cache(batch, self.n_heads, (self.width, self.width), device, dtype)
        return cache, [NGramState(order) for order in self.orders], 0

    def step(self, x: Tensor, state: State, tokens: Tensor | None = None) -> tuple[Tensor, State]:
        """One position: (B, D) and the state before it -> (B, D) and the state after it. N-gram heads need its tokens (B,)."""
        z, state = self._attend(x[:, None], state)
        z = z[:, 0]
        if self.ngram_values is not None:
            assert tokens is not None
            pairs = zip(self.ngram_values(x).chunk(len(self.orders), dim=-1), state[1], strict=True)
            z = torch.cat([z, *(ngram.step(tokens, v) for v, ngram in pairs)], dim=-1)
        y: Tensor = self.out(z)
        return y, state

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it. There are no n-gram heads."""
        z, state = self._attend(x, state)
        return self.out(z), state

    def _attend(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """What the softmax heads read, (B, L, D) -> (B, L, D), and the state after it."""
        cache, ngrams, seen = state
        q, k, v = self._heads(x)
        if self.rotary:
            q, k = rotate(q, start=seen), rotate(k, start=seen)
        z, cache = attend(q, k, v, cache, self.window)
        return join_heads(z), (cache, ngrams, seen + x.shape[1])

    def _heads(self, x: Tensor) -> Tensor:
        """Queries, keys and values: (B, L, D) -> (3, B, H, L, K)."""
        return self.qkv(x).view(*x.shape[:2], 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)

    @classmethod
    def learned_positions(cls, options: Any) -> bool:
        """Whether they are asked for (ICLL Eq. 16)."""
        return options.positions == "learned"

    @classmethod
    def state_bytes(cls, options: Any) -> int | None:
        """Bytes of the keys and values in a window. None without one, as they grow with L."""
        if not options.window or options.extra_ngram_heads:
            return None
        return 4 * 2 * (options.window - 1) * options.d_model
