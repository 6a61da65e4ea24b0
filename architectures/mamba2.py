"""Mamba-2: a state-space model whose state decays at one rate for each head, which makes it linear attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from architectures._delta_mixer import rates, step_bias, without_weight_decay
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.short_conv import ShortConv
from regbench.ops.linear_attention import linear_attention

State = tuple[Tensor, Tensor]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, channels), and S (B, H, N, P)."""


class Mamba2(mixer.Mixer):
    """The Mamba-2 block. Dao and Gu 2024, section 7; its recurrence is the scalar case of section 3.

        z, x, B, C, Delta = in_proj(u)                   the gate, and the inputs of the state-space model
        x, B, C = SiLU(conv(x, B, C))                    depthwise and causal
        Delta   = softplus(Delta + dt_bias)              one step size for each head
        S_t     = exp(-exp(A_log) Delta_t) S_{t-1} + Delta_t B_t^T x_t      all heads share B and C
        y_t     = C_t S_t + D x_t
        out     = out_proj(norm(y SiLU(z)))              an RMS norm over all heads

    N is d_state, and a head has P = expand * d_model / n_heads channels. Starting values are those of the authors' code.
    """

    class Options(mixer.Options):
        """The options of Mamba-2."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        d_state: int = Field(default=64, ge=1, le=256, description="state of each channel, N: the width of B and C")
        d_conv: int = Field(default=4, ge=1, description="width of the short convolution")
        expand: int = Field(default=2, ge=1, description="channels of the state-space model, in units of d_model")

        @property
        def d_inner(self) -> int:
            """Channels of the state-space model."""
            return self.expand * self.d_model

    family = "state space"
    paper = mixer.Paper(
        "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality",
        "Dao and Gu",
        2024,
        arxiv="2405.21060",
    )
    feed_forward = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_inner, n_heads, d_state = options.d_inner, options.n_heads, options.d_state
        head_width(d_inner, n_heads, of="expand * d_model")
        self.n_heads = n_heads
        self.sizes = (d_inner, d_state, d_state)
        self.in_proj = nn.Linear(options.d_model, d_inner + sum(self.sizes) + n_heads, bias=False)
        self.conv = ShortConv(sum(self.sizes), options.d_conv, bias=True)
        self.A_log, self.dt_bias = rates(n_heads, low=1.0), step_bias(n_heads)
        self.D = without_weight_decay(torch.ones(n_heads))
        self.norm = nn.RMSNorm(d_inner, eps=1e-5)
        self.out_proj = nn.Linear(d_inner, options.d_model, bias=False)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        d_inner, d_state, _ = self.sizes
        S = torch.zeros(batch, self.n_heads, d_state, d_inner // self.n_heads, device=device, dtype=dtype)
        return self.conv.init_window(batch, device, dtype), S

    def advance(self, x: Tensor, state: Any, op: Callable[..., Any] = linear_attention) -> tuple[Tensor, Any]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it. `op` is the recurrence."""
        window, S = state
        z, mixed, delta = self.in_proj(x).split([self.sizes[0], sum(self.sizes), self.n_heads], dim=-1)
        mixed, window = self.conv(mixed, window)
        x, B, C = F.silu(mixed).split(self.sizes, dim=-1)
        x = split_heads(x, self.n_heads)
        delta = F.softplus(full(delta) + self.dt_bias).mT  # (B, H, L)
        B, C = (part[:, None].expand(*x.shape[:3], -1) for part in (B, C))
        y, S = op(C, B, delta[..., None] * x, -self.A_log.exp()[:, None] * delta, S)
        y = join_heads(y + self.D[:, None, None] * x)
        out: Tensor = self.out_proj(self.norm(full(y * F.silu(z))))
        return out, (window, S)

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """S and the window."""
        return 4 * (options.d_inner * options.d_state + (options.d_conv - 1) * (options.d_inner + 2 * options.d_state))
