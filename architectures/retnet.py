"""RetNet: linear attention with rotary positions, where each head decays at a fixed rate of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models import mixer
from regbench.models.heads import head_width, join_heads, split_heads, start_alike
from regbench.models.rotary import rotate
from regbench.ops.linear_attention import linear_attention
from regbench.ops.linear_attention.naive import linear_attention_weights

State = tuple[Tensor | None, int]
"""S (B, H, K, V), or None where a whole sequence is computed at once, and the number of positions so far."""

GAIN = 2**-2.5
"""Gain of the Xavier initialisation, as in the authors' code."""


class RetNet(mixer.Mixer):
    """Gated multi-scale retention. ICLL Eq. 34-44; Sun et al. 2023, Eq. 5-8.

        q, k, v = query(x), key(x), value(x)                    W_q x_i, W_k x_i, W_v x_i (ICLL Eq. 34, 37)
        q, k    = rotate(q) / sqrt(d_k), rotate(k)              RoPE (ICLL Eq. 35)
        S_i     = lambda S_{i-1} + k_i^T v_i                    (ICLL Eq. 43), lambda = 1 - 2^(-5-h) in head h = 0, 1, ...
        z_i     = q_i S_i                                       (ICLL Eq. 44), the same as the sum of A_ij v_j over j <= i
                                                                with A_ij = lambda^(i-j) <q_i, k_j> (ICLL Eq. 36, 38)
        y_i     = out(swish(gate(x_i)) norm(z_i))               W_o (swish(r_i) z_i), r_i = W_r x_i (ICLL Eq. 39-40)

    ICLL leaves out the factor 1 / sqrt(d_k) and the normalisation, a layer norm of each head without learned parameters. The
    authors' code also normalises scores. The norm of a head undoes this, but for its epsilon, so it is left out here. The norm in
    their code does not subtract the mean. d_v = expand_v * D.
    """

    class Options(mixer.Options):
        """The options of RetNet."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        expand_v: int = Field(default=2, ge=1, description="width of the values, in units of d_model")
        mimetic: bool = Field(default=False, description="whether queries and keys begin with the same weights")

    family = "linear attention"
    paper = mixer.Paper(
        "Retentive Network: A Successor to Transformer for Large Language Models",
        "Sun et al.",
        2023,
        arxiv="2307.08621",
    )
    training_defaults: ClassVar = {"learning_rate": 1e-3}
    log_decay: Tensor

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads, d_v = options.d_model, options.n_heads, options.expand_v * options.d_model
        self.n_heads, self.head_sizes = n_heads, (head_width(d_model, n_heads, rotary=True), d_v // n_heads)
        self.query, self.key = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))
        self.value, self.gate = (nn.Linear(d_model, d_v, bias=False) for _ in range(2))
        self.norm = nn.LayerNorm(self.head_sizes[1], elementwise_affine=False)
        self.out = nn.Linear(d_v, d_model, bias=False)
        self.register_buffer("log_decay", torch.log1p(-(2.0 ** (-5.0 - torch.arange(n_heads)))), persistent=False)
        for linear in (self.query, self.key, self.value, self.gate):
            nn.init.xavier_uniform_(linear.weight, gain=GAIN)
        nn.init.xavier_uniform_(self.out.weight)
        if options.mimetic:
            start_alike(self.query.weight, self.key.weight)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position."""
        return torch.zeros(batch, self.n_heads, *self.head_sizes, device=device, dtype=dtype), 0

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D). No state after it is computed: training needs none."""
        return self.advance(x, (None, 0))[0]

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) and the state before it -> (B, L, D) and the state after it."""
        S, seen = state
        q, k, v = (split_heads(linear(x), self.n_heads) for linear in (self.query, self.key, self.value))
        q, k = rotate(q, start=seen) * q.shape[-1] ** -0.5, rotate(k, start=seen)
        z, S = linear_attention(q, k, v, self.log_decay, S)
        return self.out(F.silu(self.gate(x)) * join_heads(self.norm(z))), (S, seen + x.shape[1])

    def weights(self, x: Tensor) -> Tensor:
        """The coefficients A_ij of each head, (B, L, D) -> (B, H, L, L). They may be negative."""
        q, k = (rotate(split_heads(linear(x), self.n_heads)) for linear in (self.query, self.key))
        return linear_attention_weights(q * q.shape[-1] ** -0.5, k, self.log_decay)

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """`forward` with these coefficients in the place of its own: (B, L, D), (B, H, L, L) -> (B, L, D)."""
        z = weights @ split_heads(self.value(x), self.n_heads)
        y: Tensor = self.out(F.silu(self.gate(x)) * join_heads(self.norm(z)))
        return y

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of S. The number of positions is not counted."""
        return 4 * options.expand_v * options.d_model**2 // options.n_heads
