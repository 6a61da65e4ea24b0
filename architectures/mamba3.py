"""Mamba-3: a state-space model whose inputs enter by the trapezoid rule, with positions that the input turns."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from architectures._delta_mixer import step_bias, without_weight_decay
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.ops.linear_attention import linear_attention

State = tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]
"""P (B, H, N, P), or None where a whole sequence is computed at once. Of the last position: k (B, H, N), v (B, H, P), gamma
(B, H) and the angles (B, H, N / 4)."""

SLOWEST = 1e-4
"""The least rate of decay, -A."""


class Mamba3(mixer.Mixer):
    """The Mamba-3 block with one input and one output (SISO). Lahoti et al. 2026, section 3.

        z, x, B, C, Delta, A, l, theta = in_proj(u)
        Delta  = softplus(Delta + dt_bias),  A = -f(A) <= -1e-4,  l = sigmoid(l)                 one each for a head
        q, k   = norm(C) + C_bias, norm(B) + B_bias, of which half of the channels turn by the running sum of
                 Delta pi tanh(theta)                                                            RMS norms; biases begin at 1
        S_t    = alpha_t S_{t-1} + beta_t k_{t-1}^T x_{t-1} + gamma_t k_t^T x_t
                 with alpha = exp(Delta A), beta = (1 - l) Delta alpha, gamma = l Delta          the trapezoid
        out    = out_proj((q_t S_t + D x_t) SiLU(z))

    The op of linear attention has one input at a position. So it carries P_t = S_t - gamma_t k_t^T x_t, in which k_{t-1} and
    x_{t-1} enter at t, by alpha_t (gamma_{t-1} + (1 - l_t) Delta_t). There is no convolution. f is softplus, as in the paper. The
    authors' code since June 2026 has f(a) = 1 + a for a >= 0 and 1 / (1 - a) below: the option `heavy_tail`.
    """

    class Options(mixer.Options):
        """The options of Mamba-3."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        d_state: int = Field(default=64, ge=4, le=256, multiple_of=4, description="state of each channel, N")
        expand: int = Field(default=2, ge=1, description="channels of the state-space model, in units of d_model")
        heavy_tail: bool = Field(default=False, description="whether A has the activation of the authors' later code")
        turning: bool = Field(default=True, description="whether q and k turn; without it the state is real")

        @property
        def d_inner(self) -> int:
            """Channels of the state-space model."""
            return self.expand * self.d_model

    family = "state space"
    paper = mixer.Paper(
        "Mamba-3: Improved Sequence Modeling using State Space Principles", "Lahoti et al.", 2026, arxiv="2603.15569"
    )
    training_defaults: ClassVar = {"learning_rate": 1e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_inner, n_heads, d_state = options.d_inner, options.n_heads, options.d_state
        head_width(d_inner, n_heads, of="expand * d_model")
        self.n_heads, self.d_state = n_heads, d_state
        self.turning, self.activation = options.turning, heavy_tail if options.heavy_tail else F.softplus
        self.sizes = (d_inner, d_inner, d_state, d_state, n_heads, n_heads, n_heads, d_state // 4)
        self.in_proj = nn.Linear(options.d_model, sum(self.sizes), bias=False)
        self.dt_bias = step_bias(n_heads)
        self.B_norm, self.C_norm = (nn.RMSNorm(d_state, eps=1e-5) for _ in range(2))
        self.B_bias, self.C_bias = (nn.Parameter(torch.ones(n_heads, d_state)) for _ in range(2))
        self.D = without_weight_decay(torch.ones(n_heads))
        self.out_proj = nn.Linear(d_inner, options.d_model, bias=False)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        width, n_state = self.sizes[0] // self.n_heads, self.d_state

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, self.n_heads, *shape, device=device, dtype=dtype)

        return zeros(n_state, width), zeros(n_state), zeros(width), zeros(), zeros(n_state // 4)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D). No P after it is computed: training needs none."""
        return self.advance(x, (None, *self.init_state(len(x), x.device, x.dtype)[1:]))[0]

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        P, last_k, last_v, last_gamma, last_angle = state
        z, x, B, C, delta, A, trapezoid, theta = self.in_proj(x).split(self.sizes, dim=-1)
        v = full(split_heads(x, self.n_heads))
        delta = F.softplus(full(delta) + self.dt_bias).mT  # (B, H, L)
        log_alpha = -delta * self.activation(full(A)).clamp(min=SLOWEST).mT
        gamma = delta * full(trapezoid).sigmoid().mT
        turned = delta[..., None] * (math.pi * full(theta).tanh())[:, None]  # (B, H, L, N / 4)
        angle = last_angle[:, :, None] + turned.cumsum(2) * self.turning
        q, k = (
            turn(norm(full(part))[:, None] + bias[:, None], angle)
            for norm, part, bias in ((self.C_norm, C, self.C_bias), (self.B_norm, B, self.B_bias))
        )
        k_before, v_before, gamma_before = (
            torch.cat([last[:, :, None].to(now), now[:, :, :-1]], dim=2)
            for last, now in ((last_k, k), (last_v, v), (last_gamma, gamma))
        )
        enters = log_alpha.exp() * (gamma_before + delta - gamma)
        y, P = linear_attention(q, enters[..., None] * k_before, v_before, log_alpha, P)
        y = y + (gamma * (q * k).sum(-1) + self.D[:, None])[..., None] * v
        out: Tensor = self.out_proj(join_heads(y) * F.silu(z))
        return out, (P, k[:, :, -1], v[:, :, -1], gamma[:, :, -1], angle[:, :, -1])

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """P; of each head k, gamma and the angles; and v."""
        heads = options.n_heads * (options.d_state + 1 + options.d_state // 4)
        return 4 * (options.d_inner * options.d_state + heads + options.d_inner)


def heavy_tail(a: Tensor) -> Tensor:
    """1 + a where a >= 0, 1 / (1 - a) below: positive, with a slope of 1 at 0."""
    return a.clamp(min=0) + (1 - a.clamp(max=0)).reciprocal()


def turn(x: Tensor, angle: Tensor) -> Tensor:
    """Turns the pairs of channels (c, c + N / 4), c < N / 4, by angle (B, H, L, N / 4); the rest stays. (B, H, L, N)."""
    quarter = angle.shape[-1]
    a, b, rest = x.split([quarter, quarter, x.shape[-1] - 2 * quarter], dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest.expand(*angle.shape[:3], -1)], dim=-1)
