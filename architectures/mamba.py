"""Mamba: a state-space model whose parameters depend on the input."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from regbench.models import mixer
from regbench.models.heads import full
from regbench.models.short_conv import short_conv
from regbench.ops.selective_scan import selective_scan

State = tuple[Tensor, Tensor]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, d_inner) and the SSM state (B, d_inner, d_state)."""


class Mamba(mixer.Mixer):
    """The Mamba block: a short convolution and a selective state-space model, gated. ICLL Eq. 92-94.

        v, z  = in_proj(x)                             v_i = W_v x_i (ICLL Eq. 92), and the gate
        v     = SiLU(conv1d(v))                        depthwise and causal
        Delta = softplus(dt_proj(x_proj(v)))           the step size of each channel
        B, C  = x_proj(v)                              the input map and the output map
        h_t   = exp(Delta_t A) h_{t-1} + Delta_t B_t v_t    S_i = A-bar_i S_{i-1} + B-bar_i v_i (ICLL Eq. 93)
        y_t   = C_t h_t + D v_t                        y_i = C_i S_i (ICLL Eq. 94), and a skip connection
        out   = out_proj(y SiLU(z))

    ICLL writes d_v for d_inner = expand * d_model, and d_k for d_state, which is N in the Mamba paper. A = -exp(A_log).
    Parameters have the names, shapes and initial values of the authors' code.
    """

    class Options(mixer.Options):
        """The options of Mamba."""

        d_state: int = Field(default=16, ge=1, description="state of each channel, N")
        d_conv: int = Field(default=4, ge=1, description="width of the short convolution")
        expand: int = Field(default=2, ge=1, description="channels of the state-space model, in units of d_model")
        dt_rank: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
            default="auto", description="rank of the map to the step sizes; auto is d_model / 16, rounded up"
        )

        @property
        def d_inner(self) -> int:
            """Channels of the state-space model."""
            return self.expand * self.d_model

    family = "state space"
    paper = mixer.Paper(
        "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", "Gu and Dao", 2023, arxiv="2312.00752"
    )
    feed_forward = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_inner, d_state = options.d_inner, options.d_state
        rank = math.ceil(options.d_model / 16) if options.dt_rank == "auto" else options.dt_rank
        self.sizes = (rank, d_state, d_state)
        self.in_proj = nn.Linear(options.d_model, 2 * d_inner, bias=False)
        self.conv1d = nn.Conv1d(d_inner, d_inner, options.d_conv, groups=d_inner)
        self.x_proj = nn.Linear(d_inner, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(rank, d_inner)
        # S4D-real: A = -1, -2, ..., -N in every channel.
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, options.d_model, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        with torch.no_grad():
            # Delta begins between 0.001 and 0.1, uniform in its logarithm. The bias is the inverse softplus of it.
            delta = torch.empty(d_inner).uniform_(math.log(1e-3), math.log(1e-1)).exp()
            self.dt_proj.bias.copy_(delta + torch.log(-torch.expm1(-delta)))
        mixer.state_space(self.A_log, self.dt_proj.bias)
        mixer.no_weight_decay(self.D)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        d_inner, _, d_conv = self.conv1d.weight.shape
        window = torch.zeros(batch, d_conv - 1, d_inner, device=device, dtype=dtype)
        return window, torch.zeros(batch, *self.A_log.shape, device=device, dtype=dtype)

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) and the state before it -> (B, L, D) and the state after it."""
        window, h = state
        v, z = self.in_proj(x).chunk(2, dim=-1)
        window = torch.cat((window, v), dim=1)
        v = F.silu(short_conv(window, self.conv1d))
        dt, B, C = self.x_proj(v).split(self.sizes, dim=-1)
        # In half precision the bias would be rounded to other step sizes.
        with torch.autocast(x.device.type, enabled=False):
            delta = F.softplus(self.dt_proj(full(dt)))
        y, h = selective_scan(v, delta, -torch.exp(self.A_log), B, C, self.D, h)
        return self.out_proj(y * F.silu(z)), (window[:, x.shape[1] :], h)

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of the last inputs and of the SSM state."""
        return 4 * options.d_inner * (options.d_conv - 1 + options.d_state)
