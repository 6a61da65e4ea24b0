"""Differential transformer: the difference of two softmax attentions, so that what both attend to cancels."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from architectures._attention import Cache, attend, empty_cache
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.rotary import rotate
from regbench.ops.attention.naive import attention_weights

State = tuple[Cache, int]
"""The keys of both attentions of each head and its values (B, 2 H, t, ...), and the number of positions so far."""


class DifferentialTransformer(mixer.Mixer):
    """Differential attention. Ye et al. 2024, section 2.1.

        q1, q2 = query(x)                                      two of each head, K channels each; and so for k1, k2
        v      = value(x)                                      2 K channels a head
        lambda = exp(<l_q1, l_k1>) - exp(<l_q2, l_k2>) + lambda_init
        z      = (softmax(q1 k1^T / sqrt(K)) - lambda softmax(q2 k2^T / sqrt(K))) v
        y      = out((1 - lambda_init) norm(z))                an RMS norm of each head without weights

    lambda_init is 0.8 - 0.6 exp(-0.3 l) in layer l = 0, 1, ... The four vectors l are shared by the heads, and begin with a
    standard deviation of 0.1. Positions are rotary, as in the paper. A head has two attentions: so n_heads here is half of a
    transformer's with equal K. The feed-forward network is the backbone's, and the authors' is gated.
    """

    class Options(mixer.Options):
        """The options of the differential transformer."""

        positions: Literal["rotary", "learned", "none"] = Field(
            default="rotary", description="how positions are encoded"
        )

    family = "attention"
    paper = mixer.Paper("Differential Transformer", "Ye et al.", 2024, arxiv="2410.05258")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads = options.d_model, options.n_heads
        self.n_heads, self.rotary = n_heads, options.positions == "rotary"
        self.width = head_width(d_model, 2 * n_heads, by="2 n_heads", rotary=self.rotary)
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.l_q1, self.l_k1, self.l_q2, self.l_k2 = (
            nn.Parameter(torch.empty(self.width).normal_(std=0.1)) for _ in range(4)
        )
        self.norm = nn.RMSNorm(2 * self.width, eps=1e-5, elementwise_affine=False)
        self.place(0)

    def place(self, layer: int) -> None:
        """Sets lambda_init."""
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position. It grows with the stream."""
        return empty_cache(batch, 2 * self.n_heads, (self.width, 2 * self.width), device, dtype), 0

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        cache, seen = state
        q, k = self._queries_and_keys(x, seen)
        v = split_heads(self.value(x), self.n_heads).repeat_interleave(2, 1)
        z, cache = attend(q, k, v, cache)
        first, second = full(z).unflatten(1, (-1, 2)).unbind(2)
        return self._output(first - self.strength() * second), (cache, seen + x.shape[1])

    def strength(self) -> Tensor:
        """Lambda: how much of the second attention is taken away."""
        first, second = ((q * k).sum().exp() for q, k in ((self.l_q1, self.l_k1), (self.l_q2, self.l_k2)))
        return first - second + self.lambda_init

    def weights(self, x: Tensor) -> Tensor:
        """The difference of both attentions of each head, (B, L, D) -> (B, H, L, L). It may be negative."""
        first, second = attention_weights(*self._queries_and_keys(x, 0)).unflatten(1, (-1, 2)).unbind(2)
        return first - self.strength() * second

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """`forward` with these weights in the place of its own: (B, L, D), (B, H, L, L) -> (B, L, D)."""
        return self._output(weights @ split_heads(self.value(x), self.n_heads))

    def _queries_and_keys(self, x: Tensor, seen: int) -> tuple[Tensor, Tensor]:
        """(B, L, D) -> (B, 2 H, L, K) each: the two of a head lie beside each other."""
        q, k = (split_heads(linear(x), 2 * self.n_heads) for linear in (self.query, self.key))
        return (rotate(q, start=seen), rotate(k, start=seen)) if self.rotary else (q, k)

    def _output(self, z: Tensor) -> Tensor:
        """(B, H, L, 2 K) -> (B, L, D)."""
        y: Tensor = self.out(join_heads((1 - self.lambda_init) * self.norm(z)))
        return y

    @classmethod
    def learned_positions(cls, options: Any) -> bool:
        """Whether they are asked for (ICLL Eq. 16)."""
        return options.positions == "learned"
