"""GLA: linear attention with decays that the input sets."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models import mixer
from regbench.models.heads import head_width, join_heads, split_heads, start_alike
from regbench.ops.linear_attention import linear_attention
from regbench.ops.linear_attention.naive import linear_attention_weights

GAIN = 2**-2.5
"""Gain of the Xavier initialisation of queries, keys and decay gate, as in the authors' code."""


class GLA(mixer.Mixer):
    """Gated linear attention. ICLL Eq. 51-57; Yang et al. 2023, Eq. 3 and section 4.4.

        q, k, v   = query(x), key(x), value(x)                  W_q x_i, W_k x_i, W_v x_i (ICLL Eq. 51, 53)
        log alpha = log sigmoid(decay(x)) / gate_temperature    alpha_i = sigmoid(W_alpha x_i) (ICLL Eq. 52), to the power
                                                                1/tau; W_alpha has rank gate_rank, and a bias
        S_i       = alpha_i^T 1 * S_{i-1} + k_i^T v_i           (ICLL Eq. 54) with beta_i = 1, as in the authors' final form
        z_i       = q_i S_i / sqrt(d_k)                         (ICLL Eq. 55)
        y_i       = out(swish(gate(x_i)) norm(z_i))             W_o (swish(r_i) z_i), r_i = W_r x_i (ICLL Eq. 56-57)

    ICLL leaves out tau = 16, the factor 1 / sqrt(d_k), the bias of the gate, and the normalisation, a layer norm of each head
    without learned parameters. d_k = expand_k * D and d_v = expand_v * D, which makes about 4 D^2 parameters. There are no
    positions, as the decay depends on the distance.
    """

    class Options(mixer.Options):
        """The options of GLA."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        expand_k: float = Field(default=0.5, gt=0, description="width of queries and keys, in units of d_model")
        expand_v: float = Field(default=1.0, gt=0, description="width of the values, in units of d_model")
        gate_rank: int = Field(default=16, ge=1, description="rank of the map to the decays")
        gate_temperature: float = Field(default=16.0, gt=0, description="tau: decays begin at 0.5^(1/tau)")
        mimetic: bool = Field(default=False, description="whether queries and keys begin with the same weights")

        @property
        def d_k(self) -> int:
            """Channels of all queries, or of all keys."""
            return round(self.expand_k * self.d_model)

        @property
        def d_v(self) -> int:
            """Channels of all values."""
            return round(self.expand_v * self.d_model)

    family = "linear attention"
    paper = mixer.Paper(
        "Gated Linear Attention Transformers with Hardware-Efficient Training", "Yang et al.", 2023, arxiv="2312.06635"
    )
    training_defaults: ClassVar = {"learning_rate": 1e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads, d_k, d_v = options.d_model, options.n_heads, options.d_k, options.d_v
        self.head_sizes = (
            head_width(d_k, n_heads, of="expand_k * d_model"),
            head_width(d_v, n_heads, of="expand_v * d_model"),
        )
        self.n_heads, self.temperature = n_heads, options.gate_temperature
        self.query, self.key = (nn.Linear(d_model, d_k, bias=False) for _ in range(2))
        down, up = nn.Linear(d_model, options.gate_rank, bias=False), nn.Linear(options.gate_rank, d_k)
        self.decay = nn.Sequential(down, up)
        self.value = nn.Linear(d_model, d_v, bias=False)
        self.gate = nn.Linear(d_model, d_v)
        self.norm = nn.LayerNorm(self.head_sizes[1], elementwise_affine=False)
        self.out = nn.Linear(d_v, d_model, bias=False)
        for linear in (self.query, self.key, down, up):
            nn.init.xavier_uniform_(linear.weight, gain=GAIN)
        nn.init.zeros_(up.bias)
        if options.mimetic:
            start_alike(self.query.weight, self.key.weight)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """S before the first position, (B, H, K, V)."""
        return torch.zeros(batch, self.n_heads, *self.head_sizes, device=device, dtype=dtype)

    def advance(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L, D) and S before it -> (B, L, D) and S after it."""
        maps = (self.query, self.key, self.value, self.decay)
        q, k, v, logits = (split_heads(linear(x), self.n_heads) for linear in maps)
        z, state = linear_attention(q * q.shape[-1] ** -0.5, k, v, F.logsigmoid(logits) / self.temperature, state)
        return self.out(F.silu(self.gate(x)) * join_heads(self.norm(z))), state

    def weights(self, x: Tensor) -> Tensor:
        """The coefficients of the values in each head, (B, L, D) -> (B, H, L, L). They may be negative."""
        q, k, logits = (split_heads(linear(x), self.n_heads) for linear in (self.query, self.key, self.decay))
        return linear_attention_weights(q * q.shape[-1] ** -0.5, k, F.logsigmoid(logits) / self.temperature)

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """`forward` with these coefficients in the place of its own: (B, L, D), (B, H, L, L) -> (B, L, D)."""
        z = weights @ split_heads(self.value(x), self.n_heads)
        y: Tensor = self.out(F.silu(self.gate(x)) * join_heads(self.norm(z)))
        return y

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of S."""
        return 4 * options.d_k * options.d_v // options.n_heads
